// Package entry encodes the entries of an outbox and their keys. The engine writes entries, the
// relay of package outbox reads and moves them. The bytes are part of the format on disk
// (docs/format.md).
package entry

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/zeebo/xxh3"

	"github.com/hapax-dev/hapax/internal/decode"
)

// An Entry is a message that waits to be published, and the outcome of the attempts to publish it.
// Times are Unix milliseconds.
type Entry struct {
	Attempts  uint64 // failed attempts
	Refused   uint64 // failed attempts after which another one is unlikely to succeed
	NotBefore int64  // the earliest time of the next attempt; 0 before the first failure
	LastError string // of the last attempt

	ID          string
	Created     int64
	Due         int64 // the earliest time of publication; Redrive may bring it forward
	Time        int64 // the event time: set by the application, or the later one of Created and the first Due
	Stamped     bool  // Time is also the timestamp of the record, which is otherwise the time of publication
	Topic       string
	Partition   int32 // NoPartition: the partitioner of the client decides
	OrderingKey []byte
	Key, Value  []byte // nil and empty differ
	Headers     []Header
}

// A Header is a header of a Kafka record.
type Header struct {
	Key   string
	Value []byte
}

// NoPartition is the Entry.Partition of an entry without a partition.
const NoPartition = -1

// version is the first byte of an encoded entry:
//
//	version u8 | attempts uvarint | refused uvarint | not before varint | last error bytes | id bytes | created varint | due varint |
//	time varint | stamped u8 (0 or 1) | topic bytes | partition varint | ordering key bytes | key nbytes | value nbytes |
//	headers uvarint, of each: key bytes, value nbytes
//
// bytes is a uvarint length and that many bytes; nbytes is a uvarint length + 1 and that many
// bytes, or 0 for nil.
const version = 1

// ErrVersion means that a newer build encoded the entry.
var ErrVersion = errors.New("outbox entry of a newer version")

var errMalformed = errors.New("malformed outbox entry")

// Append appends the encoded entry.
func (e *Entry) Append(b []byte) []byte {
	b = append(b, version)
	b = binary.AppendUvarint(b, e.Attempts)
	b = binary.AppendUvarint(b, e.Refused)
	b = binary.AppendVarint(b, e.NotBefore)
	b = appendString(b, e.LastError)
	b = appendString(b, e.ID)
	b = binary.AppendVarint(b, e.Created)
	b = binary.AppendVarint(b, e.Due)
	b = binary.AppendVarint(b, e.Time)
	b = append(b, flag(e.Stamped))
	b = appendString(b, e.Topic)
	b = binary.AppendVarint(b, int64(e.Partition))
	b = appendString(b, e.OrderingKey)
	b = appendNullable(b, e.Key)
	b = appendNullable(b, e.Value)
	b = binary.AppendUvarint(b, uint64(len(e.Headers)))
	for _, h := range e.Headers {
		b = appendString(b, h.Key)
		b = appendNullable(b, h.Value)
	}
	return b
}

// Size returns an upper bound of the length of the encoded entry.
func (e *Entry) Size() int {
	n := 13*binary.MaxVarintLen64 + len(e.LastError) + len(e.ID) + len(e.Topic) + len(e.OrderingKey) + len(e.Key) + len(e.Value)
	for _, h := range e.Headers {
		n += 2*binary.MaxVarintLen32 + len(h.Key) + len(h.Value)
	}
	return n
}

// Bytes returns the size with which the entry counts towards the limit of the outbox. It does not
// change while the entry exists.
func (e *Entry) Bytes() uint64 {
	n := entryBytes + len(e.ID) + len(e.Topic) + len(e.OrderingKey) + len(e.Key) + len(e.Value)
	for _, h := range e.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return uint64(n)
}

// entryBytes is the size of an entry without its message.
const entryBytes = 128

// Parse decodes an entry. Its slices share memory with b. Bytes that Append would not write are an error.
func Parse(b []byte) (Entry, error) {
	if len(b) > 0 && b[0] > version {
		return Entry{}, fmt.Errorf("%w: %d", ErrVersion, b[0])
	}
	d := decode.Decoder{Rest: b}
	var e Entry
	if d.Take(1); d.Bad || b[0] == 0 {
		return Entry{}, errMalformed
	}
	e.Attempts, e.Refused, e.NotBefore, e.LastError = d.Uvarint(), d.Uvarint(), d.Varint(), string(d.Bytes())
	e.ID, e.Created, e.Due = string(d.Bytes()), d.Varint(), d.Varint()
	e.Time = d.Varint()
	stamped := d.Take(1)
	if d.Bad || stamped[0] > 1 {
		return Entry{}, errMalformed
	}
	e.Stamped = stamped[0] == 1
	e.Topic = string(d.Bytes())
	partition := d.Varint()
	e.Partition = int32(partition)
	if e.OrderingKey = d.Bytes(); len(e.OrderingKey) == 0 {
		e.OrderingKey = nil
	}
	e.Key, e.Value = d.Optional(), d.Optional()
	headers := d.Uvarint()
	if headers > uint64(len(d.Rest))/2 {
		return Entry{}, errMalformed
	}
	if headers > 0 {
		e.Headers = make([]Header, headers)
	}
	for i := range e.Headers {
		e.Headers[i] = Header{string(d.Bytes()), d.Optional()}
	}
	if d.Bad || len(d.Rest) > 0 || partition < NoPartition || partition > math.MaxInt32 {
		return Entry{}, errMalformed
	}
	return e, nil
}

// A Group is a set of entries that are published in order.
type Group [16]byte

// Group returns the group of an entry: that of its ordering key, or else that of its topic and key.
// An entry with neither is a separate group.
func (e *Entry) Group() Group {
	var b []byte
	switch {
	case e.OrderingKey != nil:
		b = append(append(b, 'o'), e.OrderingKey...)
	case len(e.Key) > 0:
		b = append(appendString(append(b, 'k'), e.Topic), e.Key...)
	default:
		b = append(append(b, 'i'), e.ID...)
	}
	return xxh3.Hash128(b).Bytes()
}

func flag(set bool) byte {
	if set {
		return 1
	}
	return 0
}

func appendString[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendNullable(b, s []byte) []byte {
	if s == nil {
		return append(b, 0)
	}
	return append(binary.AppendUvarint(b, uint64(len(s))+1), s...)
}
