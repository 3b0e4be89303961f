package pebble

import (
	"math/bits"
	"slices"
)

const (
	// radixFewest is the least number of entries for another partition; fewer are sorted by
	// comparison.
	radixFewest = 48

	// radixBits is the maximum number of bits of a partition: its counters stay in the cache.
	radixBits = 11
)

// sort sorts the entries by bucket, by head and, where heads are equal, by comparison. It is a
// radix sort from the most significant bit on, in place.
func (s *sorted) sort() {
	begin := uint32(0)
	for _, end := range partition(s.refs, len(s.prefixes), func(r ref) uint32 { return r.place >> 1 }) {
		s.sortHeads(s.refs[begin:end])
		begin = end
	}
}

// sortHeads sorts entries of one bucket.
func (s *sorted) sortHeads(refs []ref) {
	if len(refs) < radixFewest {
		slices.SortFunc(refs, s.compare)
		return
	}
	var differing uint64
	for _, r := range refs {
		differing |= r.head ^ refs[0].head
	}
	if differing == 0 {
		slices.SortFunc(refs, s.compare)
		return
	}
	width := min(radixBits, bits.Len(uint(len(refs)))-4)
	common, shift := bits.LeadingZeros64(differing), 64-width
	begin := uint32(0)
	for _, end := range partition(refs, 1<<width, func(r ref) uint32 { return uint32(r.head << common >> shift) }) {
		s.sortHeads(refs[begin:end])
		begin = end
	}
}

// partition puts entries in the order of their digits, which are less than n, and returns where
// those of each digit end.
func partition(refs []ref, n int, digit func(ref) uint32) (ends []uint32) {
	ends = make([]uint32, n)
	for _, r := range refs {
		ends[digit(r)]++
	}
	next, sum := make([]uint32, n), uint32(0)
	for d, count := range ends {
		next[d] = sum
		sum += count
		ends[d] = sum
	}
	for d := range ends {
		for next[d] < ends[d] {
			r := refs[next[d]]
			for to := digit(r); to != uint32(d); to = digit(r) {
				r, refs[next[to]] = refs[next[to]], r
				next[to]++
			}
			refs[next[d]] = r
			next[d]++
		}
	}
	return ends
}
