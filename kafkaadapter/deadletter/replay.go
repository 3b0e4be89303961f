package deadletter

import (
	"encoding/hex"
	"net/url"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// A Replay is a dead letter that was sent back to be handled: its event and the generation of its
// claim, if it is Claimed. An event that was never claimed, such as one that was too old, has no
// claim to reopen. Its record is identified anew, so that its producer's time can be corrected. It
// keeps its original id only if it was identified by its position and still has no id. If such a
// letter has no time except the timestamps of its replays, all its replays are one event.
//
// It is read from headers. Anyone who may write to the topic can forge headers, and stream
// processors copy them to derived records. So the adapter judges a record as the event of a replay
// only if Builder.Replay accepts it, which needs a seal made with the store's secret. Any other
// record is judged by its own id and time, as if the headers were absent.
//
// Forged headers have no effect:
//   - no claim is reopened, because the seal cannot be made without the secret;
//   - no event is skipped, because no other event's id or position can be put under the seal;
//   - the record that carries them is not skipped because of them either.
//
// Anyone who can read dead letters can copy a set of headers with its seal. A record with these
// headers on the letter's topic or on a retry topic, without an id or with the same id, then
// becomes the replay, whatever else it contains. It is handled once, as the dead-lettered event,
// and the true replay becomes a duplicate. The engine reopens a claim only if it is dead-lettered
// in that generation, and reopening ends the generation. This is also how a letter is replayed, so
// the right to read the dead letters and to write to the topic is the right to replay.
//
// A letter of another group or of another store, of which this one may be a restored copy, is not
// accepted. Its replay is also judged by its own id: an event with an id is found under that id,
// and an event that was identified by its position is a new record.
type Replay struct {
	Sealed Sealed
	stamp  stamp
	seal   []byte

	omitted []kgo.RecordHeader
}

// isLetter reports whether r has a header that every dead letter has.
func isLetter(r *kgo.Record) bool { return identify.LastHeader(r.Headers, dltVersion) != nil }

// replayOf reads the headers of a dead letter from r. It returns false if they are incomplete or not
// in the form that letter.record writes. The last of several headers with one name counts.
func replayOf(r *kgo.Record) (Replay, bool) {
	h := headerReader{headers: r.Headers}
	h.bad = string(h.value(dltVersion)) != dltVersion1
	p := Replay{
		stamp: stamp{Millis: h.number(dltTimestamp, 64), Type: named(&h, dltTimestampType, stampTypes[:])},
		Sealed: Sealed{
			Origin: engine.Origin{
				Topic:     string(h.value(dltTopic)),
				Partition: int32(h.number(dltPartition, 32)),
				Offset:    h.number(dltOffset, 64),
			},
			Store:       h.uuid(dltStore),
			Incarnation: h.unsigned(dltIncarnation),
			Group:       h.escaped(dltGroup),
			Scope:       h.escaped(dltScope),
			Event:       h.event(),
			Claimed:     identify.LastHeader(r.Headers, dltGeneration) != nil,
		},
	}
	if p.Sealed.Claimed {
		p.Sealed.Generation = h.unsigned(dltGeneration)
	}
	p.omitted = omittedOf(r)
	// a value in any other form matches no seal
	p.seal, _ = hex.DecodeString(string(identify.LastHeader(r.Headers, dltSeal)))
	if h.bad || p.Sealed.Origin.Partition < 0 || p.Sealed.Origin.Offset < 0 {
		return Replay{}, false
	}
	return p, true
}

// issuerOf returns the group and the scope of the consumer that issued the letter, as far as its headers
// can be read.
func issuerOf(r *kgo.Record) (group, scope string) {
	h := headerReader{headers: r.Headers}
	return h.escaped(dltGroup), h.escaped(dltScope)
}

// A headerReader reads the values of required headers, and records whether one is absent or
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

// escaped returns a value that is percent-encoded.
func (h *headerReader) escaped(name string) string {
	s, err := url.PathUnescape(string(h.value(name)))
	h.bad = h.bad || err != nil
	return s
}

func (h *headerReader) uuid(name string) uuid.UUID {
	id, err := uuid.ParseBytes(h.value(name))
	h.bad = h.bad || err != nil
	return id
}

func (h *headerReader) event() identify.Identity {
	var at time.Time
	err := at.UnmarshalText(h.value(dltEventTime))
	idRule := named(h, dltIDRule, identify.IDRules[:])
	timeRule := named(h, dltTimeRule, identify.TimeRules[:])
	event, ok := usable(identify.Restore([]byte(h.escaped(dltEventID)), at, idRule, timeRule))
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
