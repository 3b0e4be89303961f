package pebble

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/internal/crashfs"
)

// failing fails matching operations while it is on.
type failing struct {
	on    atomic.Bool
	match func(errorfs.Op) bool
}

func (f *failing) String() string { return "(failing)" }

func (f *failing) MaybeError(op errorfs.Op) error {
	if f.on.Load() && f.match(op) {
		return errorfs.ErrInjected
	}
	return nil
}

func onLog(kinds ...errorfs.OpKind) func(errorfs.Op) bool {
	return func(op errorfs.Op) bool {
		for _, k := range kinds {
			if op.Kind == k && strings.HasSuffix(op.Path, ".log") {
				return true
			}
		}
		return false
	}
}

func TestEveryWaiterHearsOfAFailedLog(t *testing.T) {
	for _, c := range []struct {
		name  string
		match func(errorfs.Op) bool
	}{
		{"write", onLog(errorfs.OpFileWrite)},
		{"sync", onLog(errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo)},
		{"create", onLog(errorfs.OpCreate, errorfs.OpReuseForWrite)},
		{"everything", func(op errorfs.Op) bool { return op.Kind.ReadOrWrite() == errorfs.OpIsWrite }},
	} {
		t.Run(c.name, func(t *testing.T) {
			within(t, patienceInTests, "a store with a failing log", func() {
				mem := vfs.NewMem()
				inj := &failing{match: c.match}
				const n = 500
				s := mustOpen(t, errorfs.Wrap(mem, inj), "store", true)
				for seq := uint64(1); seq <= 5; seq++ {
					mustApply(t, s, batchOf(seq, n))
				}
				inj.on.Store(true)
				var waits []func() error
				var err error
				for seq := uint64(6); err == nil && seq < 100; seq++ {
					var wait func() error
					if wait, err = s.Apply(batchOf(seq, n)); err == nil {
						waits = append(waits, wait)
					}
				}
				confirmed, failed := uint64(5), false
				for _, wait := range waits {
					switch err := wait(); {
					case err == nil && failed:
						t.Error("a batch is confirmed after one that failed")
					case err == nil:
						confirmed++
					case !errors.Is(err, errorfs.ErrInjected):
						t.Error(err)
					default:
						failed = true
					}
				}
				if confirmed == 99 {
					t.Error("nothing failed")
				}
				for what, err := range map[string]error{
					"Apply":        func() error { _, err := s.Apply(batchOf(s.writer.applied+1, 1)); return err }(),
					"TrimJournal":  s.TrimJournal(2),
					"Drop":         s.Drop([]storage.Bucket{{Scope: "scope0", Week: week0}}),
					"Reclaim":      s.Reclaim(context.Background(), []storage.Bucket{{Scope: "scope0", Week: week0}}),
					"WriteSidecar": s.WriteSidecar("x", writeString("x")),
					"Backup":       s.Backup(context.Background(), "backup"),
					"Close":        s.Close(),
				} {
					if !errors.Is(err, errorfs.ErrInjected) {
						t.Errorf("%s on a poisoned store: %v", what, err)
					}
				}
				s = mustOpen(t, mem, "store", true)
				last, err := prefixOf(s, n)
				if err != nil || last < confirmed {
					t.Errorf("batches to %d were confirmed, %d are there: %v", confirmed, last, err)
				}
				mustClose(t, s)
			})
		})
	}
}

// The disk recognizes the files of the directory by its name: an unclean one must not hide them.
func TestAnUncleanNameOfADirectoryIsCleaned(t *testing.T) {
	for _, name := range []string{"store/", "./store", "other/../store", "dir//store", "/store/."} {
		mem := vfs.NewMem()
		inj := &failing{match: onLog(errorfs.OpFileWrite)}
		s := mustOpen(t, errorfs.Wrap(mem, inj), name, true)
		mustApply(t, s, batchOf(1, 100))
		if u, err := s.Usage(); err != nil || u.WrittenBytes == 0 {
			t.Fatalf("%s: the disk has seen no write to %s: %v", name, s.core.disk.dir, err)
		}
		inj.on.Store(true)
		wait, err := s.Apply(batchOf(2, 100))
		if err == nil {
			err = wait()
		}
		if !errors.Is(err, errorfs.ErrInjected) {
			t.Errorf("%s: a batch that cannot be written: %v", name, err)
		}
		if err := s.Close(); !errors.Is(err, errorfs.ErrInjected) {
			t.Errorf("%s: Close: %v", name, err)
		}
		s = mustOpen(t, mem, mem.PathJoin(name), true)
		assertContents(t, s, model(1, 100))
		mustClose(t, s)
	}
	if _, err := Open("", Options{FS: vfs.NewMem()}); err == nil {
		t.Error("a directory without a name is opened")
	}
}

// What is written after the failure never reaches the directory, although it is reported as done.
func TestADeadDiskDiscardsChanges(t *testing.T) {
	mem := vfs.NewMem()
	if err := mem.MkdirAll("store", 0o700); err != nil {
		t.Fatal(err)
	}
	rewrite(t, mem, "store/old", []byte("old"))
	d := newFailStopFS(mem, "store")
	f, err := d.Create("store/file", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	before := fingerprint(t, mem, "store")
	d.fault.set(errorfs.ErrInjected)
	for what, op := range map[string]func() error{
		"Write":   func() error { _, err := f.Write([]byte("late")); return err },
		"WriteAt": func() error { _, err := f.WriteAt([]byte("late"), 0); return err },
		"Create":  func() error { _, err := d.Create("store/new", vfs.WriteCategoryUnspecified); return err },
		"Reuse": func() error {
			_, err := d.ReuseForWrite("store/old", "store/new", vfs.WriteCategoryUnspecified)
			return err
		},
		"Rename": func() error { return d.Rename("store/old", "store/new") },
		"Link":   func() error { return d.Link("store/old", "store/new") },
		"Remove": func() error { return d.Remove("store/old") },
	} {
		if err := op(); err != nil || fingerprint(t, mem, "store") != before {
			t.Errorf("%s after the failure: %v; the directory is changed: %v", what, err, fingerprint(t, mem, "store") != before)
		}
	}
}

const sinkChild = "HAPAX_PEBBLE_SINK_CHILD"

// The control for failstop.go: if Pebble gets the error that a new log cannot be created, the process
// ends.
func TestWithoutTheSinkAFailedLogIsSeenToEndTheProcess(t *testing.T) {
	if os.Getenv(sinkChild) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=TestWithoutTheSink")
		cmd.Env = append(os.Environ(), sinkChild+"=1")
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "fatal error") {
			t.Fatalf("the process lives: the sink is not needed any more? %v, %.500s", err, out)
		}
		return
	}
	inj := &failing{match: onLog(errorfs.OpCreate, errorfs.OpReuseForWrite)}
	o := Options{SmallTables: true}
	if err := o.setDefaults(); err != nil {
		t.Fatal(err)
	}
	fsys := errorfs.Wrap(vfs.NewMem(), inj)
	p := o.pebbleOptions(newFailStopFS(fsys, "store"))
	p.FS = fsys
	db, err := pebble.Open("store", p)
	if err != nil {
		t.Fatal(err)
	}
	inj.on.Store(true)
	for i := range 100 {
		if err := db.Set([]byte{byte(i)}, make([]byte, 16<<10), pebble.Sync); err != nil {
			time.Sleep(patienceInTests) // Set does not wait for the end
			return
		}
	}
}

// snapshots copies the state that a power failure just before operation at would leave.
type snapshots struct {
	fs   *crashfs.FS
	kept int
	at   int64
	n    atomic.Int64
	got  *crashfs.FS
}

func (c *snapshots) String() string { return "(snapshots)" }

func (c *snapshots) MaybeError(errorfs.Op) error {
	c.cut()
	return nil
}

// cut counts an operation and reports whether the power fails before it.
func (c *snapshots) cut() bool {
	if c.n.Add(1)-1 != c.at {
		return false
	}
	c.got = c.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: c.kept, RNG: rng(uint64(c.at))})
	return true
}

// everyCrash runs work on a copy of start, cuts the power before each step-th operation, and passes
// on the remaining state.
func everyCrash(t *testing.T, start *crashfs.FS, step int64, work func(vfs.FS), check func(what string, fsys *crashfs.FS)) {
	t.Helper()
	clone := func() *crashfs.FS { return start.CrashClone(vfs.CrashCloneCfg{}) }
	count := &snapshots{at: -1}
	work(errorfs.Wrap(clone(), count))
	for _, kept := range []int{0, 50, 100} {
		for at := int64(0); at < count.n.Load(); at += step {
			mem := clone()
			c := &snapshots{fs: mem, kept: kept, at: at}
			what := fmt.Sprintf("power cut before operation %d of %d, %d %% kept", at, count.n.Load(), kept)
			within(t, patienceInTests, what, func() {
				work(errorfs.Wrap(mem, c))
				if c.got != nil {
					check(what, c.got)
				}
			})
		}
	}
}

// stepInTests is how many operations a sweep skips at a time: none if HAPAX_SWEEP is set to all.
func stepInTests(step int64) int64 {
	switch {
	case os.Getenv("HAPAX_SWEEP") == "all":
		return 1
	case testing.Short():
		return step * 8
	}
	return step * sparse
}

func TestAPowerCutWhileCreatingLeavesNothingInTheWay(t *testing.T) {
	t.Parallel()
	work := func(fsys vfs.FS) {
		s := mustOpen(t, fsys, "deep/store", true)
		mustApply(t, s, batchOf(1, 5))
		mustClose(t, s)
	}
	everyCrash(t, crashfs.New(), stepInTests(23), work, func(what string, fsys *crashfs.FS) {
		s, err := Open("deep/store", Options{FS: fsys, SmallTables: true})
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		if _, err := prefixOf(s, 5); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		mustClose(t, s)
	})
}

func TestAPowerCutWhileOpeningOrClosingLosesNothing(t *testing.T) {
	t.Parallel()
	const n = 200
	start := crashfs.New()
	s := mustOpen(t, start, "store", true)
	for seq := uint64(1); seq <= 8; seq++ {
		mustApply(t, s, batchOf(seq, n))
	}
	unclean := start.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	for name, start := range map[string]*crashfs.FS{"closed": start, "killed": unclean} {
		t.Run(name, func(t *testing.T) {
			var acked atomic.Uint64
			work := func(fsys vfs.FS) {
				acked.Store(8)
				s := mustOpen(t, fsys, "store", true)
				mustApply(t, s, batchOf(9, n))
				mustClose(t, s)
			}
			everyCrash(t, start, stepInTests(41), work, func(what string, fsys *crashfs.FS) {
				s, err := Open("store", Options{FS: fsys, SmallTables: true})
				if err != nil {
					t.Errorf("%s: %v", what, err)
					return
				}
				if last, err := prefixOf(s, n); err != nil || last < 8 {
					t.Errorf("%s: newest batch %d: %v", what, last, err)
				}
				mustClose(t, s)
			})
		})
	}
}

// A disk that fails during Open, once or from then on, or is full from then on, gives an error with the cause.
// It does not end the process, also not in a goroutine of Pebble, and nothing hangs; what Open left is opened.
func TestAnyFailingOperationOfOpenIsAnError(t *testing.T) {
	t.Parallel()
	const n = 200
	start := crashfs.New()
	s := mustOpen(t, start, "store", true)
	for seq := uint64(1); seq <= 30; seq++ {
		mustApply(t, s, batchOf(seq, n))
	}
	killed := start.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	for _, c := range []struct {
		name  string
		start *crashfs.FS
		fails *failingFrom
	}{
		{"killed, fails once", killed, &failingFrom{err: syscall.EIO, once: true}},
		{"killed, fails", killed, &failingFrom{err: syscall.EIO}},
		{"killed, full", killed, &failingFrom{err: syscall.ENOSPC, writes: true}},
		{"closed, fails once", start, &failingFrom{err: syscall.EIO, once: true}},
		{"closed, fails", start, &failingFrom{err: syscall.EIO}},
		{"closed, full", start, &failingFrom{err: syscall.ENOSPC, writes: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			count := &failingFrom{writes: c.fails.writes, at: math.MaxInt64}
			mustClose(t, mustOpen(t, errorfs.Wrap(c.start.CrashClone(vfs.CrashCloneCfg{}), count), "store", true))
			failed, step := 0, stepInTests(23)
			if c.fails.writes {
				step = sparse
			}
			step = min(step, max(1, count.n.Load()/20))
			for at := int64(0); at < count.n.Load(); at += step {
				what := fmt.Sprintf("operation %d of %d", at, count.n.Load())
				mem := c.start.CrashClone(vfs.CrashCloneCfg{})
				f := &failingFrom{at: at, err: c.fails.err, once: c.fails.once, writes: c.fails.writes}
				within(t, patienceInTests, what, func() {
					s, err := Open("store", Options{FS: errorfs.Wrap(mem, f), SmallTables: true, CacheBytes: 1 << 20})
					switch {
					case err == nil:
						_ = s.Close()
					case errors.Is(err, f.err):
						failed++
					default:
						t.Errorf("%s: the error does not wrap the cause: %v", what, err)
					}
				})
				within(t, patienceInTests, what+", reopened", func() {
					s, err := Open("store", Options{FS: mem, SmallTables: true, CacheBytes: 1 << 20})
					if err != nil {
						t.Errorf("%s: reopening: %v", what, err)
						return
					}
					if last, err := prefixOf(s, n); err != nil || last != 30 {
						t.Errorf("%s: newest batch %d: %v", what, last, err)
					}
					mustClose(t, s)
				})
			}
			if failed < 5 {
				t.Errorf("of %d operations only %d made Open fail", count.n.Load(), failed)
			}
		})
	}
}

// A failingFrom fails the operation with the number at, or all from that on.
type failingFrom struct {
	at           int64
	err          error
	once, writes bool // writes leaves out operations that need no space
	n            atomic.Int64
}

func (*failingFrom) String() string { return "(failing from)" }

func (f *failingFrom) MaybeError(op errorfs.Op) error {
	if f.writes {
		switch op.Kind {
		case errorfs.OpCreate, errorfs.OpFileWrite, errorfs.OpFileWriteAt, errorfs.OpMkdirAll, errorfs.OpLink, errorfs.OpFilePreallocate:
		default:
			return nil
		}
	}
	if n := f.n.Add(1) - 1; n < f.at || f.once && n > f.at {
		return nil
	}
	return f.err
}

// A disk fails after Pebble has opened a directory, and has goroutines, memory and files for it.
func TestAFailedOpenOrBackupLeavesNothingOpen(t *testing.T) {
	fsys := vfs.NewMem()
	mustClose(t, mustOpen(t, fsys, "store", true))
	attest := &failing{match: func(op errorfs.Op) bool {
		return op.Kind == errorfs.OpCreate && strings.HasPrefix(fsys.PathBase(op.Path), attestName) && fsys.PathDir(op.Path) != "other"
	}}
	attest.on.Store(true)
	s := mustOpen(t, errorfs.Wrap(fsys, attest), "other", true)
	defer mustClose(t, s)
	before := runtime.NumGoroutine()
	const times = 10 // more than the goroutines that s is beginning
	for range times {
		if _, err := Open("store", Options{FS: errorfs.Wrap(fsys, attest), SmallTables: true}); !errors.Is(err, errorfs.ErrInjected) {
			t.Fatal(err)
		}
		if err := s.Backup(context.Background(), "backup"); !errors.Is(err, errorfs.ErrInjected) {
			t.Fatal(err)
		}
	}
	eventually(t, "the goroutines of Pebble have ended", func() bool { return runtime.NumGoroutine() < before+times })
}

func TestAnInterruptedBackupIsNoStore(t *testing.T) {
	t.Parallel()
	const n = 100
	start := crashfs.New()
	s := mustOpen(t, start, "store", true)
	for seq := uint64(1); seq <= 5; seq++ {
		mustApply(t, s, batchOf(seq, n))
	}
	mustClose(t, s)
	whole := 0
	work := func(fsys vfs.FS) {
		s := mustOpen(t, fsys, "store", true)
		if err := s.Backup(context.Background(), "backup"); err != nil {
			t.Error(err)
		}
		mustClose(t, s)
	}
	check := func(what string, fsys *crashfs.FS) {
		mustClose(t, mustOpen(t, fsys, "store", true))
		if names, err := fsys.List("store"); err != nil || slices.Contains(names, stageName) {
			t.Errorf("%s: the stage is left: %v", what, err)
		}
		names, _ := fsys.List("backup")
		if !slices.ContainsFunc(names, func(name string) bool { return name != lockName }) {
			return // nothing was copied yet: an empty directory becomes a new store
		}
		s, err := Open("backup", Options{FS: fsys, SmallTables: true})
		if err != nil {
			if !errors.Is(err, storage.ErrForeign) && !errors.Is(err, storage.ErrDamaged) {
				t.Errorf("%s: %v", what, err)
			}
			return
		}
		if last, err := prefixOf(s, n); err != nil || last != 5 {
			t.Errorf("%s: the backup has %d batches: %v", what, last, err)
		}
		whole++
		mustClose(t, s)
	}
	everyCrash(t, start, stepInTests(41), work, check)
	interrupted := whole
	after := start.CrashClone(vfs.CrashCloneCfg{})
	work(after)
	check("power cut after all", after.CrashClone(vfs.CrashCloneCfg{}))
	if whole != interrupted+1 {
		t.Error("a backup that ended is not whole")
	}
}

func TestADirectoryOfSomebodyElseIsRefusedUntouched(t *testing.T) {
	for _, name := range []string{"photo.jpg", "000004.log", "MANIFEST-000001", "sidecar-filter", attestName} {
		fsys := vfs.NewMem()
		if err := fsys.MkdirAll("store", 0o700); err != nil {
			t.Fatal(err)
		}
		rewrite(t, fsys, "store/"+name, []byte("mine"))
		before := fingerprint(t, fsys, "store")
		if s, err := Open("store", Options{FS: fsys}); !errors.Is(err, storage.ErrForeign) {
			t.Errorf("a directory with %s: %v, %v", name, s, err)
		}
		if fingerprint(t, fsys, "store") != before {
			t.Errorf("a directory with %s was changed", name)
		}
	}
}

// A store that lost its identity is not mistaken for an incomplete creation, which may be removed.
func TestAStoreWithoutIdentityIsNotCreatedAnew(t *testing.T) {
	files, _ := cleanStore(t, 2, 10)
	delete(files, sidecar.IdentityName)
	fsys := diskOf(t, files, "", nil)
	if s, err := Open("store", Options{FS: fsys}); !errors.Is(err, storage.ErrForeign) {
		t.Fatal(s, err)
	}
}

const lockChild = "HAPAX_PEBBLE_LOCK_CHILD"

func TestOneProcessPerDirectory(t *testing.T) {
	if dir := os.Getenv(lockChild); dir != "" {
		if _, err := Open(dir, Options{}); errors.Is(err, storage.ErrLocked) {
			fmt.Println("locked")
		}
		return
	}
	dir := t.TempDir() + "/store"
	s := mustOpen(t, nil, dir, true)
	if s, err := Open(dir, Options{}); !errors.Is(err, storage.ErrLocked) {
		t.Fatal("the same process:", s, err)
	}
	link := t.TempDir()
	if err := os.Symlink(dir[:len(dir)-len("/store")], link+"/link"); err == nil {
		if s, err := Open(link+"/link/store", Options{}); !errors.Is(err, storage.ErrLocked) {
			t.Fatal("another name of the directory:", s, err)
		}
	}
	child := func() string {
		cmd := exec.Command(os.Args[0], "-test.run=TestOneProcessPerDirectory")
		cmd.Env = append(os.Environ(), lockChild+"="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatal(err, string(out))
		}
		return string(out)
	}
	if out := child(); !strings.Contains(out, "locked") {
		t.Fatal("another process:", out)
	}
	mustClose(t, s)
}

func TestTheDirectoryIsOursAlone(t *testing.T) {
	dir := t.TempDir() + "/a/store"
	mustClose(t, mustOpen(t, nil, dir, true))
	for path, want := range map[string]fs.FileMode{dir: 0o700, dir + "/" + sidecar.IdentityName: 0o600} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v", path, info.Mode(), err)
		}
	}
}

// A write that the disk discards after a failure is never acknowledged. The test blocks the failing
// goroutine just before it publishes the fault; until then another goroutine may still write, and
// the result that it gets must be true.
func TestABatchAppliedWhileAFaultIsPublishedIsOnDiskIfItIsConfirmed(t *testing.T) {
	within(t, patienceInTests, "a store whose fault is being published", func() {
		mem := crashfs.New()
		s := mustOpen(t, mem, "store", true)
		mustApply(t, s, batchOf(1, 10))
		publishing, applied := make(chan struct{}), make(chan struct{})
		s.core.fault.publishing = func() {
			close(publishing)
			<-applied
		}
		go func() {
			_ = s.core.disk.change("writing", "a file", func() error { return errorfs.ErrInjected })
		}()
		<-publishing
		wait, err := s.Apply(batchOf(2, 10))
		if err == nil {
			err = wait()
		}
		crashed := mem.CrashClone(vfs.CrashCloneCfg{})
		close(applied)
		<-s.core.fault.failed
		if err := s.Close(); !errors.Is(err, errorfs.ErrInjected) {
			t.Errorf("closing the failed store: %v", err)
		}
		s = mustOpen(t, crashed, "store", true)
		if last, failed := prefixOf(s, 10); failed != nil || err == nil && last < 2 {
			t.Errorf("batch 2 was applied with %v; after a power cut the newest batch is %d, %v", err, last, failed)
		}
		mustClose(t, s)
	})
}
