package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/decode"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A journal entry has, for one batch, the hashes of the claims that it put or removed, so that
// filters and counts can be updated after a crash without a scan of the claims:
//
//	+-----------------+-------------+---------------+-----------+----------------+
//	| count uvarint   | scope uvarint | week, 4 bytes | sign 1    | count hashes, 8 bytes each |   repeated
//	+-----------------+-------------+---------------+-----------+----------------+
//
// scope is the scope's number in the table of names, sign is 1 for claims that were put and 0 for
// claims that were removed, hashes are big endian: XXH3-64 of the claim's key under the store's
// seed. Sign 2, with the single hash 0, says that the bucket was dropped while its week is
// retained: nothing before it counts, and the scope's number may be assigned to another scope.
const (
	journalRemoved = 0
	journalPut     = 1
	journalDropped = 2
)

// bucketRef is a bucket with its scope's number.
type bucketRef struct {
	scope uint64
	week  weekbucket.Week
}

// A journalWriter builds the entry of one batch. The zero value is ready.
type journalWriter struct {
	runs []journalRun
	at   map[runID]int
	last int
}

type runID struct {
	bucketRef bucketRef
	sign      byte
}

type journalRun struct {
	runID  runID
	hashes []uint64
}

func (w *journalWriter) reset() {
	w.runs = w.runs[:0]
	clear(w.at)
}

func (w *journalWriter) add(ref bucketRef, sign byte, hash uint64) {
	id := runID{ref, sign}
	if len(w.runs) > 0 && w.runs[w.last].runID == id {
		w.runs[w.last].hashes = append(w.runs[w.last].hashes, hash)
		return
	}
	if w.at == nil {
		w.at = make(map[runID]int)
	}
	i, ok := w.at[id]
	if !ok {
		i = len(w.runs)
		if i < cap(w.runs) {
			w.runs = w.runs[:i+1]
			w.runs[i].runID, w.runs[i].hashes = id, w.runs[i].hashes[:0]
		} else {
			w.runs = append(w.runs, journalRun{runID: id})
		}
		w.at[id] = i
	}
	w.last = i
	w.runs[i].hashes = append(w.runs[i].hashes, hash)
}

func (w *journalWriter) appendTo(dst []byte) []byte {
	for i := range w.runs {
		r := &w.runs[i]
		dst = binary.AppendUvarint(dst, uint64(len(r.hashes)))
		dst = binary.AppendUvarint(dst, r.runID.bucketRef.scope)
		dst = r.runID.bucketRef.week.AppendKey(dst)
		dst = append(dst, r.runID.sign)
		for _, h := range r.hashes {
			dst = binary.BigEndian.AppendUint64(dst, h)
		}
	}
	return dst
}

// readJournal calls fn for each run of an entry, with its hashes as they are encoded.
func readJournal(entry []byte, fn func(id runID, hashes []byte)) error {
	d := decode.Decoder{Rest: entry}
	for len(d.Rest) > 0 && !d.Bad {
		n := d.Count(8)
		id := runID{bucketRef: bucketRef{scope: d.Uvarint(), week: d.Week()}, sign: d.Byte()}
		hashes := d.Take(8 * uint64(n))
		if d.Bad || n == 0 || id.sign > journalDropped || id.sign == journalDropped && !bytes.Equal(hashes, make([]byte, 8)) {
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

// appendHashes appends the hashes of a run.
func appendHashes(dst []uint64, run []byte) []uint64 {
	for ; len(run) >= 8; run = run[8:] {
		dst = append(dst, binary.BigEndian.Uint64(run))
	}
	return dst
}
