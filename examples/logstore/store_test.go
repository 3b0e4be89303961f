package logstore

import (
	"errors"

	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hapax-dev/hapax/engine/enginetest"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storetest"
)

func TestStoreKeepsTheContract(t *testing.T) { storetest.Run(t, harness()) }

func TestEngineOnTheStoreAgreesWithMaps(t *testing.T) { enginetest.RunModel(t, harness()) }

func TestAddsComeToTheirSum(t *testing.T) { enginetest.RunAdds(t, harness()) }

func TestScopesAreDropped(t *testing.T) { enginetest.RunScopeDrops(t, harness()) }

// harness gives the suite stores whose disk it can cut off and fill.
func harness() storetest.Harness {
	m := &machine{synced: map[string]int64{}}
	return storetest.Harness{
		Open: func(_ testing.TB, dir string) (storage.Store, error) {
			s, err := open(dir, func(f files) files { return &disk{files: f, machine: m} })
			if err != nil {
				return nil, err // a nil *Store is not a nil storage.Store
			}
			return s, nil
		},
		CrashClone: func(t testing.TB, _ storage.Store, dir string, unsyncedPercent int) string {
			return m.clone(t, dir, unsyncedPercent)
		},
		AtomicClone: true,
		FailWrites: func(_ testing.TB, s storage.Store) error {
			s.(*Store).fsys.(*disk).broken.Store(true)
			return errBroken
		},
		NoRoom: func(_ testing.TB, s storage.Store) (room func()) {
			full := &s.(*Store).fsys.(*disk).full
			full.Store(true)
			return func() { full.Store(false) }
		},
	}
}

var errBroken = errors.New("the disk is broken")

// A machine tracks how much of each log is durable, so that it can show the state after a power
// failure.
type machine struct {
	mu     sync.Mutex // held while a file changes, and while files are copied
	synced map[string]int64
}

// clone copies the directory in the state after a power failure.
func (m *machine) clone(t testing.TB, dir string, unsyncedPercent int) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "clone")
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(to, logName)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	synced := m.synced[filepath.Join(dir, logName)]
	m.synced[path] = synced
	left := synced + (info.Size()-synced)*int64(unsyncedPercent)/100
	if err := errors.Join(os.Truncate(path, left), os.Chmod(to, 0o700)); err != nil {
		t.Fatal(err)
	}
	return to
}

// A disk is the disk of one store.
type disk struct {
	files
	*machine
	broken, full atomic.Bool
}

func (d *disk) do(f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.broken.Load() {
		return errBroken
	}
	return f()
}

func (d *disk) Create(path string) (f sidecar.File, err error) {
	err = d.do(func() (err error) { f, err = d.files.Create(path); return err })
	return diskFile{File: f, d: d}, err
}

func (d *disk) Rename(from, to string) error {
	return d.do(func() error {
		if info, err := os.Stat(from); err == nil {
			d.synced[to] = info.Size() // sidecar.Write has synced it
		}
		return d.files.Rename(from, to)
	})
}

func (d *disk) Remove(path string) error {
	return d.do(func() error { return d.files.Remove(path) })
}

func (d *disk) OpenLog(path string) (logFile, error) {
	f, err := d.files.OpenLog(path)
	return diskLog{f, path, d}, err
}

type diskFile struct {
	sidecar.File
	d *disk
}

func (f diskFile) Write(p []byte) (n int, err error) {
	if f.d.full.Load() {
		return 0, syscall.ENOSPC
	}
	err = f.d.do(func() (err error) { n, err = f.File.Write(p); return err })
	return n, err
}

func (f diskFile) Sync() error { return f.d.do(f.File.Sync) }

type diskLog struct {
	logFile
	path string
	d    *disk
}

func (l diskLog) Write(p []byte) (n int, err error) {
	err = l.d.do(func() (err error) { n, err = l.logFile.Write(p); return err })
	return n, err
}

// Sync makes durable what was written before it began.
func (l diskLog) Sync() error {
	return l.d.do(func() error {
		info, err := os.Stat(l.path)
		if err == nil {
			l.d.synced[l.path] = info.Size()
		}
		return err
	})
}

// filled returns a closed store with a few batches, and their number.
func filled(t *testing.T) (dir string, batches uint64) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "store")
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	const n = 5
	for i := range uint64(n) {
		wait, err := s.Apply(&storage.Batch{
			Seq:    i + 1,
			Claims: []storage.ClaimWrite{{Key: storage.Bucket{Scope: "a", Week: 7}.AppendKey(nil, number(i)), Record: []byte("record")}},
			State:  []storage.StateWrite{{Key: []byte("key"), Value: number(i)}},
		})
		if err == nil {
			err = wait()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, n
}

// After a clean close, all damage of the log is detected.
func TestEveryDamagedByteIsFoundAfterACleanClose(t *testing.T) {
	dir, _ := filled(t)
	path := filepath.Join(dir, logName)
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range log {
		log[i] ^= 0x10
		if err := os.WriteFile(path, log, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); !errors.Is(err, storage.ErrDamaged) {
			t.Fatalf("byte %d of %d is damaged: %v", i, len(log), err)
		}
		log[i] ^= 0x10
	}
}

// After a crash, damage looks like the torn end of the log unless a later frame shows that it was
// durable: the last frame shows this for all earlier batches.
func TestDamagedBatchBeforeTheLastIsFoundAfterACrash(t *testing.T) {
	dir, batches := filled(t)
	path := filepath.Join(dir, logName)
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	last := strings.LastIndex(string(log), frameMagic)
	for i := range log {
		err := errors.Join(os.RemoveAll(filepath.Join(dir, cleanName)), os.WriteFile(path, damaged(log, i), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		s, err := Open(dir)
		switch {
		case i < last && !errors.Is(err, storage.ErrDamaged):
			t.Fatalf("byte %d of %d is damaged: %v", i, len(log), err)
		case i >= last && (err != nil || s.LastSeq() != batches-1):
			t.Fatalf("byte %d of %d, in the last frame, is damaged: %v", i, len(log), err)
		}
		if err == nil {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func damaged(b []byte, at int) []byte {
	b = append([]byte{}, b...)
	b[at] ^= 0x10
	return b
}

func TestForeignDirectoriesAreRejectedAndLeftUnchanged(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "letter.txt"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, storage.ErrForeign) {
		t.Fatal(err)
	}
	other := t.TempDir()
	if err := sidecar.WriteIdentity(sidecar.OS{}, other, sidecar.Bolt, storage.NewIdentity()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(other); !errors.Is(err, storage.ErrForeign) || !strings.Contains(err.Error(), "bolt") {
		t.Fatal(err)
	}
}

// A mostly dead log is rewritten when the store is opened.
func TestSpaceIsFreedAtTheNextOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	old := storage.Bucket{Scope: "a", Week: 7}
	wait, err := s.Apply(&storage.Batch{Seq: 1, Claims: []storage.ClaimWrite{{Key: old.AppendKey(nil, []byte("x")), Record: make([]byte, 4<<20)}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(wait(), s.Drop([]storage.Bucket{old}), s.Close()); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(dir); err != nil {
		t.Fatal(err)
	}
	u, err := s.Usage()
	if err != nil || u.DiskBytes > 1<<20 || s.LastSeq() != 1 {
		t.Errorf("%d bytes are left, last batch %d, %v", u.DiskBytes, s.LastSeq(), err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
