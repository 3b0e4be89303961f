package memtable

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
)

// Tables that are loaded from packed batches are those that the batches made.
func TestLoadedTablesAreTheAppliedOnes(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 4))
		limit := uint64(1) << (12 + seed%4)
		applied, loaded := New(limit), New(limit)
		loaded.seed, loaded.active.seed = applied.seed, applied.seed
		keys := someKeys()
		dropped, _ := SplitPrefix(keys[0])
		notes := map[string]uint64{string(dropped): 60 - seed%3}
		want := map[string]string{}
		for seq := uint64(1); seq <= 60; seq++ {
			var claims []storage.ClaimWrite
			for range 1 + rng.IntN(40) {
				w := storage.ClaimWrite{Key: keys[rng.IntN(len(keys))], Record: fmt.Appendf(nil, "record %d", rng.IntN(1000))}
				want[string(w.Key)] = string(w.Record)
				if rng.IntN(8) == 0 {
					w.Record = nil
					want[string(w.Key)] = "-"
				}
				claims = append(claims, w)
			}
			if err := loaded.Load(seq, AppendPacked(nil, claims), notes); err != nil {
				t.Fatal(err)
			}
			if applied.IsFull() {
				applied.Freeze()
			}
			applied.Apply(seq, claims)
			if seq == notes[string(dropped)] {
				applied.Drop([]string{string(dropped)})
				maps.DeleteFunc(want, func(k, _ string) bool {
					prefix, _ := SplitPrefix([]byte(k))
					return bytes.Equal(prefix, dropped)
				})
			}
		}
		loaded.Index()
		agree(t, applied, keys, want)
		agree(t, loaded, keys, want)
		view, _ := loaded.View(func(*View) error { return nil })
		for p := range view.Buckets().Claimed {
			if got, want := view.HoldsSome(p), applied.Knows(p); !want && got {
				t.Errorf("seed %d: bucket %x is not in the applied tables", seed, p)
			}
		}
		view.Release()
		if loaded.Newest() != applied.Newest() {
			t.Errorf("seed %d: the newest batch is %d, want %d", seed, loaded.Newest(), applied.Newest())
		}
		sameCounts(t, loaded.active)
		if loaded.frozen != nil {
			sameCounts(t, loaded.frozen)
		}
	}
}

// sameCounts compares the counts of a table with its entries.
func sameCounts(t *testing.T, table *Table) {
	t.Helper()
	newest := map[string]entry{}
	sizes := make([]uint64, len(table.buckets))
	for off := uint32(0); off < uint32(len(table.arena)); {
		e := table.entry(off)
		sizes[e.bucket] += uint64(e.end - e.off)
		newest[table.buckets[e.bucket].prefix+string(e.tail)] = e
		off = e.end
	}
	if len(newest) != table.keys || 4*table.keys > 3*len(table.slots) {
		t.Errorf("the table counts %d keys in %d slots, and has %d", table.keys, len(table.slots), len(newest))
	}
	for i := range table.buckets {
		b := &table.buckets[i]
		live, removed := 0, 0
		for _, e := range newest {
			if e.bucket == uint32(i) && e.record == nil {
				removed++
			} else if e.bucket == uint32(i) {
				live++
			}
		}
		if b.live != live || b.removed != removed || b.bytes != sizes[i] {
			t.Errorf("bucket %x counts %d claims, %d removed and %d bytes, and has %d, %d and %d", b.prefix, b.live, b.removed, b.bytes, live, removed, sizes[i])
		}
	}
}

// A store that was killed with more claims than PendingBytes has now, or with keys that were written
// often, fills the second table beyond its limit: that must not copy it for every batch.
func TestLoadingBeyondTheLimitCopiesTheArenaRarely(t *testing.T) {
	u := New(1 << 12)
	grown, last := 0, 0
	for seq := uint64(1); seq <= 5000; seq++ {
		b := batchOf(seq, 2)
		if err := u.Load(seq, AppendPacked(nil, b), nil); err != nil {
			t.Fatal(err)
		}
		if n := cap(u.active.arena); n != last {
			grown, last = grown+1, n
		}
	}
	if used := len(u.active.arena); used < 20*int(u.limit) || grown > 40 {
		t.Errorf("the arena grew %d times to %d bytes", grown, used)
	}
}

// A killed store is loaded into two tables where one was full, and both are sealed.
func TestAKilledStoreWithTwoFullTablesIsOpenedWhole(t *testing.T) {
	u := New(1 << 12)
	var seqs []uint64
	for seq := uint64(1); seq <= 100; seq++ {
		b := batchOf(seq, 10)
		if err := u.Load(seq, AppendPacked(nil, b), nil); err != nil {
			t.Fatal(err)
		}
		if u.frozen != nil {
			seqs = append(seqs, u.frozen.last)
		}
	}
	u.Index()
	if u.frozen == nil || u.frozen.Size() < u.limit || slices.Max(seqs) != slices.Min(seqs) {
		t.Fatalf("the first table is not frozen once when it is full: last batches %d", seqs)
	}
	if u.active.last != 100 || u.Newest() != 100 {
		t.Errorf("the newest batch is %d", u.Newest())
	}
}
