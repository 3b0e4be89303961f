package deadletter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/internal/keyspace"
)

// ErrStored means that pending dead letters in the store cannot be read.
var ErrStored = errors.New("hapax: the store's pending dead letters cannot be read")

// partBytes is the maximum size of the pending dead letters under one key of the store.
const partBytes = 1 << 20

// Pending are the dead letters of one partition that are stored and that the broker has not
// acknowledged.
//
// They are encoded as one byte string:
//
//	version u8 = 1
//	letters uvarint | for each: key | value | headers
//	headers = number uvarint | for each: name | value
//
// The length of a byte string precedes it as a uvarint. A key or a value can also be null in Kafka:
// its length plus 1 precedes it, or 0 for null. Varints are as in encoding/binary, in their
// shortest form.
//
// The string is stored in parts of at most 1 MiB, each under the partition's key and the part's
// number (u16, big endian); the first part begins with the number of parts (u16, big endian).
type Pending struct {
	Letters []*kgo.Record
	key     []byte
	parts   int
}

const pendingVersion = 1

// Put stores the pending letters of a partition under key, and under longer keys that begin with
// it. There must be none. It returns them for publishing after the commit.
func Put(tx *engine.Tx, key []byte, letters []*kgo.Record) (*Pending, error) {
	b := encodeLetters(letters)
	parts := (len(b) + partBytes - 1) / partBytes
	if parts > math.MaxUint16 {
		return nil, fmt.Errorf("%w: dead letters of %d bytes", engine.ErrLimit, len(b))
	}
	for i := range parts {
		part := b[i*partBytes : min(len(b), (i+1)*partBytes)]
		if i == 0 {
			part = append(binary.BigEndian.AppendUint16(nil, uint16(parts)), part...)
		}
		if err := driver.TxIn(tx, keyspace.Kafka).Put(partKey(key, i), part); err != nil {
			return nil, err
		}
	}
	return &Pending{Letters: slices.Clone(letters), key: key, parts: parts}, nil
}

// Get returns the pending letters under key, nil if there are none.
func Get(tx *engine.Tx, key []byte) (*Pending, error) {
	b, found, err := tx.Get(partKey(key, 0))
	if err != nil || !found {
		return nil, err
	}
	if len(b) < 2 {
		return nil, fmt.Errorf("%w: %d bytes", ErrStored, len(b))
	}
	p := &Pending{key: key, parts: int(binary.BigEndian.Uint16(b))}
	b = b[2:]
	for i := 1; i < p.parts; i++ {
		part, found, err := tx.Get(partKey(key, i))
		if err != nil {
			return nil, err
		}
		if !found {
			return nil, fmt.Errorf("%w: part %d of %d is missing", ErrStored, i, p.parts)
		}
		b = append(b, part...)
	}
	p.Letters, err = parseLetters(b)
	return p, err
}

// Delete removes the letters from the store.
func (p *Pending) Delete(tx *engine.Tx) error {
	for i := range p.parts {
		if err := driver.TxIn(tx, keyspace.Kafka).Delete(partKey(p.key, i)); err != nil {
			return err
		}
	}
	return nil
}

func partKey(key []byte, part int) []byte {
	return binary.BigEndian.AppendUint16(append(make([]byte, 0, len(key)+2), key...), uint16(part))
}

func encodeLetters(letters []*kgo.Record) []byte {
	dst := binary.AppendUvarint([]byte{pendingVersion}, uint64(len(letters)))
	for _, r := range letters {
		dst = appendOptional(appendOptional(dst, r.Key), r.Value)
		dst = binary.AppendUvarint(dst, uint64(len(r.Headers)))
		for i := range r.Headers {
			dst = appendOptional(appendString(dst, r.Headers[i].Key), r.Headers[i].Value)
		}
	}
	return dst
}

// parseLetters reads the result of encodeLetters. The letters share memory with b.
func parseLetters(b []byte) ([]*kgo.Record, error) {
	if len(b) == 0 || b[0] != pendingVersion {
		return nil, fmt.Errorf("%w: %d bytes in an unknown format: another version wrote them, with which they can be published, or the application writes keys that begin with kafkaadapter.KeyPrefix", ErrStored, len(b))
	}
	d := newDecoder(b[1:])
	var letters []*kgo.Record
	n := d.count(3)
	for range n {
		letters = append(letters, &kgo.Record{Key: d.Decoder.Optional(), Value: d.Decoder.Optional(), Headers: d.headers()})
	}
	d.Decoder.Bad = d.Decoder.Bad || n == 0
	if d.Decoder.Bad || len(d.Decoder.Rest) > 0 {
		return nil, fmt.Errorf("%w: %d bytes are damaged near byte %d", ErrStored, len(b), len(b)-len(d.Decoder.Rest))
	}
	return letters, nil
}

// appendOptional appends b so that nil and empty differ.
func appendOptional(dst, b []byte) []byte {
	if b == nil {
		return append(dst, 0)
	}
	return append(binary.AppendUvarint(dst, uint64(len(b))+1), b...)
}
