package kafkaadapter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A dead letter in the store, until the broker has it:
//
//	version u8 = 1
//	topic | partition varint | offset varint               where it was first
//	timestamp varint, Unix ms | timestamp type varint
//	key | value                                            or nothing, see below
//	headers uvarint | for each: name | value
//	reason | error type | error | attempts uvarint
//	group | scope | generation uvarint | id                what is sealed
//	unless the id is empty:
//	  time, Unix seconds, varint | nanoseconds uvarint | id rule u8 | time rule u8
//	  seal                                                 or nothing
//	store 16 | incarnation uvarint
//
// A byte string has its length as a uvarint before it. One that can be nothing (nil, as Kafka has it apart from empty)
// has its length and 1, and 0 for nothing. Varints are as in encoding/binary, in their shortest form. A letter may have
// any size.
const letterCode = 1

// errLetter is wrapped by all errors of parseLetter.
var errLetter = errors.New("hapax: a stored dead letter cannot be read")

func appendLetter(dst []byte, l *letter) []byte {
	dst = append(dst, letterCode)
	dst = appendString(dst, l.Origin.Topic)
	dst = binary.AppendVarint(dst, int64(l.Origin.Partition))
	dst = binary.AppendVarint(dst, l.Origin.Offset)
	dst = binary.AppendVarint(dst, l.Stamp.Millis)
	dst = binary.AppendVarint(dst, int64(l.Stamp.Type))
	dst = appendOptional(dst, l.Key)
	dst = appendOptional(dst, l.Value)
	dst = binary.AppendUvarint(dst, uint64(len(l.Headers)))
	for i := range l.Headers {
		dst = appendOptional(appendString(dst, l.Headers[i].Key), l.Headers[i].Value)
	}
	dst = appendString(appendString(appendString(dst, string(l.Reason)), l.ErrorType), l.Error)
	dst = binary.AppendUvarint(dst, uint64(l.Attempts))
	dst = appendSealed(dst, &l.sealed)
	if len(l.Event.ID) > 0 {
		dst = appendOptional(dst, l.Seal)
	}
	dst = append(dst, l.Store[:]...)
	return binary.AppendUvarint(dst, l.Incarnation)
}

// parseLetter reads what appendLetter wrote, and nothing else. The letter shares its bytes with b.
func parseLetter(b []byte) (*letter, error) {
	if len(b) == 0 || b[0] != letterCode {
		return nil, fmt.Errorf("%w: %d bytes of an unknown form: a newer build wrote it, or something else writes keys that begin with kafkaadapter.KeyPrefix", errLetter, len(b))
	}
	d := decoder{rest: b[1:]}
	l := new(letter)
	l.Origin.Topic = d.text()
	l.Origin.Partition = int32(d.varint(math.MinInt32, math.MaxInt32))
	l.Origin.Offset = d.varint(math.MinInt64, math.MaxInt64)
	l.Stamp.Millis = d.varint(math.MinInt64, math.MaxInt64)
	l.Stamp.Type = stampType(d.varint(int64(noTimestamp), int64(logAppendTime)))
	l.Key = d.optional()
	l.Value = d.optional()
	l.Headers = d.headers()
	l.Reason, l.ErrorType, l.Error = letterReason(d.text()), d.text(), d.text()
	l.Attempts = uint32(d.uvarint(math.MaxUint32))
	l.Group, l.Scope = d.text(), d.text()
	l.Generation = d.uvarint(math.MaxUint64)
	if id := d.bytes(); len(id) > 0 {
		l.Event = d.event(id)
		l.Seal = d.optional()
	}
	copy(l.Store[:], d.take(uint64(len(l.Store))))
	l.Incarnation = d.uvarint(math.MaxUint64)
	if d.bad || len(d.rest) > 0 {
		return nil, fmt.Errorf("%w: its %d bytes are damaged near byte %d", errLetter, len(b), len(b)-len(d.rest))
	}
	return l, nil
}

// A decoder takes values off a slice. After the first that does not fit it returns zeros.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) take(n uint64) []byte {
	if d.bad || n > uint64(len(d.rest)) {
		d.bad = true
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) uvarint(most uint64) uint64 {
	v, n := binary.Uvarint(d.rest)
	if !d.varintFits(n) || v > most {
		d.bad = true
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) varint(least, most int64) int64 {
	v, n := binary.Varint(d.rest)
	if !d.varintFits(n) || v < least || v > most {
		d.bad = true
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// varintFits reports whether rest begins with a varint of n bytes that needs all of them.
func (d *decoder) varintFits(n int) bool { return !d.bad && (n == 1 || n > 1 && d.rest[n-1] != 0) }

func (d *decoder) bytes() []byte { return d.take(d.uvarint(math.MaxUint64)) }
func (d *decoder) text() string  { return string(d.bytes()) }

func (d *decoder) optional() []byte {
	n := d.uvarint(math.MaxUint64)
	if n == 0 {
		return nil
	}
	return d.take(n - 1)
}

func (d *decoder) headers() []kgo.RecordHeader {
	n := d.uvarint(uint64(len(d.rest)) / 2) // each has two bytes at least, so that a made up number allocates nothing
	if d.bad || n == 0 {
		return nil
	}
	headers := make([]kgo.RecordHeader, n)
	for i := range headers {
		headers[i] = kgo.RecordHeader{Key: d.text(), Value: d.optional()}
	}
	return headers
}

func (d *decoder) event(id []byte) identity {
	seconds := d.varint(math.MinInt64, math.MaxInt64)
	nanoseconds := d.uvarint(uint64(time.Second - 1))
	rules := d.take(2)
	if d.bad {
		return identity{}
	}
	event, ok := judged(id, time.Unix(seconds, int64(nanoseconds)), IDRule(rules[0]), TimeRule(rules[1]))
	d.bad = !ok
	return event
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// appendOptional appends b so that nothing can be told from nothing in it.
func appendOptional(dst, b []byte) []byte {
	if b == nil {
		return append(dst, 0)
	}
	return append(binary.AppendUvarint(dst, uint64(len(b))+1), b...)
}
