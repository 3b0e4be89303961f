package pebble

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hapax-dev/hapax/internal/crashfs"
)

// compactionFS tells when a compaction begins to write a table, and holds it there until go on is
// closed.
type compactionFS struct {
	vfs.FS
	begun chan struct{} // takes one
	goOn  chan struct{}
	any   atomic.Bool
}

func newCompactionFS(fsys vfs.FS) *compactionFS {
	return &compactionFS{FS: fsys, begun: make(chan struct{}, 1), goOn: make(chan struct{})}
}

func (c *compactionFS) Create(path string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if category == "pebble-compaction" {
		c.any.Store(true)
		select {
		case c.begun <- struct{}{}:
		default:
		}
		<-c.goOn
	}
	return c.FS.Create(path, category)
}

// Pebble waits for compactions at the end of its Open, so that none must begin before. One that is
// due begins after it.
func TestNoCompactionBeginsBeforeTheStoreIsOpen(t *testing.T) {
	fsys := vfs.NewCrashableMem()
	c := newCompactionFS(crashfs.Wrap(fsys))
	o := Options{FS: c, SmallTables: true, CacheBytes: 1 << 20}
	s, err := Open("store", o)
	if err != nil {
		t.Fatal(err)
	}
	seq := uint64(1)
	for ; !c.any.Load(); seq++ {
		mustApply(t, s, batchOf(seq, 100))
		mustSealAll(t, s)
	}
	killed := crashfs.Clone(fsys, vfs.CrashCloneCfg{})
	close(c.goOn)
	mustClose(t, s)

	c = newCompactionFS(killed)
	o.FS = c
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		s, err = Open("store", o)
	}()
	select {
	case <-opened:
	case <-time.After(time.Minute):
		close(c.goOn)
		<-opened
		t.Error("Open waits for a compaction")
	}
	if err != nil {
		t.Fatal(err)
	}
	<-c.begun
	if !t.Failed() {
		close(c.goOn)
	}
	mustApply(t, s, batchOf(seq, 100))
	mustClose(t, s)
}
