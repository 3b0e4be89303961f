package memtable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/decode"
)

// The claims of a batch are stored as one value until they are in tables. The value is a sequence
// of runs, each with adjacent claims of one bucket, in the order of the batch:
//
//	+---------------+------------+--------+   count times: +----------+------------------------+------+--------+
//	| count uvarint | len uvarint| prefix |                | tail len | record len + 1, or 0   | tail | record |
//	+---------------+------------+--------+                +----------+------------------------+------+--------+
//
// count is not 0; a record of length 0 means the removal of the claim. Lengths are uvarints.

// AppendPacked appends the claims of a batch.
func AppendPacked(dst []byte, claims []storage.ClaimWrite) []byte {
	for len(claims) > 0 {
		prefix, n := firstBucket(claims)
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

var errPacked = errors.New("a packed batch is not as it would be written")

// CheckPacked returns an error if b is damaged.
func CheckPacked(b []byte) error { return eachPacked(b, func([]byte) bool { return true }, nil) }

// eachPacked calls run for each run, and claim for each of its claims unless run says to skip them.
// Record is nil for a removal. The slices share memory with b.
func eachPacked(b []byte, run func(prefix []byte) (skip bool), claim func(tail, record []byte)) error {
	d := decode.Decoder{Rest: b}
	var last []byte
	for len(d.Rest) > 0 && !d.Bad {
		n := d.Uvarint()
		prefix := d.Take(d.Uvarint())
		own, rest := SplitPrefix(prefix)
		if d.Bad || n == 0 || len(own) < len(prefix) || last != nil && bytes.Equal(last, prefix) {
			d.Bad = true
			break
		}
		last = prefix
		skip := run(prefix)
		for ; n > 0; n-- {
			tail, record := packedClaim(&d)
			if d.Bad = d.Bad || rest == nil && len(tail) > 0; d.Bad {
				break
			}
			if !skip {
				claim(tail, record)
			}
		}
	}
	if d.Bad {
		return fmt.Errorf("%w: %w", storage.ErrDamaged, errPacked)
	}
	return nil
}

// packedClaim reads the tail of a claim's key and its record, nil for a removal.
func packedClaim(d *decode.Decoder) (tail, record []byte) {
	t, r := d.Uvarint(), d.Uvarint()
	tail = d.Take(t)
	if r > 0 {
		record = d.Take(r - 1)
	}
	return tail, record
}

// recordLength returns the length field of a record: its length plus one, or 0 for a removal.
func recordLength(record []byte) uint64 {
	if record == nil {
		return 0
	}
	return uint64(len(record)) + 1
}
