package pebble

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/pebble/internal/runs"
	"github.com/hapax-dev/hapax/engine/storage"
)

// The keys in Pebble, forever:
//
//	'c' claim key            -> record         claims, as the engine keys them, once they are in tables
//	'd' prefix of a bucket   -> seq            it was dropped after that batch: packed batches up to it have claims of it
//	'f'                      -> seq            packed batches are kept from here on, absent before the first were removed
//	'j' seq, 8 bytes BE      -> journal entry  one for each batch, until it is trimmed
//	'l'                      -> seq            of the newest batch
//	'p' seq, 8 bytes BE      -> packed batch   claims that are not in tables yet (internal/memtable/packed.go)
//	's' state key            -> value          state
//	't'                      -> seq            the journal is kept from here on, absent before the first trim
const (
	claimSpace    = runs.Space
	dropSpace     = 'd'
	packedFromKey = 'f'
	journalSpace  = 'j'
	lastSeqKey    = 'l'
	packedSpace   = 'p'
	stateSpace    = 's'
	trimKey       = 't'

	seqSize = 8
)

func spaced(space byte, key []byte) []byte {
	return append(append(make([]byte, 0, 1+len(key)), space), key...)
}

func journalKey(seq uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{journalSpace}, seq)
}

func packedKey(seq uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{packedSpace}, seq)
}

// successor returns the least key that is greater than all keys that begin with prefix, which is
// not all 0xFF.
func successor(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

// bucketSpan is the range of the keys of a bucket's claims.
func bucketSpan(b storage.Bucket) pebble.KeyRange {
	start := b.AppendPrefix([]byte{claimSpace})
	return pebble.KeyRange{Start: start, End: successor(start)}
}

// spansOf returns the buckets' ranges in order, each once.
func spansOf(buckets []storage.Bucket) []pebble.KeyRange {
	spans := make([]pebble.KeyRange, 0, len(buckets))
	for _, b := range buckets {
		spans = append(spans, bucketSpan(b))
	}
	slices.SortFunc(spans, func(a, b pebble.KeyRange) int { return bytes.Compare(a.Start, b.Start) })
	return slices.CompactFunc(spans, func(a, b pebble.KeyRange) bool { return bytes.Equal(a.Start, b.Start) })
}

// keyRange returns the range of a span in one of the key spaces.
func keyRange(space byte, span storage.Span) pebble.KeyRange {
	return pebble.KeyRange{Start: spaced(space, span.Start()), End: successor(spaced(space, span.Prefix))}
}

// prefixSpan returns the range of the keys that begin with prefix.
func prefixSpan(prefix []byte) pebble.KeyRange {
	return pebble.KeyRange{Start: prefix, End: successor(prefix)}
}

// Every record of the log that is a batch of this store begins with a durability record, so that
// the log itself shows what was durable when it was written: if one of these batches is missing, a
// crash did not tear it off, but the log is damaged. It is written only to the log:
//
//	+----+----+-------------+----------------+
//	| H  | X  | seq u64 BE  | durable u64 BE |
//	+----+----+-------------+----------------+
//
// durable is the newest batch that was durable then. A durability record without a batch has the
// seq of the newest batch.
const durabilitySize = 2 + 2*seqSize

func appendDurability(dst []byte, seq, durable uint64) []byte {
	dst = append(dst, 'H', 'X')
	dst = binary.BigEndian.AppendUint64(dst, seq)
	return binary.BigEndian.AppendUint64(dst, durable)
}

// parseDurability finds the durability record at the beginning of a log record: after a header of
// Pebble (sequence number and count), the kind of an entry for the log only and its length.
func parseDurability(record []byte) (durable uint64, ok bool) {
	const header, logData = 12, 3
	if len(record) < header+2+durabilitySize {
		return 0, false
	}
	p := record[header:]
	if p[0] != logData || p[1] != durabilitySize || p[2] != 'H' || p[3] != 'X' {
		return 0, false
	}
	return binary.BigEndian.Uint64(p[4+seqSize:]), true
}

func parseSeq(b []byte) (uint64, error) {
	if len(b) != seqSize {
		return 0, fmt.Errorf("%w: batch number of %d bytes", storage.ErrDamaged, len(b))
	}
	return binary.BigEndian.Uint64(b), nil
}
