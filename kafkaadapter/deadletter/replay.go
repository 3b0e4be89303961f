package deadletter

import (
	"encoding/hex"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// A Replay is a dead letter that was sent back to be handled: its event and the generation of its
// claim.
//
// It is read from headers, and anyone who may write to the topic can forge headers; stream
// processors also copy them to records of their own. So the adapter judges a record under a
// replay's event only if Issuer.Replay accepts it, which needs a seal by the store's secret. Any
// other record is judged by its own id and time, as if the headers were absent.
//
// Forged headers have no effect:
//   - no claim is reopened, because the seal cannot be made without the secret;
//   - no event is skipped, because no other event's id or position can be put under the seal;
//   - the record that carries them is not skipped because of them either.
//
// Anyone who can read dead letters can copy a set of headers with its seal. A record without an id
// of its own, or with the same id, then becomes the replay, whatever else it contains: it is
// handled for the dead-lettered event, once, and the true replay becomes a duplicate. The engine
// reopens a claim only if it is dead-lettered in that generation, and reopening ends the
// generation. This is also how a letter is replayed, so the right to read the dead letters and to
// write to the topic is the right to replay.
//
// A letter of another group or of a lost store has no valid seal. Its replay is judged by its own
// id too: an event with an id is found under that id, and an event that was identified by its
// position is a new record.
type Replay struct {
	sealed
	origin engine.Origin
	stamp  stamp
	seal   []byte

	omitted []kgo.RecordHeader
}

// isLetter reports whether r has a header that every dead letter has.
func isLetter(r *kgo.Record) bool {
	return string(identify.LastHeader(r.Headers, dltVersion)) == dltVersion1
}

// replayOf reads the headers of a dead letter from r. It returns false if there are none, and if
// they are incomplete or not in the form that letter.record writes. The last of several headers
// with one name counts. The id shares memory with the record.
func replayOf(r *kgo.Record) (Replay, bool) {
	if !isLetter(r) {
		return Replay{}, false
	}
	h := headerReader{headers: r.Headers}
	p := Replay{
		origin: engine.Origin{
			Topic:     string(h.value(dltTopic)),
			Partition: int32(h.number(dltPartition, 32)),
			Offset:    h.number(dltOffset, 64),
		},
		stamp: stamp{Millis: h.number(dltTimestamp, 64), Type: named(&h, dltTimestampType, stampTypes[:])},
		sealed: sealed{
			Group:      string(h.value(dltGroup)),
			Scope:      string(h.value(dltScope)),
			Event:      h.event(),
			Generation: h.unsigned(dltGeneration),
		},
	}
	if Incomplete(r) != nil {
		p.omitted = slices.DeleteFunc(slices.Clone(r.Headers), func(h kgo.RecordHeader) bool { return !isOmitted(h) })
	}
	// any other form matches no seal
	p.seal, _ = hex.DecodeString(string(identify.LastHeader(r.Headers, dltSeal)))
	if h.bad || p.origin.Partition < 0 || p.origin.Offset < 0 {
		return Replay{}, false
	}
	return p, true
}

// A headerReader reads the values of required headers, and remembers whether one is absent or
// malformed.
type headerReader struct {
	headers []kgo.RecordHeader
	bad     bool
}

func (h *headerReader) value(name string) []byte {
	v := identify.LastHeader(h.headers, name)
	h.bad = h.bad || v == nil
	return v
}

func (h *headerReader) number(name string, bits int) int64 {
	n, err := strconv.ParseInt(string(h.value(name)), 10, bits)
	h.bad = h.bad || err != nil
	return n
}

func (h *headerReader) unsigned(name string) uint64 {
	n, err := strconv.ParseUint(string(h.value(name)), 10, 64)
	h.bad = h.bad || err != nil
	return n
}

func (h *headerReader) event() identify.Identity {
	var at time.Time
	err := at.UnmarshalText(h.value(dltEventTime))
	idRule := named(h, dltIDRule, identify.IDRules[:])
	timeRule := named(h, dltTimeRule, identify.TimeRules[:])
	event, ok := usable(identify.Restore(h.value(dltEventID), at, idRule, timeRule))
	h.bad = h.bad || err != nil || !ok
	return event
}

// named returns the value that has the header's name.
func named[T interface{ String() string }](h *headerReader, header string, all []T) (one T) {
	name := string(h.value(header))
	for _, one := range all {
		if one.String() == name {
			return one
		}
	}
	h.bad = true
	return one
}
