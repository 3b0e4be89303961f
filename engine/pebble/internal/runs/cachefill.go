package runs

import (
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// A cacheFill divides the cache between look-ups, the memory of the index, and what else Pebble reads.
//
// Look-ups put all blocks into the cache while they have room, and then only those that were asked for
// shortly before. In a store that is much larger than the cache, random look-ups would replace all its
// blocks before they ask for one again, and leave memory that the C library does not return.
type cacheFill struct {
	cache     *pebble.Cache
	bytes     int64           // without what is for memtables
	most      int64           // bytes for the index: a third memtable takes its memory, too
	unreserve func()          // returns what the index uses to the cache
	room      atomic.Int64    // bytes that look-ups may put in until the next divide
	slots     []atomic.Uint32 // a part of a block's hash, in the slot that the rest selects
}

// slotPart is the bytes of the cache for each slot. It is about 16 blocks of a run.
const slotPart = 256 << 10

// maxSlots are those of a cache of 256 GiB.
const maxSlots = 1 << 20

// newCacheFill returns the division of a cache with that many bytes, without those of usual memtables.
func newCacheFill(cache *pebble.Cache, bytes, memTable int64) *cacheFill {
	return &cacheFill{
		cache: cache, bytes: bytes, most: max(0, bytes-memTable) / 4 * 3,
		unreserve: func() {}, slots: make([]atomic.Uint32, min(max(bytes/slotPart, 16), maxSlots)),
	}
}

// divide reserves what the index uses, up to three quarters of what a memtable leaves of the cache.
// Look-ups may fill three quarters of the rest, if nothing else does. Only one call runs at a time.
func (f *cacheFill) divide(indexed uint64) {
	reserved := min(int64(indexed), f.most)
	f.unreserve() // before Reserve, which would evict as many blocks more
	f.unreserve = f.cache.Reserve(int(reserved))
	f.room.Store((f.bytes-reserved)/4*3 - f.cache.Size())
}

// admits reports whether a block is put into the cache if it is not there.
func (f *cacheFill) admits(table, offset uint64) bool {
	const odd = 0x9e3779b97f4a7c15
	h := (table*odd ^ offset) * odd
	h = (h ^ h>>32) * odd
	slot := &f.slots[(h>>32)%uint64(len(f.slots))]
	if slot.Load() == uint32(h) { // or another block has the same hash: no harm
		return true
	}
	slot.Store(uint32(h))
	return f.room.Load() > 0
}
