package pebble

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/crashfs"
)

// A heldFS tells when a file is created that is one of the held ones, and holds the call until goOn
// is closed.
type heldFS struct {
	vfs.FS
	held  func(path string, category vfs.DiskWriteCategory) bool
	begun chan struct{} // takes one
	goOn  chan struct{}
	any   atomic.Bool
}

func hold(fsys vfs.FS, held func(path string, category vfs.DiskWriteCategory) bool) *heldFS {
	return &heldFS{FS: fsys, held: held, begun: make(chan struct{}, 1), goOn: make(chan struct{})}
}

func ofCompaction(_ string, category vfs.DiskWriteCategory) bool {
	return category == "pebble-compaction"
}

func ofSeal(path string, _ vfs.DiskWriteCategory) bool { return strings.Contains(path, runPrefix) }

func (f *heldFS) Create(path string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if f.held(path, category) {
		f.any.Store(true)
		select {
		case f.begun <- struct{}{}:
		default:
		}
		<-f.goOn
	}
	return f.FS.Create(path, category)
}

// Pebble waits for compactions at the end of its Open, so that none must begin before. One that is
// due begins with the first batch.
func TestNoCompactionBeginsBeforeTheFirstBatch(t *testing.T) {
	fsys := crashfs.New()
	c := hold(fsys, ofCompaction)
	s, err := Open("store", Options{FS: c, SmallTables: true, CacheBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	seq := uint64(1)
	for ; !c.any.Load(); seq++ {
		mustApply(t, s, batchOf(seq, 100))
		mustSealAll(t, s)
	}
	killed := fsys.CrashClone(vfs.CrashCloneCfg{})
	close(c.goOn)
	mustClose(t, s)
	nothingBeginsBefore(t, killed, ofCompaction, seq)
}

// A table that was full before a kill is sealed with the first batch, also if that must wait for it
// because the next table is full as well.
func TestNoSealBeginsBeforeTheFirstBatch(t *testing.T) {
	fsys := crashfs.New()
	c := hold(fsys, ofSeal)
	s, err := Open("store", Options{FS: c, SmallTables: true, CacheBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	seq := fill(t, s, 1, 100) + 1
	for ; !s.memtable.IsFull(); seq++ {
		mustApply(t, s, batchOf(seq, 100))
	}
	killed := fsys.CrashClone(vfs.CrashCloneCfg{})
	close(c.goOn)
	mustClose(t, s)
	nothingBeginsBefore(t, killed, ofSeal, seq)
}

// nothingBeginsBefore opens a killed store, in which files of a kind are due, and checks that none
// is created before batch seq is applied, which is the first one.
func nothingBeginsBefore(t *testing.T, killed vfs.FS, held func(string, vfs.DiskWriteCategory) bool, seq uint64) {
	c := hold(killed, held)
	var s *Store
	var err error
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		s, err = Open("store", Options{FS: c, SmallTables: true, CacheBytes: 1 << 20, startupTime: time.Hour})
	}()
	select {
	case <-opened:
	case <-time.After(time.Minute):
		close(c.goOn)
		<-opened
		t.Fatal("Open waits for it")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := s.core.db.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		runtime.Gosched() // to those who would begin
	}
	if c.any.Load() {
		t.Error("it has begun before the first batch")
	}
	go func() {
		<-c.begun
		close(c.goOn)
	}()
	mustApply(t, s, batchOf(seq, 100))
	<-c.goOn
	mustClose(t, s)
}

// Pebble may ask for compactions, and wait for some, before the end of the startup. They are
// granted after it.
func TestSchedulerGrantsAfterTheStartup(t *testing.T) {
	u := newStartup()
	s := newScheduler(u)
	db := &waitingDB{scheduled: make(chan struct{}, 1)}
	s.Register(1, db)
	s.start()
	for range 1000 {
		runtime.Gosched()
		if may, _ := s.TrySchedule(); may || len(db.scheduled) > 0 {
			t.Fatal("a compaction is granted during the startup")
		}
	}
	u.end()
	<-db.scheduled
	s.Done()
	s.Unregister()

	s = newScheduler(newStartup())
	s.Register(1, db)
	s.start()
	s.Unregister()
	if may, _ := s.TrySchedule(); may || len(db.scheduled) > 0 {
		t.Error("a compaction is granted after the end")
	}
}

// A compaction that is canceled while it waits is not run, and later ones are.
func TestACanceledCompactionIsForgotten(t *testing.T) {
	s, err := Open("store", Options{FS: vfs.NewMem(), SmallTables: true, startupTime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"a", "b"} { // in two tables
		must(s.core.db.Set(spaced(stateSpace, []byte("key")), []byte(value), nil))
		must(s.core.db.Flush())
	}
	ctx, cancel := context.WithCancel(t.Context())
	canceled := make(chan error)
	go func() { canceled <- s.core.db.Compact(ctx, []byte{0}, []byte{255}, false) }()
	for waiting := false; !waiting; waiting, _ = s.core.db.GetWaitingCompaction() {
		runtime.Gosched()
	}
	cancel()
	if err := <-canceled; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	s.core.startup.end()
	if err := s.core.db.Compact(t.Context(), []byte{0}, []byte{255}, false); err != nil {
		t.Error(err)
	}
	mustClose(t, s)
}

// A waitingDB always has a compaction that waits, and may run one.
type waitingDB struct {
	pebble.DBForCompaction
	scheduled chan struct{} // takes one
}

func (*waitingDB) GetAllowedWithoutPermission() int { return 1 }

func (*waitingDB) GetWaitingCompaction() (bool, pebble.WaitingCompaction) {
	return true, pebble.WaitingCompaction{}
}

func (db *waitingDB) Schedule(pebble.CompactionGrantHandle) bool {
	db.scheduled <- struct{}{}
	return true
}

// The startup also ends when its time has passed, when the store is closed, and before space is
// freed.
func TestStartupEndsWithoutABatch(t *testing.T) {
	for _, limit := range []time.Duration{1, time.Hour} {
		s, err := Open("store", Options{FS: vfs.NewMem(), startupTime: limit})
		if err != nil {
			t.Fatal(err)
		}
		if limit == 1 {
			<-s.core.startup.over
		}
		mustClose(t, s)
		<-s.core.startup.over
	}
	for _, free := range []func(s *Store) error{
		func(s *Store) error { return s.Reclaim(t.Context(), []storage.Bucket{{Scope: "a", Week: week0}}) },
		func(s *Store) error { return s.ReclaimState(t.Context(), storage.Span{Prefix: []byte("a")}) },
	} {
		s, err := Open("store", Options{FS: vfs.NewMem(), startupTime: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if err := free(s); err != nil {
			t.Fatal(err)
		}
		<-s.core.startup.over
		mustClose(t, s)
	}
}
