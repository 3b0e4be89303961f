package kafkaadapter

import (
	"bytes"
	"crypto/hmac"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
)

// A replay is what the headers of a dead letter that was sent back say of it. They are only headers: whoever may write
// to the topic can make them up, and programs on the way copy them to records of their own. So a record is judged as a
// replay, under the id, time and generation told here, only if reopens says so; they lead to the claim then even if the
// id was a position. Any other record is judged by its own id and time, as if the headers were not there.
//
// Whoever makes headers up gains nothing by it:
//   - no claim is reopened, since the seal cannot be made without the store's secret;
//   - no event is skipped, since nobody can put another event's id or position under the seal;
//   - the record that carries them is not skipped for their sake either.
//
// Whoever reads dead letters can copy a sealed set. On a record without an id of its own, or with the same one, it makes
// that record the replay, whatever else is in it: it is handled for the dead-lettered event, once, and the true replay
// is a duplicate then. The engine reopens a claim only if it is dead-lettered in that generation, and reopening ends the
// generation. To send a letter back is to do just this, so the right to read the dead letters and to write to the topic
// is the right to replay.
//
// The letter of another group, or of a store that was lost, has no seal that fits. Its replay is judged by its own id
// too: an event that has one is recognised by it, one that was known by its position is a new record.
type replay struct {
	Origin engine.Origin
	Stamp  stamp
	sealed
	Seal []byte
}

// isLetter reports whether r has a header that every dead letter has.
func isLetter(r *kgo.Record) bool { return string(lastHeader(r.Headers, dltVersion)) == dltVersion1 }

// replayOf reads the headers of a dead letter from r. It is false if there are none, and if they are incomplete or not of
// the form that letter.record writes. Of a header that is there more than once the last one counts. The id is a part of
// the record.
func replayOf(r *kgo.Record) (replay, bool) {
	if !isLetter(r) {
		return replay{}, false
	}
	h := headerReader{headers: r.Headers}
	p := replay{
		Origin: engine.Origin{
			Topic:     string(h.value(dltTopic)),
			Partition: int32(h.number(dltPartition, 32)),
			Offset:    h.number(dltOffset, 64),
		},
		Stamp: stamp{Millis: h.number(dltTimestamp, 64), Type: named(&h, dltTimestampType, stampTypes[:])},
		sealed: sealed{
			Group:      string(h.value(dltGroup)),
			Scope:      string(h.value(dltScope)),
			Event:      h.event(),
			Generation: h.unsigned(dltGeneration),
		},
	}
	p.Seal, _ = hex.DecodeString(string(lastHeader(r.Headers, dltSeal))) // what is no seal fits nothing
	if h.bad || p.Origin.Partition < 0 || p.Origin.Offset < 0 {
		return replay{}, false
	}
	return p, true
}

// reopens reports whether r, which carries p, is to be judged as the replay of a dead letter of this group and scope. own
// is what Identify.of says of r, zero if that is ErrNoID.
//
// A record that has another id than the letter's is not its replay: a program that made it out of the replay has copied
// the headers, as stream processors do. A record without an id is believed on the letter's own topic only, for the same
// reason.
func (p *replay) reopens(r *kgo.Record, own identity, group, scope string, secret []byte) bool {
	if p.Group != group || p.Scope != scope || len(secret) == 0 || !hmac.Equal(p.Seal, p.seal(secret)) {
		return false
	}
	if own.IDRule == 0 || own.IDRule == IDPosition {
		return p.Event.IDRule == IDPosition && p.Origin.Topic == r.Topic
	}
	return bytes.Equal(p.Event.ID, own.ID)
}

// A headerReader reads the values of headers that have to be there, and remembers if one is not or makes no sense.
type headerReader struct {
	headers []kgo.RecordHeader
	bad     bool
}

func (h *headerReader) value(name string) []byte {
	v := lastHeader(h.headers, name)
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

func (h *headerReader) event() identity {
	var at time.Time
	err := at.UnmarshalText(h.value(dltEventTime))
	idRule := named(h, dltIDRule, IDRules[:])
	timeRule := named(h, dltTimeRule, TimeRules[:])
	event, ok := judged(h.value(dltEventID), at, idRule, timeRule)
	h.bad = h.bad || err != nil || !ok
	return event
}

// named returns the one of all that the header names.
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
