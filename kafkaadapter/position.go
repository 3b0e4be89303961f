package kafkaadapter

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hapax-dev/hapax/engine"
)

// A WayOn says how to go on where the store and Kafka do not agree on a partition's position. The zero value stops the
// partition with a *PositionError.
type WayOn uint8

// The ways on.
const (
	Stop       WayOn = iota // do not read the partition; say why
	TrustStore              // read from the store's offset
	TrustKafka              // read from the offset that is committed in Kafka
	StartOver               // read from the log's start
)

func (w WayOn) String() string {
	switch w {
	case Stop:
		return "stop"
	case TrustStore:
		return "trust_store"
	case TrustKafka:
		return "trust_kafka"
	case StartOver:
		return "start_over"
	}
	return "WayOn(" + strconv.Itoa(int(w)) + ")"
}

// Positions chooses the way on for each disagreement. The zero value stops a partition at any of them. Claims are never
// removed by a way on: what the store knows is still a duplicate.
type Positions struct {
	BelowLog     WayOn // ErrBelowLog: Stop, StartOver
	AboveLog     WayOn // ErrAboveLog: Stop, StartOver, TrustKafka
	Recreated    WayOn // ErrRecreated: Stop, StartOver, TrustKafka
	ForeignStore WayOn // ErrForeignStore: Stop, TrustStore, TrustKafka, StartOver
	EmptyStore   WayOn // ErrEmptyStore: Stop, TrustKafka, StartOver
	KafkaAhead   WayOn // ErrKafkaAhead: Stop, TrustStore, TrustKafka
	Moved        WayOn // ErrMoved: Stop, TrustStore, TrustKafka
	LogDiverged  WayOn // ErrLogDiverged: Stop, TrustStore, StartOver
}

// A disagreement is one row of Positions: its error, its field, and the ways that make sense.
type disagreement struct {
	kind  error
	field string
	way   func(p *Positions) WayOn
	ways  []WayOn
}

var disagreements = []disagreement{
	{ErrBelowLog, "BelowLog", func(p *Positions) WayOn { return p.BelowLog }, []WayOn{StartOver}},
	{ErrAboveLog, "AboveLog", func(p *Positions) WayOn { return p.AboveLog }, []WayOn{StartOver, TrustKafka}},
	{ErrRecreated, "Recreated", func(p *Positions) WayOn { return p.Recreated }, []WayOn{StartOver, TrustKafka}},
	{ErrForeignStore, "ForeignStore", func(p *Positions) WayOn { return p.ForeignStore }, []WayOn{TrustStore, TrustKafka, StartOver}},
	{ErrEmptyStore, "EmptyStore", func(p *Positions) WayOn { return p.EmptyStore }, []WayOn{TrustKafka, StartOver}},
	{ErrKafkaAhead, "KafkaAhead", func(p *Positions) WayOn { return p.KafkaAhead }, []WayOn{TrustStore, TrustKafka}},
	{ErrMoved, "Moved", func(p *Positions) WayOn { return p.Moved }, []WayOn{TrustStore, TrustKafka}},
	{ErrLogDiverged, "LogDiverged", func(p *Positions) WayOn { return p.LogDiverged }, []WayOn{TrustStore, StartOver}},
}

func disagreementOf(kind error) disagreement {
	for _, d := range disagreements {
		if errors.Is(kind, d.kind) {
			return d
		}
	}
	panic("hapax: no such disagreement: " + kind.Error())
}

// waysOf names the field of Positions and the ways on for a kind, for an error's text.
func waysOf(kind error) string {
	d := disagreementOf(kind)
	names := make([]string, len(d.ways))
	for i, w := range d.ways {
		names[i] = w.String()
	}
	return d.field + " = " + strings.Join(names, ", ")
}

func (p *Positions) check() error {
	for _, d := range disagreements {
		way := d.way(p)
		ok := way == Stop
		for _, w := range d.ways {
			ok = ok || w == way
		}
		if !ok {
			return fmt.Errorf("%w: Positions.%s cannot be %v: use %s, or leave it to stop the partition", ErrOption, d.field, way, waysOf(d.kind))
		}
	}
	return nil
}

// A view is what is known of a partition when it is assigned.
type view struct {
	topic     string
	partition int32
	store     *engine.Offset // nil: the store has none
	id        engine.Identity
	topicID   [16]byte // as the broker has it now; zero: the broker has no topic ids
	start     int64    // of the log
	end       int64    // of the log, one after its last record
	committed *commit  // nil: nothing is committed in Kafka
	epochEnd  int64    // where the epoch ends that the store read last, -1 if that is not known
	err       error    // why the broker could not be asked; the rest is not known then
}

// A commit is what Kafka keeps for the group.
type commit struct {
	offset   int64
	epoch    int32
	metadata string
}

// A beginning is where to read from. Epoch is -1 if it is unknown.
type beginning struct {
	offset int64
	epoch  int32
	way    WayOn // the way on that was taken, Stop if there was nothing to disagree about
	kind   error // what was disagreed about, nil
}

// begin decides where a partition is read from, or why it is not.
func (v *view) begin(p *Positions, atEnd bool) (beginning, error) {
	kind := v.disagreement()
	if kind == nil {
		return v.inLog(v.agreed(atEnd), p)
	}
	b := beginning{kind: kind, way: disagreementOf(kind).way(p), epoch: -1}
	switch b.way {
	case TrustStore:
		if v.store == nil {
			return b, v.refuse(kind)
		}
		b.offset = v.store.Next // its epoch is not looked at: it may be what disagreed
	case TrustKafka:
		if v.committed == nil {
			return b, v.refuse(kind)
		}
		b.offset = v.committed.offset
	case StartOver:
		b.offset = v.start
		return b, nil
	default:
		return b, v.refuse(kind)
	}
	return v.inLog(b, p)
}

// agreed is where to begin when store and Kafka do not contradict each other.
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

// inLog checks that an offset can be read, and takes the way on if it cannot.
func (v *view) inLog(b beginning, p *Positions) (beginning, error) {
	var kind error
	switch {
	case b.offset < v.start:
		kind = ErrBelowLog
	case b.offset > v.end:
		kind = ErrAboveLog
	case v.epochEnd >= 0 && v.store != nil && b.offset == v.store.Next && b.offset > v.epochEnd && p.LogDiverged != TrustStore:
		kind = ErrLogDiverged
	default:
		return b, nil
	}
	switch way := disagreementOf(kind).way(p); {
	case way == StartOver:
		return beginning{offset: v.start, epoch: -1, way: way, kind: kind}, nil
	case way == TrustKafka && v.committed != nil && v.committed.offset >= v.start && v.committed.offset <= v.end:
		return beginning{offset: v.committed.offset, epoch: -1, way: way, kind: kind}, nil
	}
	return b, v.refuse(kind)
}

// disagreement says what of store and commit does not fit together, nil if all does. Whether the offset is within the
// log is looked at later.
func (v *view) disagreement() error {
	author, ours := parseMetadata(v.metadata())
	switch {
	case v.store != nil && v.store.TopicID != v.topicID && v.store.TopicID != [16]byte{} && v.topicID != [16]byte{}:
		return ErrRecreated
	case v.committed != nil && ours && author != authorOf(v.id):
		return ErrForeignStore
	case v.store == nil && v.committed != nil:
		return ErrEmptyStore
	case v.store == nil || v.committed == nil:
		return nil
	case ours && v.committed.offset > v.store.Next:
		return ErrKafkaAhead
	case !ours && v.committed.offset != v.store.Next:
		return ErrMoved
	}
	return nil
}

func (v *view) metadata() string {
	if v.committed == nil {
		return ""
	}
	return v.committed.metadata
}

func (v *view) refuse(kind error) error {
	e := &PositionError{Topic: v.topic, Partition: v.partition, Kind: kind, Store: -1, Committed: -1, Start: v.start, End: v.end, Metadata: v.metadata()}
	if v.store != nil {
		e.Store = v.store.Next
	}
	if v.committed != nil {
		e.Committed = v.committed.offset
	}
	return e
}

// An author is the store that an offset was committed from: a restored backup has another incarnation.
type author struct {
	uuid        [16]byte
	incarnation uint64
}

func authorOf(id engine.Identity) author { return author{id.UUID, id.Incarnation} }

const metadataPrefix = "hapax:"

// metadata is what the adapter commits beside each offset: hapax:<uuid of the store in hex>:<incarnation>.
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
