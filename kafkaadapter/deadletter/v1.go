package deadletter

import (
	"math"
	"time"

	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// letterV1 reads a pending letter as earlier versions stored it. The letter shares memory with the
// decoder's bytes.
//
//	version u8 = 1
//	topic | partition varint | offset varint               where it was first
//	timestamp varint, Unix ms | timestamp type varint
//	key | value                                            optional
//	headers uvarint | for each: name | value
//	reason | error type | error | attempts uvarint
//	group | scope | generation uvarint | id                the sealed part
//	unless the id is empty:
//	  time, Unix seconds, varint | nanoseconds uvarint | id rule u8 | time rule u8
//	  seal                                                 optional
//	store 16 | incarnation uvarint
func (d *decoder) letterV1() *letter {
	l := new(letter)
	l.Origin.Topic = d.text()
	l.Origin.Partition = int32(d.varint(math.MinInt32, math.MaxInt32))
	l.Origin.Offset = d.Varint()
	l.Stamp.Millis = d.Varint()
	l.Stamp.Type = stampType(d.varint(int64(noTimestamp), int64(logAppendTime)))
	l.Key = d.Optional()
	l.Value = d.Optional()
	l.Headers = d.headers()
	l.Reason, l.ErrorType, l.Error = Reason(d.text()), d.text(), d.text()
	l.Attempts = uint32(d.uvarint(math.MaxUint32))
	l.Group, l.Scope = d.text(), d.text()
	l.Generation = d.Uvarint()
	if id := d.Bytes(); len(id) > 0 {
		l.Event = d.event(id)
		l.Seal = d.Optional()
	}
	copy(l.Store[:], d.Take(uint64(len(l.Store))))
	l.Incarnation = d.Uvarint()
	return l
}

func (d *decoder) event(id []byte) identify.Identity {
	seconds := d.Varint()
	nanoseconds := d.uvarint(uint64(time.Second - 1))
	rules := d.Take(2)
	if d.Bad {
		return identify.Identity{}
	}
	event, ok := usable(identify.Restore(id, time.Unix(seconds, int64(nanoseconds)), identify.IDRule(rules[0]), identify.TimeRule(rules[1])))
	d.Bad = !ok
	return event
}
