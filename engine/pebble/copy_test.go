package pebble

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/internal/crashfs"
)

// syncsOfLogs counts the syncs of logs, and can make all writes fail.
type syncsOfLogs struct {
	syncs   atomic.Int64
	failing atomic.Bool
}

func (c *syncsOfLogs) MaybeError(op errorfs.Op) error {
	if strings.HasSuffix(op.Path, logSuffix) && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo) {
		c.syncs.Add(1)
	}
	if c.failing.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
		return errorfs.ErrInjected
	}
	return nil
}

func (c *syncsOfLogs) String() string { return "(counting)" }

// copyWith opens a copy in memory, made with a new identity, and applies batches.
func copyWith(t *testing.T, last uint64, n int) (*crashfs.FS, *syncsOfLogs, *Store) {
	t.Helper()
	disk, counter := crashfs.New(), &syncsOfLogs{}
	c := CopyIn("copy", Options{FS: errorfs.Wrap(disk, counter), SmallTables: true})
	if _, err := c.Open(); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a copy that is not there: %v", err)
	}
	id := storage.NewIdentity()
	s, err := c.Create(id)
	if err != nil || s.Identity() != id {
		t.Fatal(err)
	}
	counter.syncs.Store(0)
	for seq := uint64(1); seq <= last; seq++ {
		if wait, err := s.Apply(batchOf(seq, n)); err != nil || wait() != nil {
			t.Fatal(err)
		}
	}
	return disk, counter, s.(*Store)
}

// A copy is not synced for each batch. A power cut leaves its first batches, which is no damage; what was
// applied before a sidecar was written, or a bucket dropped, is there.
func TestCopyKeepsAPrefixWithoutSyncs(t *testing.T) {
	for what, sync := range map[string]func(s *Store) error{
		"nothing":   func(*Store) error { return nil },
		"a sidecar": func(s *Store) error { return s.WriteSidecar("x", func(io.Writer) error { return nil }) },
		"a drop":    func(s *Store) error { return s.Drop([]storage.Bucket{{Scope: "none", Week: 1}}) },
	} {
		disk, counter, s := copyWith(t, 30, 3)
		if n := counter.syncs.Load(); n > 0 {
			t.Errorf("%d syncs of the log for 30 batches", n)
		}
		if err := sync(s); err != nil {
			t.Fatal(err)
		}
		if wait, err := s.Apply(batchOf(31, 3)); err != nil || wait() != nil {
			t.Fatal(err)
		}
		crashed := disk.CrashClone(vfs.CrashCloneCfg{})
		again, err := CopyIn("copy", Options{FS: crashed, SmallTables: true}).Open()
		if err != nil {
			t.Fatalf("after a power cut: %v", err)
		}
		found := again.LastSeq()
		if what == "nothing" && found == 31 || what != "nothing" && found < 30 {
			t.Errorf("after %s and a power cut the last batch is %d", what, found)
		}
		if again.Identity() != s.Identity() {
			t.Error("it has another identity")
		}
		if err := errors.Join(again.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	}
}

// Many batches: claims are sealed in tables meanwhile, and what a power cut leaves is without a gap.
func TestCopyWithTablesKeepsAPrefix(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	disk, _, s := copyWith(t, 200, 100)
	for percent := 0; percent <= 100; percent += 20 {
		crashed := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rnd})
		again, err := CopyIn("copy", Options{FS: crashed, SmallTables: true}).Open()
		if err != nil {
			t.Fatalf("%d %%: %v", percent, err)
		}
		for seq := uint64(1); seq <= 200; seq++ {
			for _, w := range batchOf(seq, 100).Claims {
				if _, found, err := again.Claim(w.Key); err != nil || found != (seq <= again.LastSeq()) && w.Record != nil {
					t.Fatalf("%d %%: a claim of batch %d is found: %v, %v; the last one is %d", percent, seq, found, err, again.LastSeq())
				}
			}
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	after, err := CopyIn("copy", Options{FS: disk, SmallTables: true}).Open()
	if err != nil || after.LastSeq() != 200 {
		t.Fatal(after, err)
	}
	if err := after.Close(); err != nil {
		t.Error(err)
	}
}

// A copy on a failed disk fails with the next sync, and then with each batch.
func TestCopyNoticesAFailedDisk(t *testing.T) {
	_, counter, s := copyWith(t, 3, 3)
	counter.failing.Store(true)
	if err := s.WriteSidecar("x", func(io.Writer) error { return nil }); !errors.Is(err, errorfs.ErrInjected) {
		t.Error(err)
	}
	if _, err := s.Apply(batchOf(4, 3)); !errors.Is(err, errorfs.ErrInjected) {
		t.Error(err)
	}
	_ = s.Close()
}

func TestCopyIsRemoved(t *testing.T) {
	disk, _, s := copyWith(t, 30, 3)
	c := CopyIn("copy", Options{FS: disk, SmallTables: true})
	if err := c.Remove(); !errors.Is(err, storage.ErrLocked) {
		t.Errorf("removing an open copy: %v", err)
	}
	if err := s.WriteSidecar("x", func(io.Writer) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(storage.NewIdentity()); !errors.Is(err, fs.ErrExist) {
		t.Errorf("creating a copy over another: %v", err)
	}
	foreign := disk.PathJoin("copy", "letter.txt")
	f, err := disk.Create(foreign, vfs.WriteCategoryUnspecified)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Remove(); !errors.Is(err, storage.ErrForeign) {
		t.Errorf("removing a directory with another file: %v", err)
	}
	if err := disk.Remove(foreign); err != nil {
		t.Fatal(err)
	}
	// interrupted before its last step, it leaves what is damaged
	part := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 2))})
	names, err := part.List("copy")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if name != sidecar.IdentityName && name != lockName {
			if err := part.RemoveAll(part.PathJoin("copy", name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := CopyIn("copy", Options{FS: part}).Open(); !errors.Is(err, storage.ErrDamaged) {
		t.Errorf("a copy that was removed in part: %v", err)
	}
	if err := c.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Open(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after it was removed: %v", err)
	}
	again, err := c.Create(storage.NewIdentity())
	if err != nil || again.LastSeq() != 0 {
		t.Fatal(fmt.Sprint(again), err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// A copy may lack acknowledged claims, and a store of its own is all that there is: neither is opened,
// or removed, as the other. A backup of a copy is a store of its own.
func TestCopyIsAnotherKindOfStore(t *testing.T) {
	disk, _, s := copyWith(t, 5, 3)
	o := Options{FS: disk, SmallTables: true}
	if err := errors.Join(s.Backup(t.Context(), "backup"), s.Verify(t.Context(), func(problem string) { t.Error(problem) }), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open("copy", o); !errors.Is(err, storage.ErrForeign) {
		t.Errorf("a copy is opened as a store: %v", err)
	}
	own, err := Open("backup", o)
	if err != nil || own.LastSeq() != 5 || own.Close() != nil {
		t.Fatal(err)
	}
	c := CopyIn("backup", o)
	for _, damage := range []bool{false, true} {
		if damage {
			if err := disk.Remove(disk.PathJoin("backup", attestName)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Open(); !errors.Is(err, storage.ErrForeign) {
			t.Errorf("a store is opened as a copy: %v", err)
		}
		if _, err := c.Create(storage.NewIdentity()); !errors.Is(err, storage.ErrForeign) {
			t.Errorf("a copy is created over a store: %v", err)
		}
		if err := c.Remove(); !errors.Is(err, storage.ErrForeign) {
			t.Errorf("a store is removed as a copy: %v", err)
		}
	}
}
