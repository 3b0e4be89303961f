package pebble

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"iter"
	"runtime"
	"slices"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/offheap"
)

// A moment is the contents of memory at one time; later changes do not affect it. The newer table
// comes first.
type moment []frame

// A frame is a table at one time.
type frame struct {
	table   *table // keeps the arena in memory
	arena   []byte
	buckets []tableBucket
	keys    int // about its number of entries
	drops   int
}

func (t *table) frame() frame {
	return frame{t, t.arena[:len(t.arena):len(t.arena)], slices.Clone(t.buckets), t.keys, t.drops}
}

func momentOf(tables []*table) (at moment) {
	for _, t := range tables {
		at = append(at, t.frame())
	}
	return at
}

// A sorted has the claims of a moment that a span selects, in key order, each key once, removals
// included.
type sorted struct {
	frames   moment
	prefixes []string // of all buckets, in order
	refs     []ref
	free     func() // frees refs, which nothing uses any more; need not be called
}

// A ref refers to an entry. It contains the part of the key that distinguishes most keys.
type ref struct {
	head  uint64 // the first bytes of the tail
	place uint32 // twice the rank of the bucket's prefix, plus the number of the frame
	off   uint32
}

func (m moment) sorted(span storage.Span) *sorted {
	s := m.unsorted(span)
	s.sort()
	s.refs = slices.CompactFunc(s.refs, func(a, b ref) bool {
		return a.head == b.head && a.place>>1 == b.place>>1 && bytes.Equal(s.entry(a).tail, s.entry(b).tail)
	})
	return s
}

// unsorted returns all entries that a span selects, including those that newer ones replaced.
func (m moment) unsorted(span storage.Span) *sorted {
	s := &sorted{frames: m, prefixes: m.prefixes()}
	rank := make(map[string]uint32, len(s.prefixes))
	for i, p := range s.prefixes {
		rank[p] = uint32(i)
	}
	keys := 0
	for _, f := range m {
		keys += f.keys
	}
	s.refs, s.free = offheap.Make[ref](s, uint64(keys))
	s.refs = s.refs[:0]
	for i, f := range m {
		ranks := make([]uint32, len(f.buckets))
		for j := range f.buckets {
			ranks[j] = rank[f.buckets[j].prefix]
		}
		selects := f.selects(span)
		for off := uint32(0); off < uint32(len(f.arena)); {
			e := entryAt(f.arena, off)
			off = e.end
			if e.off >= f.buckets[e.bucket].below && selects(e) {
				s.refs = append(s.refs, ref{head(e.tail), ranks[e.bucket]<<1 | uint32(i), e.off})
			}
		}
	}
	return s
}

// selects returns a function that reports whether the span contains the key of an entry.
func (f frame) selects(span storage.Span) func(e entry) bool {
	start := span.Start()
	if len(start) == 0 {
		return func(entry) bool { return true }
	}
	near := make([]bool, len(f.buckets)) // the span may contain keys of this bucket
	for i := range f.buckets {
		prefix := []byte(f.buckets[i].prefix)
		n := min(len(prefix), len(span.Prefix))
		near[i] = bytes.Equal(prefix[:n], span.Prefix[:n])
	}
	var key []byte
	return func(e entry) bool {
		if !near[e.bucket] {
			return false
		}
		key = append(append(key[:0], f.buckets[e.bucket].prefix...), e.tail...)
		return span.Holds(key)
	}
}

// prefixes returns those of all buckets, in order.
func (m moment) prefixes() (all []string) {
	for _, f := range m {
		for i := range f.buckets {
			all = append(all, f.buckets[i].prefix)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func head(tail []byte) uint64 {
	if len(tail) >= 8 {
		return binary.BigEndian.Uint64(tail)
	}
	var b [8]byte
	copy(b[:], tail)
	return binary.BigEndian.Uint64(b[:])
}

// readAhead is the number of entries that all prefetches at once.
const readAhead = 64

// all yields the refs in order, and prefetches their entries.
func (s *sorted) all() iter.Seq2[int, ref] {
	return func(yield func(int, ref) bool) {
		defer runtime.KeepAlive(s)
		for i, r := range s.refs {
			if i%readAhead == 0 {
				s.prefetch(s.refs[i:min(i+readAhead, len(s.refs))])
			}
			if !yield(i, r) {
				return
			}
		}
	}
}

// prefetch loads entries, which are at random places, as table.prefetch loads slots.
func (s *sorted) prefetch(refs []ref) {
	var read byte
	for _, r := range refs {
		arena := s.frames[r.place&1].arena
		read ^= arena[r.off] ^ arena[min(int(r.off)+usualEntry, len(arena))-1]
	}
	runtime.KeepAlive(read)
}

func (s *sorted) entry(r ref) entry { return entryAt(s.frames[r.place&1].arena, r.off) }

// compare puts the newest of the entries of a key first.
func (s *sorted) compare(a, b ref) int {
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

// at returns the entry of r: its key in Pebble, appended to dst, and its record, nil if it was
// removed.
func (s *sorted) at(dst []byte, r ref) (key, record []byte) {
	e := s.entry(r)
	dst = append(append(dst, claimSpace), s.prefixes[r.place>>1]...)
	return append(dst, e.tail...), e.record
}
