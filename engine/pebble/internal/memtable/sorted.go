package memtable

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"iter"
	"runtime"
	"slices"
	"sort"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/offheap"
)

// Sorted has the claims of a moment that a span selects, in key order, each key once, removals
// included.
type Sorted struct {
	frames   Moment
	prefixes []string // prefixes of all buckets, in order
	common   []int    // for each prefix: number of leading bytes that its tails share
	refs     []ref
	usual    int    // average size of an entry
	free     func() // frees refs
}

// A ref refers to an entry. It contains the part of the key in which most keys differ.
type ref struct {
	head  uint64 // first bytes of the tail after those that all tails of the bucket share
	place uint32 // twice the rank of the bucket's prefix, plus the number of the frame
	off   uint32
}

// Sorted sorts the claims that a span selects.
func (m Moment) Sorted(span storage.Span) *Sorted {
	s := m.unsorted(span)
	s.sort()
	s.refs = slices.CompactFunc(s.refs, func(a, b ref) bool {
		return a.head == b.head && a.place>>1 == b.place>>1 && bytes.Equal(s.entry(a).tail, s.entry(b).tail)
	})
	return s
}

// unsorted returns all entries that a span selects, including replaced ones.
func (m Moment) unsorted(span storage.Span) *Sorted {
	s := &Sorted{frames: m, prefixes: m.prefixes()}
	rank := make(map[string]uint32, len(s.prefixes))
	for i, p := range s.prefixes {
		rank[p] = uint32(i)
	}
	keys := 0
	for _, f := range m {
		keys += f.keys
	}
	s.usual = s.Bytes() / max(keys, 1)
	s.refs, s.free = offheap.Make[ref](s, uint64(keys))
	s.refs = s.refs[:0]
	ranks := make([][]uint32, len(m))
	for i, f := range m {
		ranks[i] = make([]uint32, len(f.buckets))
		for j := range f.buckets {
			ranks[i][j] = rank[f.buckets[j].prefix]
		}
	}
	s.common = m.common(ranks, len(rank))
	for i, f := range m {
		ranks, selects := ranks[i], f.selects(span)
		for off := uint32(0); off < uint32(len(f.arena)); {
			e := entryAt(f.arena, off)
			off = e.end
			if e.off >= f.buckets[e.bucket].below && selects(e) {
				rank := ranks[e.bucket]
				s.refs = append(s.refs, ref{head(e.tail[min(s.common[rank], len(e.tail)):]), rank<<1 | uint32(i), e.off})
			}
		}
	}
	return s
}

// common returns, for each of n ranks, a number of leading bytes that the tails of its buckets
// share, so that ids with a long common prefix are sorted by the bytes in which they differ. It
// stops reading entries when the tails of all ranks differ in their heads.
func (m Moment) common(ranks [][]uint32, n int) []int {
	common, first, alike := make([]int, n), make([][]byte, n), n
	for i, f := range m {
		for off := uint32(0); off < uint32(len(f.arena)) && alike > 0; {
			e := entryAt(f.arena, off)
			off = e.end
			rank := ranks[i][e.bucket]
			switch c := &common[rank]; {
			case first[rank] == nil:
				first[rank], *c = e.tail, len(e.tail)
			case *c > 0 && !bytes.HasPrefix(e.tail, first[rank][:*c]):
				if *c = sharedBytes(e.tail, first[rank][:*c]); *c < 8 {
					*c = 0
					alike--
				}
			}
		}
	}
	return common
}

// sharedBytes returns the length of the longest common prefix.
func sharedBytes(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

func head(tail []byte) uint64 {
	if len(tail) >= 8 {
		return binary.BigEndian.Uint64(tail)
	}
	var b [8]byte
	copy(b[:], tail)
	return binary.BigEndian.Uint64(b[:])
}

// readAhead is the number of entries that All prefetches at once.
const readAhead = 64

// All yields keys and records in order, with space before each key. A record is nil if the claim was
// removed. A key is valid until the next one.
func (s *Sorted) All(space byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, record []byte) bool) {
		defer runtime.KeepAlive(s)
		key := []byte{space}
		for i, r := range s.refs {
			if i%readAhead == 0 {
				s.prefetch(s.refs[i:min(i+readAhead, len(s.refs))])
			}
			e := s.entry(r)
			key = append(append(key[:1], s.prefixes[r.place>>1]...), e.tail...)
			if !yield(key, e.record) {
				return
			}
		}
	}
}

// Free frees the memory. Calling it is optional.
func (s *Sorted) Free() { s.free() }

// Len returns the number of claims.
func (s *Sorted) Len() int { return len(s.refs) }

// Bytes returns the approximate size of the claims in memory.
func (s *Sorted) Bytes() (n int) {
	for _, f := range s.frames {
		n += len(f.arena)
	}
	return n
}

// Key appends the key of claim i to dst.
func (s *Sorted) Key(dst []byte, i int) []byte {
	r := s.refs[i]
	return append(append(dst, s.prefixes[r.place>>1]...), s.entry(r).tail...)
}

// BeginsBucket reports whether claim i and the previous claim are in different buckets.
func (s *Sorted) BeginsBucket(i int) bool { return s.refs[i].place>>1 != s.refs[i-1].place>>1 }

// Search returns the index of the first claim whose key is at least key.
func (s *Sorted) Search(key []byte) int {
	var own []byte
	return sort.Search(len(s.refs), func(i int) bool {
		own = s.Key(own[:0], i)
		return bytes.Compare(own, key) >= 0
	})
}

// prefetch loads entries, which are at random places, into the processor's cache. It reads up to
// three of the cache's lines of each.
func (s *Sorted) prefetch(refs []ref) {
	var read byte
	for _, r := range refs {
		arena := s.frames[r.place&1].arena
		off := int(r.off)
		read ^= arena[off] ^ arena[min(off+s.usual/2, len(arena)-1)] ^ arena[min(off+s.usual, len(arena)-1)]
	}
	runtime.KeepAlive(read)
}

func (s *Sorted) entry(r ref) entry { return entryAt(s.frames[r.place&1].arena, r.off) }

// compare orders the entries of a key newest first.
func (s *Sorted) compare(a, b ref) int {
	if c := cmp.Compare(a.place>>1, b.place>>1); c != 0 {
		return c
	}
	if a.head != b.head {
		if a.head < b.head {
			return -1
		}
		return 1
	}
	if c := bytes.Compare(s.entry(a).tail, s.entry(b).tail); c != 0 {
		return c
	}
	if c := cmp.Compare(a.place, b.place); c != 0 {
		return c
	}
	return cmp.Compare(b.off, a.off)
}
