package bloom

import (
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
)

const (
	aheadHashes = 32 // hashes whose blocks are loaded together

	// regionBytes is the size of the part of a filter that is changed at a time. Together with its
	// hashes it fits into the second-level cache of a core.
	regionBytes = 256 << 10
	// maxRegions bounds the number of places that are written alternately when hashes are sorted.
	maxRegions = 1 << 10
	// Hashes are sorted if there are at least minSorted and the filter has at most sortedBytes
	// bytes for each. With fewer hashes, loading the whole filter takes longer than it saves.
	minSorted   = 1 << 15
	sortedBytes = 256
)

// AddAll has the effect of Add for each hash, in a fraction of the time, on a filter that no other
// goroutine uses yet, such as one that was just read.
//
// If there are many hashes for a large filter, it sorts a copy of them by the part of the filter
// that they change, so that each part is in the processor's cache while its hashes are added, and
// several processors add to different parts. That takes 8 bytes of memory for each hash.
func (f *Filter) AddAll(hashes []uint64) {
	var sorted []uint64
	for len(hashes) > 0 {
		l := f.newest.Load()
		n := min(uint64(len(hashes)), l.room())
		if size := l.chainBytes(); n < minSorted || n < size/sortedBytes || size < 2*regionBytes {
			n = min(uint64(len(hashes)), aheadHashes)
			f.addInOrder(hashes[:n])
		} else {
			if uint64(len(sorted)) < n {
				sorted = make([]uint64, n)
			}
			l.addSorted(hashes[:n], sorted[:n])
		}
		hashes = hashes[n:]
	}
	runtime.KeepAlive(f)
}

// room returns how many hashes can certainly be added to l before the filter grows. It is 0 for a
// full layer.
func (l *layer) room() uint64 {
	if n := l.added.Load() + 1; n < l.design {
		return l.design - n
	}
	return 0
}

func (f *Filter) addInOrder(hashes []uint64) {
	f.Prefetch(hashes)
	for _, h := range hashes {
		newest := f.newest.Load()
		if !newest.addUnshared(h) {
			continue
		}
		n := newest.added.Load() + 1
		newest.added.Store(n)
		if n >= newest.design {
			f.grow(newest, n)
		}
	}
}

// addSorted adds hashes for which there is room. It copies them to sorted, which has the same
// length.
//
// A region is a range of blocks of l. Hashes of one region remain in their order: what Add finds
// in a block of l depends on earlier hashes of that block only, and older layers do not change. So
// the result is that of adding them in their order.
func (l *layer) addSorted(hashes, sorted []uint64) {
	shift := regionShift(uint64(len(l.blocks)), l.chainBytes())
	var ends [maxRegions + 1]int
	regions := (len(l.blocks)-1)>>shift + 1
	for _, h := range hashes {
		ends[l.indexOf(h)>>shift+1]++
	}
	for r := range regions {
		ends[r+1] += ends[r]
	}
	// ends[r] is where region r begins, and is moved to its end
	for _, h := range hashes {
		r := l.indexOf(h) >> shift
		sorted[ends[r]] = h
		ends[r]++
	}
	var next, added atomic.Uint64
	var work sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), regions) {
		work.Go(func() {
			for r := int(next.Add(1)) - 1; r < regions; r = int(next.Add(1)) - 1 {
				begin := 0
				if r > 0 {
					begin = ends[r-1]
				}
				added.Add(l.addRegion(r, shift, sorted[begin:ends[r]]))
			}
		})
	}
	work.Wait()
	l.added.Store(l.added.Load() + added.Load())
}

// regionShift returns how many low bits of a block's index are not part of the index of its region.
// bytes is the size of the newest layer, which has the given blocks, and of all older ones.
func regionShift(blocks, bytes uint64) int {
	regions := min(max(bytes/regionBytes, 1), maxRegions)
	return bits.Len64((blocks - 1) / regions)
}

// addRegion adds the hashes of a region and returns how many of them were new.
func (l *layer) addRegion(region, shift int, hashes []uint64) (added uint64) {
	l.load(uint64(region)<<shift, uint64(region+1)<<shift)
	for _, h := range hashes {
		if l.addUnshared(h) {
			added++
		}
	}
	return added
}

// load loads the blocks from begin to end, and the blocks that their hashes select in older layers,
// into the processor's cache. Loading blocks in order takes a fraction of the time. It reads no
// other block of l, because other goroutines change them.
func (l *layer) load(begin, end uint64) {
	n := uint64(len(l.blocks))
	for o := l; o != nil; o = o.older {
		m := uint64(len(o.blocks))
		blocks := o.blocks[begin*m/n : min((end*m+n-1)/n, m)]
		for i := range blocks {
			atomic.LoadUint64(&blocks[i][0])
		}
	}
}

// addUnshared sets the bits of h, unless l or an older layer has them all, and reports whether it
// did. No other goroutine uses the block of h in l, or changes older layers.
//
// The bits are computed once for all layers, and stay in registers.
func (l *layer) addUnshared(h uint64) bool {
	m0, m1, m2, m3 := bit(h, 0), bit(h, 1), bit(h, 2), bit(h, 3)
	m4, m5, m6, m7 := bit(h, 4), bit(h, 5), bit(h, 6), bit(h, 7)
	for o := l; o != nil; o = o.older {
		b := o.blockOf(h)
		if m0&^b[0]|m1&^b[1]|m2&^b[2]|m3&^b[3] == 0 && m4&^b[4]|m5&^b[5]|m6&^b[6]|m7&^b[7] == 0 {
			return false
		}
	}
	b := l.blockOf(h)
	b[0] |= m0
	b[1] |= m1
	b[2] |= m2
	b[3] |= m3
	b[4] |= m4
	b[5] |= m5
	b[6] |= m6
	b[7] |= m7
	return true
}
