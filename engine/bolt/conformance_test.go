//go:build linux

package bolt

import (
	"flag"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hapax-dev/hapax/engine/enginetest"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storetest"
)

func TestStoreKeepsTheContract(t *testing.T) {
	if f := flag.Lookup("rapid.checks"); f != nil && f.Value.String() == f.DefValue {
		f.Value.Set(strconv.Itoa(max(25/sparse, 5)))
		defer f.Value.Set(f.DefValue)
	}
	storetest.Run(t, harness())
}

func TestEngineOnBoltAgreesWithMaps(t *testing.T) { enginetest.RunModel(t, harness()) }

func harness() storetest.Harness {
	breakers := map[storage.Store]*breaker{}
	return storetest.Harness{
		Open: func(t testing.TB, dir string) (storage.Store, error) {
			b := &breaker{}
			s, err := Open(dir, b.options())
			if err != nil {
				return nil, err
			}
			breakers[s] = b
			return s, nil
		},
		CrashClone: func(t testing.TB, _ storage.Store, dir string, _ int) string { return cloneOpen(t, dir) },
		FailWrites: func(t testing.TB, s storage.Store) error { return breakers[s].fail(t) },
		NoRoom: func(_ testing.TB, s storage.Store) func() {
			full := &breakers[s].full
			full.Store(true)
			return func() { full.Store(false) }
		},
	}
}

// A breaker makes the file read-only for bbolt while the store is open: every write and truncation
// then fails, as on a bad disk.
type breaker struct {
	file   *os.File
	broken atomic.Bool
	full   atomic.Bool // for sidecars
}

func (b *breaker) options() Options {
	return Options{
		LockTimeout: shortLock,
		files:       func(fsys sidecar.FS) sidecar.FS { return brokenFS{fsys, b} },
		opened:      func(f *os.File) { b.file = f },
	}
}

// fail replaces bbolt's descriptor by a read-only one.
func (b *breaker) fail(t testing.TB) error {
	t.Helper()
	readOnly, err := os.Open(b.file.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer readOnly.Close()
	if err := syscall.Dup3(int(readOnly.Fd()), int(b.file.Fd()), syscall.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	b.broken.Store(true)
	return syscall.EBADF
}

type brokenFS struct {
	sidecar.FS
	b *breaker
}

func (f brokenFS) Create(path string) (sidecar.File, error) {
	if f.b.broken.Load() {
		return nil, &os.PathError{Op: "open", Path: path, Err: syscall.EBADF}
	}
	file, err := f.FS.Create(path)
	return fullFile{file, f.b}, err
}

// A fullFile has no space while the breaker is full.
type fullFile struct {
	sidecar.File
	b *breaker
}

func (f fullFile) Write(p []byte) (int, error) {
	if f.b.full.Load() {
		return 0, syscall.ENOSPC
	}
	return f.File.Write(p)
}

func TestAddsOnBoltComeToTheirSum(t *testing.T) { enginetest.RunAdds(t, harness()) }

func TestScopesAreDroppedOnBolt(t *testing.T) { enginetest.RunScopeDrops(t, harness()) }
