package pebble

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// Pebble ends the goroutine by Fatalf when a table that it reads does not exist. In a look-up that
// goroutine is the application's: it gets an error and continues.
func TestFatalfInALookUpIsAnErrorAndTheCallerLives(t *testing.T) {
	f := newFault()
	ended := errors.New("the caller's goroutine was ended")
	returned := make(chan error, 1)
	go func() {
		err := ended
		defer func() { returned <- err }()
		err = f.lookUp(func() error {
			f.Fatalf("no table %d", 7)
			return nil
		})
	}()
	if err := <-returned; err == nil || errors.Is(err, ended) || !errors.Is(err, f.get()) {
		t.Fatalf("Fatalf in a lookup: %v", err)
	}
}

func TestPanicInALookUpIsDamage(t *testing.T) {
	if err := newFault().lookUp(func() error { panic("a block that is none") }); err == nil {
		t.Fatal("a panic in a lookup is no error")
	}
}

// Pebble takes the memory of its memtables out of the cache.
func TestBlocksStayInTheCacheBesideMemtables(t *testing.T) {
	s, err := Open(t.TempDir()+"/store", Options{CacheBytes: 2 << 20, MemTableBytes: 2 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, s)
	random := rand.New(rand.NewPCG(1, 2))
	for seq := uint64(1); seq <= 3; seq++ {
		batch := randomBatch(random, 10_000)
		batch.Seq = seq
		mustApply(t, s, batch)
		mustSealAll(t, s)
		looked := batch.Claims[:1000]
		lookUp := func() (misses int64) {
			before := s.core.db.Metrics().BlockCache.Misses
			for _, c := range looked {
				if _, found, err := s.Claim(c.Key); !found || err != nil {
					t.Fatal(found, err)
				}
			}
			return s.core.db.Metrics().BlockCache.Misses - before
		}
		lookUp()
		if misses := lookUp(); misses > int64(len(looked))/10 {
			t.Errorf("batch %d: the second look-up of %d claims read %d blocks", seq, len(looked), misses)
		}
	}
}
