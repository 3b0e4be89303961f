package kafkaadapter

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
)

// A view is the known state of a partition when it is assigned.
type view struct {
	topic      string
	partition  int32
	store      *engine.Offset // nil: the store has none
	id         storage.Identity
	topicID    [16]byte        // the broker's current one; zero: the broker has no topic ids
	partitions uint32          // of the topic
	start      int64           // of the log
	end        int64           // of the log, one after its last record
	committed  *brokers.Commit // nil: nothing is committed in Kafka
	epochEnd   int64           // the end of the epoch that the store read last, -1 if unknown

	transactional bool // the mode of the route
}

// A beginning is the offset from which a partition is read. Epoch is -1 if it is unknown.
type beginning struct {
	offset int64
	epoch  int32
	way    RecoveryPolicy // the policy that was applied, Stop if store and Kafka agreed
	kind   error          // the disagreement, nil if there was none
}

// errRanOpen means that records up to Kafka's offset were handled without claims
// (Options.ReopenStore): reading continues there. No policy is needed.
var errRanOpen = errors.New("hapax: the partition was read without the store")

// beginOpen decides where a partition is read without its store. The view has the state of the
// store if this assignment knows it. A commit of another consumer is a matter of policy, as with an
// empty store.
func (v *view) beginOpen(p Recovery) (beginning, error) {
	_, ours := parseMetadata(v.metadata())
	if kind := v.disagreement(); v.store == nil && (errors.Is(kind, ErrEmptyStore) && ours || errors.Is(kind, errRanOpen)) {
		return v.inLog(beginning{offset: v.committed.Offset, epoch: -1}, p)
	}
	return v.begin(p, false)
}

// begin returns where a partition is read, or the reason why it is not.
func (v *view) begin(p Recovery, atEnd bool) (beginning, error) {
	kind := v.disagreement()
	if kind == nil {
		return v.inLog(v.agreed(atEnd), p)
	}
	if errors.Is(kind, errRanOpen) {
		return v.inLog(beginning{offset: v.committed.Offset, epoch: -1, way: TrustKafka, kind: kind}, p)
	}
	b := beginning{kind: kind, way: p[kind], epoch: -1}
	switch b.way {
	case TrustStore:
		if v.store == nil {
			return b, v.refuse(kind)
		}
		b.offset = v.store.Next // its epoch is ignored: it may be the cause of the disagreement
	case TrustKafka:
		if v.committed == nil {
			return b, v.refuse(kind)
		}
		b.offset = v.committed.Offset
	case StartOver:
		b.offset = v.start
		return b, nil
	default:
		return b, v.refuse(kind)
	}
	return v.inLog(b, p)
}

// agreed returns where to begin when the offsets in the store and in Kafka are consistent.
func (v *view) agreed(atEnd bool) beginning {
	switch {
	case v.store != nil:
		return beginning{offset: v.store.Next, epoch: v.store.LeaderEpoch}
	case atEnd:
		return beginning{offset: v.end, epoch: -1}
	default:
		return beginning{offset: v.start, epoch: -1}
	}
}

// inLog checks that an offset can be read, and applies the policy if it cannot.
func (v *view) inLog(b beginning, p Recovery) (beginning, error) {
	var kind error
	switch {
	case b.offset < v.start:
		kind = ErrBelowLog
	case b.offset > v.end:
		kind = ErrAboveLog
	case v.epochEnd >= 0 && v.store != nil && b.offset == v.store.Next && b.offset > v.epochEnd:
		kind = ErrLogDiverged
	default:
		return b, nil
	}
	switch way := p[kind]; {
	case way == TrustStore: // of ErrLogDiverged; the epoch of the replaced records is forgotten
		return beginning{offset: b.offset, epoch: -1, way: way, kind: kind}, nil
	case way == StartOver:
		return beginning{offset: v.start, epoch: -1, way: way, kind: kind}, nil
	case way == TrustKafka && v.committed != nil && v.committed.Offset >= v.start && v.committed.Offset <= v.end:
		return beginning{offset: v.committed.Offset, epoch: -1, way: way, kind: kind}, nil
	}
	return b, v.refuse(kind)
}

// disagreement returns how the store's offset and the commit contradict each other, nil if they do
// not. Whether the offset is within the log is checked later.
func (v *view) disagreement() error {
	by, ours := parseMetadata(v.metadata())
	open := parseOpenMark(v.metadata())
	switch {
	case v.store != nil && v.store.TopicID != v.topicID && v.store.TopicID != [16]byte{} && v.topicID != [16]byte{}:
		return ErrRecreated
	case v.committed != nil && ours && by != authorOf(v.id):
		return ErrForeignStore
	case open.is:
		return v.afterOpen(open)
	case v.store == nil && v.committed != nil:
		return ErrEmptyStore
	case v.store == nil || v.committed == nil:
		return nil
	case ours && v.committed.Offset > v.store.Next:
		return ErrKafkaAhead
	case !ours && v.committed.Offset != v.store.Next:
		return ErrOffsetReset
	}
	return nil
}

// afterOpen is disagreement for a commit that was made while the store was unavailable.
func (v *view) afterOpen(m openMark) error {
	switch {
	case m.by != (author{}) && m.by != authorOf(v.id):
		return ErrForeignStore
	case v.store == nil || v.committed.Offset > v.store.Next:
		return errRanOpen
	case v.transactional && max(v.committed.Offset, v.start) < m.until && m.until <= v.store.Next:
		return ErrModeChanged // AtMostOnce would handle them without claims
	}
	return nil // the records that the store has beyond it were claimed
}

func (v *view) metadata() string {
	if v.committed == nil {
		return ""
	}
	return v.committed.Metadata
}

func (v *view) refuse(kind error) error {
	e := &PositionError{Topic: v.topic, Partition: v.partition, Kind: kind, Store: -1, Committed: -1, Start: v.start, End: v.end, Metadata: v.metadata()}
	if v.store != nil {
		e.Store = v.store.Next
	}
	if v.committed != nil {
		e.Committed = v.committed.Offset
	}
	return e
}

// kindOf returns the kind of a PositionError, nil for any other error.
func kindOf(err error) error {
	if at := (*PositionError)(nil); errors.As(err, &at) {
		return at.Kind
	}
	return nil
}

// An author is the store that an offset was committed from: a restored backup has another
// incarnation.
type author struct {
	uuid        [16]byte
	incarnation uint64
}

func authorOf(id storage.Identity) author { return author{id.UUID, id.Incarnation} }

const (
	metadataPrefix = "hapax:"
	openPrefix     = "hapax-open:"
)

// metadata returns the metadata of the adapter's commits: hapax:<uuid of the store in
// hex>:<incarnation>.
func (a author) metadata() string {
	return metadataPrefix + hex.EncodeToString(a.uuid[:]) + ":" + strconv.FormatUint(a.incarnation, 10)
}

// parseMetadata reads the metadata of a commit; ours is false if it is not the adapter's.
func parseMetadata(s string) (a author, ours bool) {
	rest, ok := strings.CutPrefix(s, metadataPrefix)
	id, incarnation, ok2 := strings.Cut(rest, ":")
	if !ok || !ok2 || len(id) != 2*len(a.uuid) {
		return author{}, false
	}
	if _, err := hex.Decode(a.uuid[:], []byte(id)); err != nil {
		return author{}, false
	}
	n, err := strconv.ParseUint(incarnation, 10, 64)
	if err != nil {
		return author{}, false
	}
	a.incarnation = n
	return a, true
}

// An openMark is the metadata of a commit that was made while the store was unavailable: records
// before its offset were handled without claims. The author is zero if it was unknown whose store
// it is.
type openMark struct {
	is bool
	by author
	// records below it may be claimed in the store; those at or after the commit's offset may be
	// unhandled
	until int64
}

// openMark returns the metadata hapax-open:<uuid of the store in hex>:<incarnation>:<until>.
func (a author) openMark(until int64) string {
	return fmt.Sprintf("%s%x:%d:%d", openPrefix, a.uuid, a.incarnation, until)
}

// parseOpenMark reads the metadata of a commit; it reports whether the metadata is an openMark.
func parseOpenMark(s string) (m openMark) {
	rest, ok := strings.CutPrefix(s, openPrefix)
	at := strings.LastIndexByte(rest, ':')
	if !ok || at < 0 {
		return openMark{}
	}
	by, ok := parseMetadata(metadataPrefix + rest[:at])
	until, err := strconv.ParseInt(rest[at+1:], 10, 64)
	if !ok || err != nil || until < 0 {
		return openMark{}
	}
	return openMark{true, by, until}
}
