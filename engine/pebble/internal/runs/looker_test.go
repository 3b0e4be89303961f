package runs

import (
	"testing"

	tableblock "github.com/cockroachdb/pebble/v2/sstable/block"
)

// indexOfClaims returns an index of 20,000 claims, whose cache nothing else uses.
func indexOfClaims(t *testing.T) (x *Index, keys [][]byte) {
	f := newFixture(t)
	keys = claimKeys(20_000)
	f.ingest(keys, len(keys))
	return f.loaded(), keys
}

// While the cache has room, a look-up puts the block into it. After that, it does so only for a block
// that was asked for shortly before.
func TestBlocksAskedForAgainReplaceOthers(t *testing.T) {
	for _, full := range []bool{false, true} {
		x, keys := indexOfClaims(t)
		want := []int64{1, 0, 0}
		if full {
			x.fill.room.Store(0)
			want = []int64{0, 1, 0}
		}
		for i, want := range want {
			before, room := x.cache.Metrics(), x.fill.room.Load()
			if record, known := x.Get(keys[0]); record == nil || !known {
				t.Fatal("the index has no record of the claim")
			}
			after := x.cache.Metrics()
			if got := after.Count - before.Count; got != want {
				t.Errorf("full %t: look-up %d added %d blocks to the cache, want %d", full, i+1, got, want)
			}
			if used := room - x.fill.room.Load(); used != after.Size-before.Size {
				t.Errorf("full %t: look-up %d used %d bytes of the room for %d", full, i+1, used, after.Size-before.Size)
			}
		}
	}
}

// The memory of the index is part of the cache, up to three quarters of what a memtable leaves of it.
// Look-ups fill three quarters of the rest.
func TestTheIndexAndLookUpsShareTheCache(t *testing.T) {
	x, keys := indexOfClaims(t)
	indexed := int64(x.list.Load().size())
	if got, want := x.fill.room.Load(), (testCache-indexed)/4*3; got != want || indexed == 0 {
		t.Errorf("room for %d bytes with %d indexed, want %d", got, indexed, want)
	}
	for _, key := range keys {
		x.Get(key)
	}
	cached := x.cache.Size()
	x.replace(&list{groups: x.list.Load().groups})
	if got, want := x.fill.room.Load(), (testCache-indexed)/4*3-cached; got != want || cached == 0 {
		t.Errorf("room for %d bytes with %d cached and %d indexed, want %d", got, cached, indexed, want)
	}
	const most = (testCache - testMemTable) / 4 * 3
	for range 3 { // what was reserved before is returned
		x.fill.divide(testCache)
		if got, want := x.fill.room.Load(), int64((testCache-most)/4*3)-cached; got != want || x.cache.Size() != cached {
			t.Errorf("room for %d bytes with a large index and %d cached, want %d with %d", got, x.cache.Size(), want, cached)
		}
	}
}

// What the index reserves is not there for blocks.
func TestTheIndexReservesItsMemory(t *testing.T) {
	x, keys := indexOfClaims(t)
	for _, key := range keys {
		x.Get(key)
	}
	cached := x.cache.Size()
	const memTables = 2 * testMemTable // Pebble reserves these in a store
	defer x.cache.Reserve(memTables)()
	x.fill.divide(testCache)
	third := x.cache.Reserve(testMemTable)
	if x.cache.Size() != cached {
		t.Errorf("%d bytes are cached of %d beside a third memtable", x.cache.Size(), cached)
	}
	third()
	x.fill.bytes, x.fill.most = cached, cached
	if x.fill.divide(uint64(cached / 2)); x.cache.Size() != cached {
		t.Fatalf("%d bytes are cached of %d, in a cache that has room", x.cache.Size(), cached)
	}
	defer x.cache.Reserve(int(x.cache.MaxSize() - memTables - cached))()
	left := x.cache.Size()
	if left > cached/2 || left == 0 {
		t.Errorf("%d bytes are cached in a cache of %d, half of which the index uses", left, cached)
	}
	if x.fill.divide(uint64(cached / 2)); x.cache.Size() != left {
		t.Errorf("%d bytes are cached after the same division again, %d before", x.cache.Size(), left)
	}
}

func TestCacheFillForgetsBlocksAskedForLongAgo(t *testing.T) {
	f := newCacheFill(nil, testCache, testMemTable)
	again := 0
	const blocks = 200_000
	for range 2 {
		for i := range uint64(blocks) {
			if f.admits(i%100, i<<14) {
				again++
			}
		}
	}
	if again > blocks/1000 {
		t.Errorf("%d of %d blocks were taken for recent ones", again, blocks)
	}
	for i := range uint64(8) {
		f.admits(7, i<<14)
	}
	again = 0
	for i := range uint64(8) {
		if f.admits(7, i<<14) {
			again++
		}
	}
	if again < 6 {
		t.Errorf("%d of 8 recent blocks were known", again)
	}
}

// A looker that waits for its next look-up keeps no large block, also not one that could not be read.
func TestIdleLookersKeepNoLargeBlock(t *testing.T) {
	x, keys := indexOfClaims(t)
	table := x.list.Load().groups[0].find(keys[0])
	for _, size := range []uint64{maxIdleBlock, maxIdleBlock + 1} {
		l := newLooker()
		if err := l.read(table, tableblock.Handle{Offset: 1 << 40, Length: size}); err == nil {
			t.Fatal("a block beyond the end was read")
		}
		l.free()
		idle := false
		for more := true; more; {
			select {
			case other := <-idleLookers:
				idle = idle || other == l
				other.buffers.Release()
			default:
				more = false
			}
		}
		if idle != (size == maxIdleBlock) {
			t.Errorf("idle with a block of %d bytes: %t", size, idle)
		}
	}
}

// A cache that is larger than the machine's memory does not take memory before it is used.
func TestHugeCache(t *testing.T) {
	if n := len(newCacheFill(nil, 1<<61, testMemTable).slots); n > maxSlots {
		t.Errorf("%d slots", n)
	}
}
