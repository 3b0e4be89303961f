package filters

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/decode"
)

// A journal entry has, for one batch, the hashes of the claims that it put or removed, so that
// filters and counts can be updated after a crash without a scan of the claims:
//
//	+-----------------+-------------+---------------+-----------+----------------+
//	| count uvarint   | scope uvarint | week, 4 bytes | sign 1    | count hashes, 8 bytes each |   repeated
//	+-----------------+-------------+---------------+-----------+----------------+
//
// scope is the scope's number in the table of names. sign is 1 for claims that were put and 0 for
// claims that were removed. Hashes are big endian: XXH3-64 of the claim's key with the store's
// seed. Sign 2, with the single hash 0, means that the bucket was dropped while its week is
// retained: earlier entries of the bucket are void, and the scope's number may be assigned to
// another scope.
const (
	signRemoved = 0
	signPut     = 1
	signDropped = 2
)

// An Entry is the journal entry of one batch. The zero value is empty.
type Entry struct {
	runs []journalRun
	at   map[runID]int
	last int
}

type runID struct {
	bucket Bucket
	sign   byte
}

type journalRun struct {
	runID  runID
	hashes []uint64
}

// Reset empties the entry.
func (e *Entry) Reset() {
	e.runs = e.runs[:0]
	clear(e.at)
}

func (e *Entry) add(b Bucket, sign byte, hash uint64) {
	id := runID{b, sign}
	if len(e.runs) > 0 && e.runs[e.last].runID == id {
		e.runs[e.last].hashes = append(e.runs[e.last].hashes, hash)
		return
	}
	if e.at == nil {
		e.at = make(map[runID]int)
	}
	i, ok := e.at[id]
	if !ok {
		i = len(e.runs)
		if i < cap(e.runs) {
			e.runs = e.runs[:i+1]
			e.runs[i].runID, e.runs[i].hashes = id, e.runs[i].hashes[:0]
		} else {
			e.runs = append(e.runs, journalRun{runID: id})
		}
		e.at[id] = i
	}
	e.last = i
	e.runs[i].hashes = append(e.runs[i].hashes, hash)
}

// AppendTo appends the entry in its stored form.
func (e *Entry) AppendTo(dst []byte) []byte {
	for i := range e.runs {
		r := &e.runs[i]
		dst = binary.AppendUvarint(dst, uint64(len(r.hashes)))
		dst = binary.AppendUvarint(dst, r.runID.bucket.Scope)
		dst = r.runID.bucket.Week.AppendKey(dst)
		dst = append(dst, r.runID.sign)
		for _, h := range r.hashes {
			dst = binary.BigEndian.AppendUint64(dst, h)
		}
	}
	return dst
}

// readEntry calls fn for each run of an entry, with the run's encoded hashes.
func readEntry(entry []byte, fn func(id runID, hashes []byte)) error {
	d := decode.Decoder{Rest: entry}
	for len(d.Rest) > 0 && !d.Bad {
		n := d.Count(8)
		id := runID{bucket: Bucket{Scope: d.Uvarint(), Week: d.Week()}, sign: d.Byte()}
		hashes := d.Take(8 * uint64(n))
		if d.Bad || n == 0 || id.sign > signDropped || id.sign == signDropped && !bytes.Equal(hashes, make([]byte, 8)) {
			break
		}
		fn(id, hashes)
		if len(d.Rest) == 0 {
			return nil
		}
	}
	if len(entry) == 0 {
		return nil
	}
	return fmt.Errorf("%w: journal entry of %d bytes", storage.ErrDamaged, len(entry))
}

// appendHashes decodes the hashes of a run and appends them.
func appendHashes(dst []uint64, run []byte) []uint64 {
	for ; len(run) >= 8; run = run[8:] {
		dst = append(dst, binary.BigEndian.Uint64(run))
	}
	return dst
}
