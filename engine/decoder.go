package engine

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/hapax-dev/hapax/weekbucket"
)

var errShort = errors.New("truncated or overlong")

// A decoder reads numbers and strings from the start of a slice. After the first error, it returns
// zeros and keeps the error. Unlike that of internal/decode, it reads numbers of a fixed size and
// weeks, and its errors say what is wrong.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) take(n uint64) []byte {
	if d.err != nil || n > uint64(len(d.rest)) {
		d.err = errShort
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if d.err != nil || !shortest(d.rest, n) {
		d.err = errShort
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.rest)
	if d.err != nil || !shortest(d.rest, n) {
		d.err = errShort
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// shortest reports whether b begins with a varint of n bytes in its shortest form. Only such
// varints are written.
func shortest(b []byte, n int) bool { return n == 1 || n > 1 && b[n-1] != 0 }

func (d *decoder) uint16() uint16 {
	if b := d.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (d *decoder) uint32() uint32 {
	if b := d.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) uint64() uint64 {
	if b := d.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) week() weekbucket.Week {
	week, err := weekbucket.FromKey(d.take(weekbucket.KeySize))
	if err != nil {
		d.err = errShort
	}
	return week
}

// bytes reads a byte string after its length.
func (d *decoder) bytes() []byte { return d.take(d.uvarint()) }

// count reads the number of items that occupy at least size bytes each, so that a hostile count
// allocates nothing.
func (d *decoder) count(size int) int {
	n := d.uvarint()
	if n > math.MaxInt32 || int(n) > len(d.rest)/size {
		d.err = errShort
		return 0
	}
	return int(n)
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}
