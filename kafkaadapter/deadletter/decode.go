package deadletter

import (
	"encoding/binary"
	"math"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A decoder reads values from a slice. After the first that does not fit it returns zeros.
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

// count returns a number of items of at least least bytes each: one that cannot be right allocates
// nothing.
func (d *decoder) count(least int) int { return int(d.uvarint(uint64(len(d.rest) / least))) }

func (d *decoder) headers() []kgo.RecordHeader {
	n := d.count(2)
	if d.bad || n == 0 {
		return nil
	}
	headers := make([]kgo.RecordHeader, n)
	for i := range headers {
		headers[i] = kgo.RecordHeader{Key: d.text(), Value: d.optional()}
	}
	return headers
}
