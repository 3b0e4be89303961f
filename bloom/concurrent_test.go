package bloom

import (
	"sync"
	"sync/atomic"
	"testing"
)

// Eight goroutines add while others look up and take snapshots, through several growths. Each hash
// that an adder has published as added must be found by every lookup and in every snapshot begun
// later.
func TestNothingAddedIsLostUnderConcurrency(t *testing.T) {
	const adders, each = 8, 10_000
	hash := func(adder int, i uint64) uint64 { return mix(uint64(adder)<<32 | i) }

	f := New(Options{Expected: 1})
	var published [adders]atomic.Uint64 // hashes below are added
	var adding, watching sync.WaitGroup
	var done atomic.Bool

	for a := range adders {
		adding.Go(func() {
			for i := range uint64(each) {
				f.Add(hash(a, i))
				published[a].Store(i + 1)
			}
		})
	}
	check := func(what string, f *Filter, begun [adders]uint64) {
		for a, n := range begun {
			for i := range n {
				if !f.MayContain(hash(a, i)) {
					t.Errorf("%s: hash %d of adder %d is missing, %d were added", what, i, a, n)
					return
				}
			}
		}
	}
	begin := func() (begun [adders]uint64) {
		for a := range begun {
			begun[a] = published[a].Load()
		}
		return begun
	}
	for range 2 {
		watching.Go(func() {
			for !done.Load() {
				check("filter", f, begin())
			}
		})
	}
	watching.Go(func() {
		for !done.Load() {
			begun := begin()
			opened, rest, err := open(snapshot(f))
			if err != nil || len(rest) != 0 {
				t.Errorf("snapshot under load: %v, %d bytes over", err, len(rest))
				return
			}
			check("snapshot", opened, begun)
		}
	})
	adding.Wait()
	done.Store(true)
	watching.Wait()

	check("in the end", f, begin())
	for l := f.newest.Load(); l.older != nil; l = l.older {
		if len(l.blocks) < 2*len(l.older.blocks) {
			t.Errorf("%d blocks on top of %d", len(l.blocks), len(l.older.blocks))
		}
		n, design := l.older.added.Load(), l.older.design
		if n < design || n > design*9/8+adders {
			t.Errorf("a layer for %d keys was closed with %d", design, n)
		}
	}
}

// Neighbours in a block share words: no bit may be lost when two are set at once.
func TestBitsSetAtOnceInOneBlockAreKept(t *testing.T) {
	const adders, each = 4, 4
	filters := make([]*Filter, 30_000)
	for i := range filters {
		filters[i] = New(Options{MaxBytes: blockBytes})
	}
	hash := func(adder, i int) uint64 { return mix(uint64(adder)<<32 | uint64(i)) }

	var adding sync.WaitGroup
	for a := range adders {
		adding.Go(func() {
			for _, f := range filters {
				for i := range each {
					f.Add(hash(a, i))
				}
			}
		})
	}
	adding.Wait()
	for n, f := range filters {
		for a := range adders {
			for i := range each {
				if !f.MayContain(hash(a, i)) {
					t.Fatalf("filter %d: hash %d of adder %d is missing", n, i, a)
				}
			}
		}
	}
}

// All goroutines find the newest layer overfull at once, so that each of them makes its successor.
// Only one may be kept, and no added hash may be lost with the others.
func TestOneOfManySuccessorsIsKept(t *testing.T) {
	const rounds, adders, each = 300, 4, 20
	for round := range uint64(rounds) {
		f := New(Options{})
		f.newest.Load().added.Store(2 * defaultExpected)
		hash := func(adder int, i uint64) uint64 { return mix(round<<32 | uint64(adder)<<16 | i) }

		var adding sync.WaitGroup
		for a := range adders {
			adding.Go(func() {
				for i := range uint64(each) {
					f.Add(hash(a, i))
				}
			})
		}
		adding.Wait()
		for a := range adders {
			for i := range uint64(each) {
				if !f.MayContain(hash(a, i)) {
					t.Fatalf("round %d: hash %d of adder %d is missing", round, i, a)
				}
			}
		}
		if n := f.newest.Load().chainLen(); n != 2 {
			t.Fatalf("round %d: %d layers", round, n)
		}
	}
}

// Goroutines that race to add the same new hashes: each hash must be new to at
// least one of them, or its owner would never be found. With 64 bits a key
// false positives do not disturb the count.
func TestAHashAddedAtOnceIsNewToAtLeastOne(t *testing.T) {
	const keys, adders = 50_000, 4
	f := New(Options{BitsPerKey: 64})
	told := make([]atomic.Int32, keys)
	var adding sync.WaitGroup
	for range adders {
		adding.Go(func() {
			for i := range uint64(keys) {
				if f.Add(mix(i)) {
					told[i].Add(1)
				}
			}
		})
	}
	adding.Wait()
	var total uint64
	for i := range told {
		n := told[i].Load()
		if n == 0 {
			t.Fatalf("no call reported hash %d as new", i)
		}
		total += uint64(n)
	}
	if f.Len() != total {
		t.Errorf("len %d, but %d calls returned true", f.Len(), total)
	}
	t.Logf("%d hashes, %d times new", keys, total)
}
