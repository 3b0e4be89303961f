package pebble

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hapax-dev/hapax/engine/enginetest"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/crashfs"
)

func TestBehavesAsEveryStoreMust(t *testing.T) {
	t.Run("on disk", func(t *testing.T) {
		if os.Getenv("HAPAX_SWEEP") != "all" {
			t.Skip("the same as in memory, on slower files: set HAPAX_SWEEP=all")
		}
		storetest.Run(t, storetest.Harness{
			Open: func(_ testing.TB, dir string) (storage.Store, error) {
				return open(dir, Options{SmallTables: true, CacheBytes: 1 << 20})
			},
			Flush: flush,
		})
	})
	t.Run("in memory", func(t *testing.T) { storetest.Run(t, newMemory().harness()) })
}

func TestEngineOnPebbleAgreesWithMaps(t *testing.T) { enginetest.RunModel(t, newMemory().harness()) }

// open keeps a nil *Store from becoming an storage.Store that is not nil.
func open(dir string, o Options) (storage.Store, error) {
	s, err := Open(dir, o)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func flush(t testing.TB, s storage.Store) {
	t.Helper()
	mustSealAll(t, s.(*Store))
}

// memory keeps each directory on a file system of its own, so that each can lose its power alone.
type memory struct {
	mu   sync.Mutex // guards dirs
	dirs map[string]*memoryDir
}

type memoryDir struct {
	fs      *crashfs.FS
	failing atomic.Bool
	full    atomic.Bool // for sidecars
}

func newMemory() *memory { return &memory{dirs: make(map[string]*memoryDir)} }

// at returns where dir is kept: a backup lies next to its original.
func (m *memory) at(dir string) *memoryDir {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.dirs[dir]; d != nil {
		return d
	}
	for _, d := range m.dirs {
		if _, err := d.fs.Stat(dir); err == nil {
			return d
		}
	}
	m.dirs[dir] = &memoryDir{fs: crashfs.New()}
	return m.dirs[dir]
}

func (d *memoryDir) MaybeError(op errorfs.Op) error {
	if d.failing.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
		return errorfs.ErrInjected
	}
	if d.full.Load() && strings.Contains(op.Path, sidecarPrefix) && op.Kind == errorfs.OpFileWrite {
		return syscall.ENOSPC
	}
	return nil
}

func (d *memoryDir) String() string { return "(when failing)" }

func (m *memory) harness() storetest.Harness {
	return storetest.Harness{
		AtomicClone: true,
		Open: func(_ testing.TB, dir string) (storage.Store, error) {
			d := m.at(dir)
			d.failing.Store(false)
			return open(dir, Options{FS: errorfs.Wrap(d.fs, d), SmallTables: true, CacheBytes: 1 << 20})
		},
		CrashClone: func(t testing.TB, _ storage.Store, dir string, percent int) string {
			crashed := m.at(dir).fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(1, 2))})
			m.mu.Lock()
			defer m.mu.Unlock()
			clone := fmt.Sprint(dir, "-crash", len(m.dirs))
			if err := crashed.Rename(dir, clone); err != nil {
				t.Fatal(err)
			}
			m.dirs[clone] = &memoryDir{fs: crashed}
			return clone
		},
		Flush: flush,
		FailWrites: func(_ testing.TB, s storage.Store) error {
			m.at(s.(*Store).core.disk.dir).failing.Store(true)
			return errorfs.ErrInjected
		},
		NoRoom: func(_ testing.TB, s storage.Store) func() {
			full := &m.at(s.(*Store).core.disk.dir).full
			full.Store(true)
			return func() { full.Store(false) }
		},
		MakeNewer: func(t testing.TB, dir string) func() {
			return m.makeNewer(t, dir)
		},
		Fingerprint: func(t testing.TB, dir string) string { return fingerprint(t, m.at(dir).fs, dir) },
	}
}

func (m *memory) makeNewer(t testing.TB, dir string) (undo func()) {
	fsys := m.at(dir).fs
	old, err := readFile(fsys, fsys.PathJoin(dir, sidecar.IdentityName))
	if err != nil {
		t.Fatal(err)
	}
	newer := slices.Clone(old[:len(old)-4])
	binary.BigEndian.PutUint32(newer[8:], sidecar.Pebble.Format+1)
	rewrite(t, fsys, fsys.PathJoin(dir, sidecar.IdentityName), sidecar.Seal(newer))
	return func() { rewrite(t, fsys, fsys.PathJoin(dir, sidecar.IdentityName), old) }
}

// rewrite replaces a file's bytes, durably.
func rewrite(t testing.TB, fsys vfs.FS, path string, content []byte) {
	t.Helper()
	f, err := fsys.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(slices.Clone(content)); err != nil { // a MemFS in a build with -race changes what it was given
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// fingerprint changes with every name and byte in dir.
func fingerprint(t testing.TB, fsys vfs.FS, dir string) string {
	t.Helper()
	names, err := fsys.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	h := sha256.New()
	for _, name := range names {
		f, err := fsys.Open(fsys.PathJoin(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(h, "%q\n", name)
		if info, err := f.Stat(); err == nil && !info.IsDir() && !strings.HasSuffix(name, "/") {
			if _, err := io.Copy(h, f); err != nil {
				t.Fatal(err)
			}
		}
		_ = f.Close()
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

func TestAddsOnPebbleComeToTheirSum(t *testing.T) { enginetest.RunAdds(t, newMemory().harness()) }

func TestScopesAreDroppedOnPebble(t *testing.T) { enginetest.RunScopeDrops(t, newMemory().harness()) }
