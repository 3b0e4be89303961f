// Package decode reads binary fields from a slice.
package decode

import (
	"encoding/binary"
	"math"

	"github.com/hapax-dev/hapax/weekbucket"
)

// A Decoder reads fields from the start of Rest. After the first field that does not fit, it sets
// Bad and returns zeros. The returned slices share memory with Rest.
type Decoder struct {
	Rest []byte
	Bad  bool
}

// Take returns the next n bytes.
func (d *Decoder) Take(n uint64) []byte {
	if d.Bad || n > uint64(len(d.Rest)) {
		d.Bad = true
		return nil
	}
	b := d.Rest[:n:n]
	d.Rest = d.Rest[n:]
	return b
}

// Uvarint returns a number as binary.AppendUvarint encodes it; a longer form is bad.
func (d *Decoder) Uvarint() uint64 {
	v, n := binary.Uvarint(d.Rest)
	if !d.number(n) {
		return 0
	}
	return v
}

// Varint returns a number as binary.AppendVarint encodes it; a longer form is bad.
func (d *Decoder) Varint() int64 {
	v, n := binary.Varint(d.Rest)
	if !d.number(n) {
		return 0
	}
	return v
}

func (d *Decoder) number(n int) bool {
	if d.Bad || n <= 0 || n > 1 && d.Rest[n-1] == 0 {
		d.Bad = true
		return false
	}
	d.Rest = d.Rest[n:]
	return true
}

// Bytes returns a slice whose length precedes it.
func (d *Decoder) Bytes() []byte { return d.Take(d.Uvarint()) }

// Optional returns a slice whose length plus 1 precedes it, or nil after 0.
func (d *Decoder) Optional() []byte {
	n := d.Uvarint()
	if n == 0 {
		return nil
	}
	return d.Take(n - 1)
}

// Byte returns the next byte.
func (d *Decoder) Byte() byte {
	if b := d.Take(1); b != nil {
		return b[0]
	}
	return 0
}

// Uint16 returns a number of 2 bytes, big endian.
func (d *Decoder) Uint16() uint16 {
	if b := d.Take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

// Uint32 returns a number of 4 bytes, big endian.
func (d *Decoder) Uint32() uint32 {
	if b := d.Take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// Uint64 returns a number of 8 bytes, big endian.
func (d *Decoder) Uint64() uint64 {
	if b := d.Take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// Week returns a week as a key contains it.
func (d *Decoder) Week() weekbucket.Week {
	week, err := weekbucket.FromKey(d.Take(weekbucket.KeySize))
	d.Bad = d.Bad || err != nil
	return week
}

// Count returns the number of following items, which occupy at least size bytes each. A number that
// does not fit is bad, so that a hostile number causes no allocation.
func (d *Decoder) Count(size int) int {
	n := d.Uvarint()
	if n > math.MaxInt32 || int(n) > len(d.Rest)/size {
		d.Bad = true
		return 0
	}
	return int(n)
}
