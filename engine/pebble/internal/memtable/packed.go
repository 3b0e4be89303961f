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
//	+-------+-----+--------+-----+--------+   count times: +----------+----------------------+------+--------+
//	| count | len | prefix | len | shared |                | tail len | record len + 1, or 0 | tail | record |
//	+-------+-----+--------+-----+--------+                +----------+----------------------+------+--------+
//
// count is not 0; a record of length 0 means the removal of the claim. Shared are all leading bytes
// that the tails of the run have in common, and which they do not repeat. Count and lengths are uvarints.

// AppendPacked appends the claims of a batch.
func AppendPacked(dst []byte, claims []storage.ClaimWrite) []byte {
	for len(claims) > 0 {
		prefix, n := firstBucket(claims)
		dst = binary.AppendUvarint(dst, uint64(n))
		dst = binary.AppendUvarint(dst, uint64(len(prefix)))
		dst = append(dst, prefix...)
		shared := sharedTail(claims[:n], len(prefix))
		dst = binary.AppendUvarint(dst, uint64(len(shared)))
		dst = append(dst, shared...)
		for i := range claims[:n] {
			w := &claims[i]
			tail := w.Key[len(prefix)+len(shared):]
			dst = binary.AppendUvarint(dst, uint64(len(tail)))
			dst = binary.AppendUvarint(dst, recordLength(w.Record))
			dst = append(append(dst, tail...), w.Record...)
		}
		claims = claims[n:]
	}
	return dst
}

// sharedTail returns the leading bytes that all tails of a bucket's claims share.
func sharedTail(claims []storage.ClaimWrite, prefix int) []byte {
	shared := claims[0].Key[prefix:]
	for i := 1; i < len(claims) && len(shared) > 0; i++ {
		if tail := claims[i].Key[prefix:]; !bytes.HasPrefix(tail, shared) {
			shared = shared[:sharedBytes(tail, shared)]
		}
	}
	return shared
}

var errPacked = errors.New("a packed batch is not as it would be written")

// CheckPacked returns an error if b is damaged.
func CheckPacked(b []byte) error { return eachPacked(b, func([]byte) bool { return true }, nil) }

// eachPacked calls run for each run, and claim for each of its claims unless run says to skip them.
// Record is nil for a removal. A tail is valid until the next call; the other slices share memory
// with b.
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
		if d.Bad = !eachOfRun(&d, n, rest != nil, run(prefix), claim); d.Bad {
			break
		}
	}
	if d.Bad {
		return fmt.Errorf("%w: %w", storage.ErrDamaged, errPacked)
	}
	return nil
}

// eachOfRun calls claim for each of n claims of a run, unless skip is set, and reports whether they
// are as they would be written. Only the claims of a bucket have tails.
func eachOfRun(d *decode.Decoder, n uint64, hasTails, skip bool, claim func(tail, record []byte)) bool {
	key := d.Bytes()
	shared := len(key)
	var first []byte
	alike := true // so far, all tails go on with the same byte, which would then be shared
	for i := range n {
		tail, record := packedClaim(d)
		if i == 0 {
			first = tail
		}
		alike = alike && len(tail) > 0 && tail[0] == first[0]
		if key = append(key[:shared], tail...); d.Bad || !hasTails && len(key) > 0 {
			return false
		}
		if !skip {
			claim(key, record)
		}
	}
	return !alike
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
