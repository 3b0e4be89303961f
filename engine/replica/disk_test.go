package replica_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hapax-dev/hapax/engine/bolt"
	"github.com/hapax-dev/hapax/engine/enginetest"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/crashfs"
)

// openedCopies remember the copy that was opened last, and its directory.
type openedCopies struct {
	replica.Copies
	last storage.Store
	note func(s storage.Store)
}

func (o *openedCopies) Open() (storage.Store, error) { return o.opened(o.Copies.Open()) }

func (o *openedCopies) Create(id storage.Identity) (storage.Store, error) {
	return o.opened(o.Copies.Create(id))
}

func (o *openedCopies) opened(s storage.Store, err error) (storage.Store, error) {
	if err == nil {
		o.last = s
		o.note(s)
	}
	return s, err
}

// A crashDir is a file system that can lose its power, and be full for sidecars.
type crashDir struct {
	fs   *crashfs.FS
	full atomic.Bool
}

func (d *crashDir) MaybeError(op errorfs.Op) error {
	if d.full.Load() && strings.Contains(op.Path, "sidecar-") && op.Kind == errorfs.OpFileWrite {
		return syscall.ENOSPC
	}
	return nil
}

func (d *crashDir) String() string { return "(when full)" }

func (d *crashDir) options() pebble.Options {
	return pebble.Options{FS: errorfs.Wrap(d.fs, d), SmallTables: true, CacheBytes: 1 << 20}
}

// read returns a file's bytes, none of a directory.
func (d *crashDir) read(t testing.TB, path string) []byte {
	t.Helper()
	f, err := d.fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.IsDir() {
		return nil
	}
	content, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// write replaces a file, durably.
func (d *crashDir) write(t testing.TB, path string, content []byte) {
	t.Helper()
	f, err := d.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(bytes.Clone(content))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// pebbleDirs are directories, each on a file system of its own, except that a backup is beside its
// original.
type pebbleDirs struct {
	mu   sync.Mutex
	dirs map[string]*crashDir
	of   map[storage.Store]*crashDir
}

func (p *pebbleDirs) at(dir string) (d *crashDir, exists bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := p.dirs[dir]; d != nil {
		return d, true
	}
	for _, d := range p.dirs {
		if _, err := d.fs.Stat(dir); err == nil {
			return d, true
		}
	}
	p.dirs[dir] = &crashDir{fs: crashfs.New()}
	return p.dirs[dir], false
}

func (p *pebbleDirs) note(s storage.Store, d *crashDir) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[s] = d
}

func (p *pebbleDirs) ofStore(s storage.Store) *crashDir {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of[s]
}

func (p *pebbleDirs) clone(t testing.TB, s storage.Store, dir string, percent int) string {
	crashed := p.ofStore(s).fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(1, 2))})
	p.mu.Lock()
	defer p.mu.Unlock()
	clone := fmt.Sprint(dir, "-crash", len(p.dirs))
	if err := crashed.Rename(dir, clone); err != nil {
		t.Fatal(err)
	}
	p.dirs[clone] = &crashDir{fs: crashed}
	return clone
}

func pebbleSites() *sites {
	p := &pebbleDirs{dirs: map[string]*crashDir{}, of: map[storage.Store]*crashDir{}}
	return &sites{
		at: map[string]*site{}, stores: map[storage.Store]*site{},
		copies: func(dir string) replica.Copies {
			d, _ := p.at(dir)
			return &openedCopies{Copies: pebble.CopyIn(dir, d.options()), note: func(s storage.Store) { p.note(s, d) }}
		},
		copy:   func(c replica.Copies) storage.Store { return c.(*openedCopies).last },
		exists: func(_ testing.TB, dir string) bool { _, exists := p.at(dir); return exists },
		inner: storetest.Harness{
			AtomicClone: true,
			Open: func(_ testing.TB, dir string) (storage.Store, error) {
				d, _ := p.at(dir)
				s, err := pebble.Open(dir, d.options())
				if err != nil {
					return nil, err
				}
				p.note(s, d)
				return s, nil
			},
			CrashClone: p.clone,
			// No FailWrites: a batch is confirmed once the log has it, whether the copy can be written or not.
			NoRoom: func(_ testing.TB, s storage.Store) func() {
				d := p.ofStore(s)
				d.full.Store(true)
				return func() { d.full.Store(false) }
			},
			MakeNewer: func(t testing.TB, dir string) func() {
				d, _ := p.at(dir)
				path := d.fs.PathJoin(dir, sidecar.IdentityName)
				old := d.read(t, path)
				newer := bytes.Clone(old[:len(old)-4])
				binary.BigEndian.PutUint32(newer[8:], sidecar.Pebble.Format+1)
				d.write(t, path, sidecar.Seal(newer))
				return func() { d.write(t, path, old) }
			},
			Fingerprint: func(t testing.TB, dir string) string {
				d, _ := p.at(dir)
				names, err := d.fs.List(dir)
				if err != nil {
					t.Fatal(err)
				}
				slices.Sort(names)
				h := sha256.New()
				for _, name := range names {
					fmt.Fprintf(h, "%q %x", name, d.read(t, d.fs.PathJoin(dir, name)))
				}
				return fmt.Sprintf("%x", h.Sum(nil))
			},
		},
	}
}

func boltSites() *sites {
	root := bolt.Options{}
	clones := 0
	return &sites{
		at: map[string]*site{}, stores: map[storage.Store]*site{},
		copies: func(dir string) replica.Copies {
			return &openedCopies{Copies: bolt.CopyIn(dir, root), note: func(storage.Store) {}}
		},
		copy:   func(c replica.Copies) storage.Store { return c.(*openedCopies).last },
		exists: func(_ testing.TB, dir string) bool { _, err := os.Stat(dir); return err == nil },
		inner: storetest.Harness{
			Open: func(_ testing.TB, dir string) (storage.Store, error) {
				s, err := bolt.Open(dir, root)
				if err != nil {
					return nil, err
				}
				return s, nil
			},
			CrashClone: func(t testing.TB, _ storage.Store, dir string, _ int) string { // the process is killed
				clones++
				to := filepath.Join(filepath.Dir(dir), fmt.Sprint("killed", clones))
				if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(to, 0o700); err != nil {
					t.Fatal(err)
				}
				return to
			},
		},
	}
}

func TestPebbleCopyKeepsTheContract(t *testing.T) { storetest.Run(t, pebbleSites().harness()) }

func TestBoltCopyKeepsTheContract(t *testing.T) { storetest.Run(t, boltSites().harness()) }

func TestEngineOnAPebbleCopyAgreesWithMaps(t *testing.T) {
	enginetest.RunModel(t, pebbleSites().harness())
}
