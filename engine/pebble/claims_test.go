package pebble

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A scan uses tables that are sealed meanwhile: their memory is not Go's.
func TestATableIsFreedAfterItsLastUse(t *testing.T) {
	s, err := Open("store", Options{FS: vfs.NewMem(), CacheBytes: 1 << 20, PendingBytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, s)
	random := rand.New(rand.NewPCG(1, 2))
	var scanned, unscanned *memtable.Table
	for seq := uint64(1); seq <= 3; seq++ { // the second table is made with the size of the first
		batch := randomBatch(random, 20_000)
		batch.Seq = seq
		mustApply(t, s, batch)
		unscanned, scanned = scanned, s.memtable.Active()
		if seq == 3 {
			break
		}
		mustSealAll(t, s)
	}
	awaitFreed(t, unscanned)
	want := claimsOf(t, s)
	got := map[string]string{}
	err = s.Scan(t.Context(), storage.Span{}, func() {
		mustSealAll(t, s)
		<-scanned.Done()
		runtime.GC()
	}, func(k, v []byte) error {
		if scanned.IsFreed() {
			return errors.New("a table that a scan uses has no memory")
		}
		got[string(k)] = string(v)
		return nil
	})
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("a scan of %d claims has %d: %v", len(want), len(got), err)
	}
	awaitFreed(t, scanned)
}

// awaitFreed waits for the sealer, which gives a table up after others see it sealed.
func awaitFreed(t *testing.T, table *memtable.Table) {
	t.Helper()
	within(t, patienceInTests, "a table to be freed", func() {
		for !table.IsFreed() {
			runtime.Gosched()
		}
	})
}

// A scan has no use for its list of claims in memory after the last of them, but frees it when it ends.
// Until then the list must keep its address, which the system would give to another list.
func TestAScanFreesNoMemoryOfAnother(t *testing.T) {
	s := mustOpen(t, vfs.NewMem(), "store", false)
	defer mustClose(t, s)
	apply := func(seq uint64, scope string, claims int) {
		b := &storage.Batch{Seq: seq}
		for i := range uint64(claims) {
			b.Claims = append(b.Claims, storage.ClaimWrite{Key: claimKey(scope, 0, i), Record: []byte("r")})
		}
		mustApply(t, s, b)
	}
	const inMemory, inTables = 20_000, 100
	apply(1, "b", inTables)
	mustSealAll(t, s)
	apply(2, "a", inMemory)

	scan := func(at int, fn func()) (n int, err error) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("after %d claims: %v", n, p)
			}
		}()
		err = s.Scan(t.Context(), storage.Span{}, nil, func(_, _ []byte) error {
			if n++; n == at {
				fn()
			}
			return nil
		})
		return n, err
	}
	begun, ended, done := make(chan struct{}), make(chan struct{}), make(chan error)
	n, err := scan(inMemory+1, func() {
		for range 3 {
			runtime.GC()
			time.Sleep(10 * time.Millisecond) // memory of garbage is unmapped by a goroutine
		}
		go func() {
			_, err := scan(1, func() {
				close(begun)
				<-ended
			})
			done <- err
		}()
		<-begun
	})
	close(ended)
	if n != inMemory+inTables || err != nil {
		t.Fatalf("the first scan has %d claims: %v", n, err)
	}
	if err := <-done; err != nil {
		t.Errorf("the second scan: %v", err)
	}
}
