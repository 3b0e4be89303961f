package replica_test

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"sync"
	"testing"

	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// memCopies keeps a copy in memory.
type memCopies struct {
	disk *storetest.Disk
	dir  string
	made bool
	last *storetest.Mem // that was opened
	gone int            // copies that were removed

	failDrop bool // the power is cut before the second drop
}

func (c *memCopies) Open() (storage.Store, error) {
	if !c.made {
		return nil, fs.ErrNotExist
	}
	return c.Create(storage.Identity{})
}

func (c *memCopies) Create(id storage.Identity) (storage.Store, error) {
	m, err := c.disk.Open(c.dir, id)
	if err != nil {
		return nil, err
	}
	c.made, c.last = true, m
	if c.failDrop {
		m.FailAt(storetest.OpDrop, 2, storetest.ErrPowerCut)
	}
	return m, nil
}

func (c *memCopies) Remove() error {
	c.gone++
	c.dir, c.made = fmt.Sprint(c.dir, "-again"), false
	return nil
}

// fork returns a log with the same records.
func fork(log *replica.Memory) *replica.Memory {
	ctx := context.Background()
	start, end, _ := log.Bounds(ctx)
	forked := &replica.Memory{}
	_ = log.Read(ctx, start, end, func(_ int64, value []byte) bool {
		_, err := forked.Append(ctx, value)
		return err == nil
	})
	return forked
}

// A site is a directory of the suite: a log with a copy.
type site struct {
	log    *replica.Memory
	copies replica.Copies
}

// sites are the directories of the suite. The harness of the copies does what concerns them only.
type sites struct {
	mu     sync.Mutex
	at     map[string]*site
	stores map[storage.Store]*site
	copies func(dir string) replica.Copies
	copy   func(c replica.Copies) storage.Store // that is open
	inner  storetest.Harness
	exists func(t testing.TB, dir string) bool // also a backup
}

func (s *sites) harness() storetest.Harness {
	h := s.inner
	h.Open = s.open
	if clone := s.inner.CrashClone; clone != nil {
		h.CrashClone = func(t testing.TB, st storage.Store, dir string, percent int) string {
			from := s.of(st)
			if from == nil {
				return clone(t, s.under(st), dir, percent)
			}
			to := clone(t, s.under(st), dir, percent)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.at[to] = &site{fork(from.log), s.copies(to)}
			return to
		}
	}
	if fail := s.inner.FailWrites; fail != nil {
		h.FailWrites = func(t testing.TB, st storage.Store) error { return fail(t, s.under(st)) }
	}
	if full := s.inner.NoRoom; full != nil {
		h.NoRoom = func(t testing.TB, st storage.Store) func() { return full(t, s.under(st)) }
	}
	if flush := s.inner.Flush; flush != nil {
		h.Flush = func(t testing.TB, st storage.Store) { flush(t, s.under(st)) }
	}
	return h
}

// under returns the copy that a store writes to, or a backup of one.
func (s *sites) under(st storage.Store) storage.Store {
	if backup, ok := st.(withoutPosition); ok {
		return backup.Store
	}
	return s.copy(s.of(st).copies)
}

func (s *sites) of(st storage.Store) *site {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stores[st]
}

func (s *sites) open(t testing.TB, dir string) (storage.Store, error) {
	s.mu.Lock()
	there := s.at[dir]
	if there == nil && s.exists(t, dir) {
		s.mu.Unlock()
		backup, err := s.inner.Open(t, dir)
		if err != nil {
			return nil, err
		}
		return withoutPosition{backup}, nil
	}
	if there == nil {
		there = &site{&replica.Memory{}, s.copies(dir)}
		s.at[dir] = there
	}
	s.mu.Unlock()
	store, err := replica.Open(context.Background(), there.log, there.copies, replica.Options{PartBytes: 1 << 10})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stores[store] = there
	return store, nil
}

// withoutPosition hides the position from the comparison of a backup of a copy.
type withoutPosition struct{ storage.Store }

func (w withoutPosition) ScanState(span storage.Span, fn func(key, value []byte) error) error {
	return w.Store.ScanState(span, func(key, value []byte) error {
		if string(key) == "rposition" {
			return nil
		}
		return fn(key, value)
	})
}

func memSites() *sites {
	disk := storetest.NewDisk()
	inner := disk.Harness()
	clone := inner.CrashClone
	// A Mem may lose batches that it was given before a Drop; what the log then gives it again is dropped
	// by the marks of the engine, which the suite does not write.
	inner.CrashClone = func(t testing.TB, s storage.Store, dir string, _ int) string { return clone(t, s, dir, 100) }
	return &sites{
		at: map[string]*site{}, stores: map[storage.Store]*site{}, inner: inner,
		copies: func(dir string) replica.Copies {
			return &memCopies{disk: disk, dir: dir, made: inner.Fingerprint(nil, dir) != ""}
		},
		copy:   func(c replica.Copies) storage.Store { return c.(*memCopies).last },
		exists: func(t testing.TB, dir string) bool { return inner.Fingerprint(t, dir) != "" },
	}
}

// records returns the records of a log.
func records(log replica.Log) (all [][]byte) {
	ctx := context.Background()
	start, end, _ := log.Bounds(ctx)
	_ = log.Read(ctx, start, min(end, math.MaxInt64), func(_ int64, value []byte) bool {
		all = append(all, append([]byte{}, value...))
		return true
	})
	return all
}
