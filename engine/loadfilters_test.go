package engine_test

import (
	"errors"
	"io"
	"runtime"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// countJournal returns the store, and the batches whose journal entries are read from it.
func countJournal(m *storetest.Mem) (storage.Store, *[]uint64) {
	var read []uint64
	return &tampered{Mem: m, journal: func(from uint64, fn func(uint64, []byte) error) error {
		return m.Journal(from, func(seq uint64, entry []byte) error {
			read = append(read, seq)
			return fn(seq, entry)
		})
	}}, &read
}

func TestOpeningReadsTheJournalAfterTheSnapshotOnly(t *testing.T) {
	p := newPast(t)
	newest, last := slices.Max(sl(p.e.Snapshots())), p.LastSeq()
	s, read := countJournal(p.CrashClone(0))
	if source, err := p.check(t, s, small); err != nil || source != engine.FromSnapshot {
		t.Fatal(source, err)
	}
	*read = (*read)[:len(*read)-1] // Close, in check, reads the first one
	if i := slices.Index(*read, newest+1); i < 0 || i > 1 || len(*read)-i != int(p.CrashClone(0).LastSeq()-newest) {
		t.Errorf("a snapshot knows %d batches of %d; the entries of %v are read", newest, last, *read)
	}
	mustClose(t, p.e)
	m, err := p.Disk().Open("mem", storage.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	s, read = countJournal(m)
	if source, err := p.check(t, s, small); err != nil || source != engine.FromSnapshot {
		t.Fatal(source, err)
	}
	if i := slices.IndexFunc(*read, func(seq uint64) bool { return seq <= m.LastSeq() }); i >= 0 {
		t.Errorf("after a clean close the entries of %v are read", *read)
	}
}

func TestOpeningHoldsTheFiltersOnce(t *testing.T) {
	o := engine.Options{ExpectedPerWeek: 4 << 20, RecentClaims: -1}
	e, m := openMem(t, o)
	claimMany(t, e, 0, 1, 100, engine.Claimed)
	size := stats(t, e).FilterBytes
	mustClose(t, e)
	least := ^uint64(0)
	for range 3 { // the runtime and others allocate, too
		again, err := m.Disk().Open("mem", storage.Identity{})
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		e := open(t, again, o)
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
		if s := stats(t, e); s.FilterSource != engine.FromSnapshot || s.FilterBytes != size {
			t.Fatalf("%d bytes from %s, want %d", s.FilterBytes, s.FilterSource, size)
		}
		mustClose(t, e)
	}
	if least > size*3/2 {
		t.Errorf("opening filters of %d bytes allocates %d", size, least)
	}
}

// A disk that fails in the middle of a snapshot is an error of Open, not a snapshot to do without.
func TestSnapshotThatCannotBeReadWholeIsAnError(t *testing.T) {
	p := newPast(t)
	newest, content := p.newest()
	for _, n := range []int{0, 3, 40, len(content) / 2, len(content) - 1} {
		_, err := engine.Open(&halfRead{p.CrashClone(0), newest, int64(n)}, small)
		if err == nil || !errors.Is(err, errEIO) {
			t.Errorf("after %d of %d bytes: %v", n, len(content), err)
		}
	}
}

// A halfRead store fails to read a sidecar beyond n bytes.
type halfRead struct {
	*storetest.Mem
	name string
	n    int64
}

var errEIO = errors.New("EIO")

func (s *halfRead) ReadSidecar(name string, read func(r io.Reader, size int64) error) error {
	return s.Mem.ReadSidecar(name, func(r io.Reader, size int64) error {
		if name == s.name {
			r = io.MultiReader(io.LimitReader(r, s.n), iotest.ErrReader(errEIO))
		}
		return read(r, size)
	})
}
