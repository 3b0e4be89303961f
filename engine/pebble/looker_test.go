package pebble

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// indexOfClaims returns an index of a store with 20,000 claims, whose cache nothing else uses.
func indexOfClaims(t *testing.T) (x *runIndex, keys [][]byte) {
	s, err := Open(t.TempDir()+"/store", Options{FS: vfs.Default, CacheBytes: 64 << 20})
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
	x = newRunIndex(&s.o, s.disk)
	t.Cleanup(x.close)
	if err := x.refresh(s.db, nil); err != nil {
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

// The memory of the index is part of the cache, up to three quarters. Look-ups fill three quarters of
// what it leaves.
func TestTheIndexAndLookUpsShareTheCache(t *testing.T) {
	x, keys := indexOfClaims(t)
	const bytes = 64 << 20
	indexed := int64(x.list.Load().size())
	if got, want := x.fill.room.Load(), (bytes-indexed)/4*3; got != want || indexed == 0 {
		t.Errorf("room for %d bytes with %d indexed, want %d", got, indexed, want)
	}
	for _, key := range keys {
		x.get(key)
	}
	cached := x.cache.Size()
	x.replace(&runList{groups: x.list.Load().groups})
	if got, want := x.fill.room.Load(), (bytes-indexed)/4*3-cached; got != want || cached == 0 {
		t.Errorf("room for %d bytes with %d cached and %d indexed, want %d", got, cached, indexed, want)
	}
	for range 3 { // what was reserved before is returned
		x.fill.divide(bytes)
		if got, want := x.fill.room.Load(), int64(bytes/16*3)-cached; got != want || x.cache.Size() != cached {
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
	memTables := usualMemTables * int64(2*DefaultPendingBytes) // Pebble reserves these in a store
	defer x.cache.Reserve(int(memTables))()
	x.fill.bytes = cached
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
	f := newCacheFill(nil, 256<<20)
	f.room.Store(0)
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
