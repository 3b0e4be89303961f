package runs

import (
	"encoding/binary"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/zeebo/xxh3"
)

// Filters are the policy of the filters of tables: Pebble's, of hashes of the keys
// that depend on the seed of the store. Otherwise a producer could choose ids that all filters seem
// to have, and each look-up of such an id would read every table.
//
//	+---------------------+----------------------+
//	| filter (filter) | check of the seed 4 LE |
//	+---------------------+----------------------+
//
// A filter whose seed is not the store's is not used.
type Filters struct {
	Seed *uint64 // of the store
	Bits int     // for each key, of the filters that are written
}

const (
	keyedFilterName = "hapax.keyed-bloom"
	filterCheck     = 4
)

// Name implements pebble.FilterPolicy.
func (Filters) Name() string { return keyedFilterName }

// NewWriter implements pebble.FilterPolicy.
func (k Filters) NewWriter(t pebble.FilterType) pebble.FilterWriter {
	return &keyedWriter{w: bloom.FilterPolicy(k.Bits).NewWriter(t), seed: *k.Seed}
}

// MayContain implements pebble.FilterPolicy.
func (k Filters) MayContain(_ pebble.FilterType, block, key []byte) bool {
	f, ok := newKeyedFilter(block, *k.Seed)
	return !ok || f.mayContain(keyedHash(key, *k.Seed))
}

// newKeyedFilter returns the filter in a block, and false if the block has another layout.
func newKeyedFilter(block []byte, seed uint64) (f filter, ok bool) {
	n := len(block) - filterCheck
	switch {
	case len(block) == 0: // of a table that has only range deletes
		f, ok = newFilter(nil)
	case n < 0:
		return f, false
	default:
		f, ok = newFilter(block[:n])
	}
	if ok && n > 0 && binary.LittleEndian.Uint32(block[n:]) != seedCheck(seed) {
		f.bits = nil
	}
	return f, ok
}

func seedCheck(seed uint64) uint32 { return uint32(xxh3.HashStringSeed(keyedFilterName, seed)) }

// keyedHash is the hash of a key for a keyed filter.
func keyedHash(key []byte, seed uint64) uint32 {
	var b [8]byte
	return filterHash(binary.BigEndian.AppendUint64(b[:0], xxh3.HashSeed(key, seed)))
}

// A keyedWriter writes a filter.
type keyedWriter struct {
	w    pebble.FilterWriter
	seed uint64
	hash [8]byte
}

// AddKey implements pebble.FilterWriter.
func (k *keyedWriter) AddKey(key []byte) {
	k.w.AddKey(binary.BigEndian.AppendUint64(k.hash[:0], xxh3.HashSeed(key, k.seed)))
}

// Finish implements pebble.FilterWriter.
func (k *keyedWriter) Finish(dst []byte) []byte {
	return binary.LittleEndian.AppendUint32(k.w.Finish(dst), seedCheck(k.seed))
}

// A filter is the Bloom filter of a table. Its layout is that of RocksDB's full filters, which
// package bloom of Pebble writes and documents:
//
//	+------------------+----------+------------+
//	| lines of 64 bytes | probes 1 | lines 4 LE |
//	+------------------+----------+------------+
//
// All bits of a key are in one line. Pebble's own MayContain computes the hash of the key each time:
// here it is computed once for all tables.
type filter struct {
	bits   []byte // nil if the table has no filter
	lines  uint32
	probes uint8
}

const (
	filterLine    = 64
	filterTrailer = 5
	firstProbes   = 3 // of first; Pebble writes six
)

// newFilter returns the filter in a block, and false if the block has another layout.
func newFilter(block []byte) (f filter, ok bool) {
	n := len(block) - filterTrailer
	if n <= 0 { // of a table that has only range deletes
		return filter{bits: make([]byte, filterLine), lines: 1, probes: firstProbes}, true
	}
	if n < filterLine {
		return f, false
	}
	f = filter{bits: block[:n], lines: binary.LittleEndian.Uint32(block[n+1:]), probes: block[n]}
	return f, uint64(f.lines)*filterLine == uint64(n) && f.probes >= firstProbes
}

// first returns the result of the first probes, 0 or 1. It has no branch that depends on them, so that
// the processor loads the lines of many filters at the same time, and mispredicts little.
func (f *filter) first(hash uint32) uint8 {
	if f.bits == nil {
		return 1
	}
	line, step := hash%f.lines, hash>>17|hash<<15
	return f.bit(line, hash) & f.bit(line, hash+step) & f.bit(line, hash+2*step)
}

// mayContain reports whether the filter has the key with that hash.
func (f *filter) mayContain(hash uint32) bool {
	if f.bits == nil {
		return true
	}
	line, step := hash%f.lines, hash>>17|hash<<15
	for range f.probes {
		if f.bit(line, hash) == 0 {
			return false
		}
		hash += step
	}
	return true
}

func (f *filter) bit(line, probe uint32) uint8 {
	probe %= 8 * filterLine
	return f.bits[int(line)*filterLine+int(probe/8)] >> (probe % 8) & 1
}

// filterHash is the hash of a key for a filter: LevelDB's, a variant of Murmur.
func filterHash(key []byte) uint32 {
	const seed, multiplier = 0xbc9f1d34, 0xc6a4a793
	h := seed ^ uint32(len(key))*multiplier
	for ; len(key) >= 4; key = key[4:] {
		h = (h + binary.LittleEndian.Uint32(key)) * multiplier
		h ^= h >> 16
	}
	if len(key) == 0 {
		return h
	}
	for i, b := range key {
		h += uint32(int8(b)) << (8 * i) // signed, as in LevelDB
	}
	h *= multiplier
	return h ^ h>>24
}
