package pebble

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hapax-dev/hapax/engine/storage"
)

// The claims of a batch are one value in Pebble, kept until they are in tables. It is a sequence of
// runs, each of adjacent claims in one bucket, in the order of the batch:
//
//	+---------------+------------+--------+   count times: +----------+------------------------+------+--------+
//	| count uvarint | len uvarint| prefix |                | tail len | record len + 1, or 0   | tail | record |
//	+---------------+------------+--------+                +----------+------------------------+------+--------+
//
// count is not 0; a record of length 0 means the removal of the claim. Lengths are uvarints.

// appendPacked appends the claims of a batch.
func appendPacked(dst []byte, claims []storage.ClaimWrite) []byte {
	for len(claims) > 0 {
		prefix, _ := splitPrefix(claims[0].Key)
		n := 1
		for n < len(claims) && sameBucket(prefix, claims[n].Key) {
			n++
		}
		dst = binary.AppendUvarint(dst, uint64(n))
		dst = binary.AppendUvarint(dst, uint64(len(prefix)))
		dst = append(dst, prefix...)
		for i := range claims[:n] {
			w := &claims[i]
			tail := w.Key[len(prefix):]
			dst = binary.AppendUvarint(dst, uint64(len(tail)))
			dst = binary.AppendUvarint(dst, recordLength(w.Record))
			dst = append(append(dst, tail...), w.Record...)
		}
		claims = claims[n:]
	}
	return dst
}

// sameBucket reports whether a key belongs to the bucket with that prefix.
func sameBucket(prefix, key []byte) bool {
	if !bytes.HasPrefix(key, prefix) {
		return false
	}
	own, _ := splitPrefix(key) // what begins with a prefix that no engine made may be in a bucket of its own
	return len(own) == len(prefix)
}

var errPacked = errors.New("a packed batch is not as it would be written")

// eachPacked calls run for each run, and claim for each of its claims unless run says to skip them.
// Record is nil for a removal. The slices are parts of b.
func eachPacked(b []byte, run func(prefix []byte) (skip bool), claim func(tail, record []byte)) error {
	d := unpacker{rest: b}
	var last []byte
	for len(d.rest) > 0 && !d.bad {
		n := d.uvarint()
		prefix := d.take(d.uvarint())
		own, rest := splitPrefix(prefix)
		if d.bad || n == 0 || len(own) < len(prefix) || last != nil && bytes.Equal(last, prefix) {
			d.bad = true
			break
		}
		last = prefix
		skip := run(prefix)
		for ; n > 0; n-- {
			tail, record := d.claim()
			if d.bad = d.bad || rest == nil && len(tail) > 0; d.bad {
				break
			}
			if !skip {
				claim(tail, record)
			}
		}
	}
	if d.bad {
		return fmt.Errorf("%w: %w", storage.ErrDamaged, errPacked)
	}
	return nil
}

// An unpacker takes numbers and bytes off a slice. After the first that is not there, bad stays.
type unpacker struct {
	rest []byte
	bad  bool
}

func (d *unpacker) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 || n > 1 && d.rest[n-1] == 0 { // there is one encoding, the shortest
		d.bad = true
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *unpacker) claim() (tail, record []byte) {
	t, r := d.uvarint(), d.uvarint()
	tail = d.take(t)
	if r > 0 {
		record = d.take(r - 1)
	}
	return tail, record
}

// take returns n bytes, never nil unless it fails.
func (d *unpacker) take(n uint64) []byte {
	if d.bad || n > uint64(len(d.rest)) {
		d.bad = true
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}
