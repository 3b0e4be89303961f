package pebble

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hapax-dev/hapax/internal/crashfs"
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
	f, err := newFailStopFS(fsys, "store").ReuseForWrite("store/000001.log", "store/000002.log", vfs.WriteCategoryUnspecified)
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
	mem := crashfs.New()
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

// A tornLog is a file system of which one write to a log, the left-th, writes only a part and fails.
// All others succeed.
type tornLog struct {
	vfs.FS
	left atomic.Int64
	part float64
}

func (l *tornLog) Create(path string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := l.FS.Create(path, c)
	return l.file(path, f, err)
}

func (l *tornLog) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := l.FS.ReuseForWrite(from, to, c)
	return l.file(to, f, err)
}

func (l *tornLog) file(path string, f vfs.File, err error) (vfs.File, error) {
	if err == nil && strings.HasSuffix(path, logSuffix) {
		f = tornFile{f, l}
	}
	return f, err
}

type tornFile struct {
	vfs.File
	log *tornLog
}

func (f tornFile) Write(p []byte) (int, error) {
	if f.log.left.Add(-1) != 0 {
		return f.File.Write(p)
	}
	n, err := f.File.Write(bytes.Clone(p[:int(float64(len(p))*f.log.part)]))
	return n, errors.Join(err, errorfs.ErrInjected)
}

// A part of what was not written may be in the log, before its zeros. What was acknowledged before is
// there, and a crash leaves no damage.
func TestAWriteOfALogThatFailsBeforeZeros(t *testing.T) {
	const batches, n = 12, 100
	for left := int64(1); left <= 8; left++ {
		for _, part := range []float64{0, 0.3, 0.999} {
			mem := crashfs.New()
			fsys := &tornLog{FS: mem, part: part}
			s := mustOpen(t, fsys, "store", true)
			before := uint64(3)
			for seq := uint64(1); seq <= before; seq++ {
				mustApply(t, s, batchOf(seq, n))
			}
			fsys.left.Store(left)
			acknowledged, failed := before, false
			for seq := before + 1; seq <= batches; seq++ {
				wait, err := s.Apply(batchOf(seq, n))
				if err == nil {
					err = wait()
				}
				switch {
				case err == nil && failed:
					t.Fatalf("write %d: batch %d is acknowledged after one that failed", left, seq)
				case err == nil:
					acknowledged = seq
				case !errors.Is(err, errorfs.ErrInjected):
					t.Fatal(err)
				default:
					failed = true
				}
			}
			if !failed {
				t.Fatalf("write %d has not failed", left)
			}
			for _, unsynced := range []int{0, 100} {
				crashed := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: unsynced, RNG: rng(1)})
				again, err := Open("store", Options{FS: crashed, SmallTables: true})
				if err != nil {
					t.Fatalf("write %d, %v of it written: %v", left, part, err)
				}
				if last, err := prefixOf(again, n); err != nil || last < acknowledged || last > batches {
					t.Errorf("write %d, %v of it written: %d batches are there, %d were acknowledged: %v", left, part, last, acknowledged, err)
				}
				mustClose(t, again)
			}
			if err := s.Close(); !errors.Is(err, errorfs.ErrInjected) {
				t.Error(err)
			}
		}
	}
}

// A heldLog is a file system on which a log cannot be created before it is released.
type heldLog struct {
	vfs.FS
	entered, release chan struct{}
}

func (l heldLog) Create(path string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(path, logSuffix) {
		close(l.entered)
		<-l.release
	}
	return l.FS.Create(path, c)
}

func TestATableIsOpenedWhileALogIsCreated(t *testing.T) {
	fsys := heldLog{vfs.NewMem(), make(chan struct{}), make(chan struct{})}
	if err := fsys.MkdirAll("store", 0o700); err != nil {
		t.Fatal(err)
	}
	rewrite(t, fsys.FS, "store/000001.sst", []byte("a table"))
	d := newFailStopFS(fsys, "store")
	created := make(chan error)
	go func() {
		f, err := d.Create("store/000002.log", vfs.WriteCategoryUnspecified)
		if err == nil {
			err = f.Close()
		}
		created <- err
	}()
	<-fsys.entered
	within(t, patienceInTests, "a table and a log that takes long", func() {
		f, err := d.Open("store/000001.sst")
		if err != nil {
			t.Error(err)
			return
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	close(fsys.release)
	if err := <-created; err != nil {
		t.Fatal(err)
	}
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
