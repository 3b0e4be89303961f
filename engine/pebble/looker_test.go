package pebble

import (
	"testing"

	tableblock "github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const testCache = 256 << 20

// indexOfClaims returns an index of a store with 20,000 claims, whose cache nothing else uses.
func indexOfClaims(t *testing.T) (x *runIndex, keys [][]byte) {
	s, err := Open(t.TempDir()+"/store", Options{FS: vfs.Default, CacheBytes: testCache})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, s) })
	batch := randomBatch(rng(1), 20_000)
	batch.Seq = 1
	mustApply(t, s, batch)
	mustSealAll(t, s)
	for _, c := range batch.Claims {
		keys = append(keys, spaced(claimSpace, c.Key))
	}
	x = newRunIndex(&s.core.o, s.core.disk)
	t.Cleanup(x.close)
	if err := x.refresh(s.core.db, nil); err != nil {
		t.Fatal(err)
	}
	return x, keys
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
			if record, known := x.get(keys[0]); record == nil || !known {
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
		x.get(key)
	}
	cached := x.cache.Size()
	x.replace(&runList{groups: x.list.Load().groups})
	if got, want := x.fill.room.Load(), (testCache-indexed)/4*3-cached; got != want || cached == 0 {
		t.Errorf("room for %d bytes with %d cached and %d indexed, want %d", got, cached, indexed, want)
	}
	const most = (testCache - 2*DefaultPendingBytes) / 4 * 3
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
		x.get(key)
	}
	cached := x.cache.Size()
	const memTable = 2 * DefaultPendingBytes
	const memTables = usualMemTables * memTable // Pebble reserves these in a store
	defer x.cache.Reserve(memTables)()
	x.fill.divide(testCache)
	third := x.cache.Reserve(memTable)
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
	f := newCacheFill(nil, &Options{CacheBytes: testCache})
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
		if err := l.read(table, tableblock.Handle{Length: size}); err == nil {
			t.Fatal("a block that is none was read")
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
	if n := len(newCacheFill(nil, &Options{CacheBytes: 1 << 61}).slots); n > maxSlots {
		t.Errorf("%d slots", n)
	}
}
