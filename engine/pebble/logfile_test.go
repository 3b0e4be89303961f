package pebble

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// writeLog writes n pieces to f, syncs each, and returns their bytes.
func writeLog(t *testing.T, f vfs.File, n, size int) []byte {
	t.Helper()
	var content []byte
	for i := range n {
		piece := bytes.Repeat([]byte{byte(i%255 + 1)}, size)
		content = append(content, piece...)
		if _, err := f.Write(piece); err != nil {
			t.Fatal(err)
		}
		if err := f.SyncData(); err != nil {
			t.Fatal(err)
		}
	}
	return content
}

func TestALogIsFollowedByZeros(t *testing.T) {
	fsys := vfs.NewMem()
	var written atomic.Uint64
	create := func() *logFile {
		f, err := fsys.Create("log", vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		return &logFile{File: f, written: &written, closed: func() {}}
	}
	for _, c := range []struct{ n, size, zeros int }{
		{1, 100, minZeros},
		{1000, 100, 2 * minZeros},
		{100, 40 << 10, maxZeros},
		{10, 2 * zerosPerSync, 0},
	} {
		written.Store(0)
		f := create()
		want := writeLog(t, f, c.n, c.size)
		got, err := readFile(fsys, "log")
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(got, want) || !isZero(got[len(want):]) {
			t.Errorf("%d of %d bytes: the log has %d bytes, not its own and zeros", c.n, c.size, len(got))
		}
		if n := len(got) - len(want); n > c.zeros {
			t.Errorf("%d of %d bytes: %d zeros at the end, more than %d", c.n, c.size, n, c.zeros)
		}
		if n := int(written.Load()); c.zeros > 0 && (n < len(got)/2 || n > len(got)) || c.zeros == 0 && n > 0 {
			t.Errorf("%d of %d bytes: %d zeros were written for a log of %d bytes", c.n, c.size, written.Load(), len(got))
		}
	}
}

func TestALogThatIsReusedKeepsItsLengthAndEnd(t *testing.T) {
	const length = 100 << 10
	old := bytes.Repeat([]byte{255}, length)
	fsys := vfs.NewMem()
	if err := fsys.MkdirAll("store", 0o700); err != nil {
		t.Fatal(err)
	}
	rewrite(t, fsys, "store/000001.log", bytes.Clone(old)) // which Write may change
	f, err := newDisk(fsys, "store").ReuseForWrite("store/000001.log", "store/000002.log", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	want := writeLog(t, f, 90, 1000)
	got, err := readFile(fsys, "store/000002.log")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, append(want, old[len(want):]...)) {
		t.Errorf("the log has %d bytes, not %d of its own and the end of the old log", len(got), len(want))
	}
	want = append(want, writeLog(t, f, 20, 1000)...)
	if got, err = readFile(fsys, "store/000002.log"); err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(got, want) || !isZero(got[len(want):]) {
		t.Errorf("the log has %d bytes, not its own %d and zeros", len(got), len(want))
	}
}

// A disk may be too full for zeros, and not for what is written.
func TestZerosThatCannotBeWrittenAreNoFailure(t *testing.T) {
	mem := vfs.NewCrashableMem()
	var logs, failed atomic.Int64
	fsys := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if onLog(errorfs.OpCreate, errorfs.OpReuseForWrite)(op) {
			logs.Add(1)
		}
		if !onLog(errorfs.OpFileWriteAt)(op) {
			return nil
		}
		failed.Add(1)
		return errorfs.ErrInjected
	}))
	s := mustOpen(t, fsys, "store", true)
	const batches, n = 20, 500
	for seq := uint64(1); seq <= batches; seq++ {
		mustApply(t, s, batchOf(seq, n))
	}
	if n := failed.Load(); n == 0 || n > logs.Load() {
		t.Errorf("zeros were written %d times, want once for each of %d logs", n, logs.Load())
	}
	mustClose(t, s)
	s = mustOpen(t, mem.CrashClone(vfs.CrashCloneCfg{}), "store", true)
	defer mustClose(t, s)
	assertContents(t, s, model(batches, n))
}

// growing is a file system on which a log grows when its end was read.
type growing struct {
	vfs.FS
	grow func()
}

func (g growing) Open(path string, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := g.FS.Open(path, o...)
	if err == nil && strings.HasSuffix(path, logSuffix) {
		f = growingFile{f, g.grow}
	}
	return f, err
}

type growingFile struct {
	vfs.File
	grow func()
}

func (f growingFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p[:min(len(p), 4<<10)])
	if n > 0 && (n < 4<<10 || isZero(p[n-100:n])) { // the end of what was written
		f.grow()
	}
	return n, err
}

func TestALogThatGrowsWhileItIsReadIsNotDamaged(t *testing.T) {
	mem := vfs.NewMem()
	var s *Store
	seq, more := uint64(0), 0
	apply := func() {
		seq++
		mustApply(t, s, batchOf(seq, 20))
	}
	s, err := Open("store", Options{CacheBytes: 8 << 20, FS: growing{mem, func() {
		if more > 0 {
			more--
			for range 10 { // more than is read at once
				apply()
			}
		}
	}}})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, s)
	for range 10 {
		apply()
	}
	more = 50
	report := func(problem string) { t.Error(problem) }
	if err := s.Verify(context.Background(), report); err != nil || more == 50 {
		t.Errorf("Verify: %v, and it grew %d times", err, 50-more)
	}
	durable := seq
	more = 50
	if err := s.Backup(context.Background(), "backup"); err != nil || more == 50 {
		t.Fatalf("Backup: %v, and it grew %d times", err, 50-more)
	}
	more = 0
	backup := mustOpen(t, mem, "backup", false)
	defer mustClose(t, backup)
	if last, err := prefixOf(backup, 20); err != nil || last < durable {
		t.Errorf("the backup has %d of %d batches: %v", last, durable, err)
	}
}
