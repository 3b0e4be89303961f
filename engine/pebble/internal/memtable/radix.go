package memtable

import (
	"math/bits"
	"slices"
)

const (
	// radixFewest is the minimum number of entries for a partition; fewer are sorted by insertion.
	radixFewest = 48

	// radixBits is the maximum number of bits of a partition, so that the memory to which it writes
	// fits into the processor's cache.
	radixBits = 9
)

// sort sorts the entries by bucket, head and, if heads are equal, the following bytes. It is an
// in-place radix sort that starts with the most significant bit.
func (s *Sorted) sort() {
	begin := uint32(0)
	for rank, end := range partition(s.refs, len(s.prefixes), digit{ofBucket: true}) {
		s.sortHeads(s.refs[begin:end], s.common[rank])
		begin = end
	}
}

// sortHeads sorts entries of one bucket by their heads, which follow the first depth bytes of the
// tails. The tails are equal in these bytes.
func (s *Sorted) sortHeads(refs []ref, depth int) {
	if len(refs) < radixFewest {
		s.sortFew(refs)
		return
	}
	var differing uint64
	for _, r := range refs {
		differing |= r.head ^ refs[0].head
	}
	if differing == 0 {
		s.sortDeeper(refs, depth+8)
		return
	}
	width := min(radixBits, bits.Len(uint(len(refs)))-3)
	d := digit{common: uint8(bits.LeadingZeros64(differing)), rest: uint8(64 - width)}
	begin := uint32(0)
	for _, end := range partition(refs, 1<<width, d) {
		s.sortHeads(refs[begin:end], depth)
		begin = end
	}
}

// sortDeeper sorts entries with equal heads by the bytes from depth on, such as ids with a common prefix.
func (s *Sorted) sortDeeper(refs []ref, depth int) {
	equal, longer := refs[0].head, false
	for begin := 0; begin < len(refs); begin += readAhead {
		part := refs[begin:min(begin+readAhead, len(refs))]
		s.prefetch(part)
		for i := range part {
			tail := s.entry(part[i]).tail
			longer = longer || len(tail) > depth
			part[i].head = head(tail[min(depth, len(tail)):])
		}
	}
	if longer {
		s.sortHeads(refs, depth)
	} else {
		slices.SortFunc(refs, s.compare)
	}
	for i := range refs {
		refs[i].head = equal
	}
}

// sortFew sorts a few entries of one bucket by insertion.
func (s *Sorted) sortFew(refs []ref) {
	for i, r := range refs {
		for ; i > 0; i-- {
			before := refs[i-1]
			if before.head < r.head || before.head == r.head && s.compare(before, r) <= 0 {
				break
			}
			refs[i] = before
		}
		refs[i] = r
	}
}

// A digit is a part of the sort key: the bucket, or the bits of the head without the first common
// ones and the last rest ones.
type digit struct {
	ofBucket     bool
	common, rest uint8
}

func (d digit) of(r ref) uint32 {
	if d.ofBucket {
		return r.place >> 1
	}
	return uint32(r.head << (d.common & 63) >> (d.rest & 63))
}

// partition sorts entries by their digits, which are less than n, and returns the end of each
// digit's entries.
func partition(refs []ref, n int, digit digit) (ends []uint32) {
	ends = make([]uint32, n)
	for _, r := range refs {
		ends[digit.of(r)]++
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
			for to := digit.of(r); to != uint32(d); to = digit.of(r) {
				r, refs[next[to]] = refs[next[to]], r
				next[to]++
			}
			refs[next[d]] = r
			next[d]++
		}
	}
	return ends
}
