package storedir_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine/bolt"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// openReader opens a store of either kind for reading.
func openReader(name, dir string) (storage.Reader, error) {
	if name == "bolt" {
		r, err := bolt.OpenReader(dir, bolt.Options{LockTimeout: time.Millisecond})
		if err != nil {
			return nil, err
		}
		return r, nil
	}
	r, err := pebble.OpenReader(dir, pebble.Options{SmallTables: true, CacheBytes: 1 << 20})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// readAll reads all that a store with 100 claims has.
func readAll(name, dir string) error {
	r, err := openReader(name, dir)
	if err != nil {
		return err
	}
	var errs []error
	for i := uint64(1); i <= 100; i++ {
		if record, found, err := r.Claim(key(i)); string(record) != "record" || !found || err != nil {
			errs = append(errs, fmt.Errorf("claim %d: %q, %v, %w", i, record, found, err))
		}
	}
	scanned := 0
	errs = append(errs, r.Scan(context.Background(), storage.Span{}, func() {}, func(_, _ []byte) error { scanned++; return nil }))
	if scanned != 100 {
		errs = append(errs, fmt.Errorf("%d claims", scanned))
	}
	errs = append(errs, r.Buckets(func(b storage.Bucket) error {
		if n, err := r.BucketBytes(b); b != bucket || n == 0 || err != nil {
			return fmt.Errorf("bucket %v of %d bytes, %w", b, n, err)
		}
		return nil
	}))
	_, found, err := r.State([]byte("nothing"))
	if found || err != nil {
		errs = append(errs, fmt.Errorf("a state that nobody wrote: %v, %w", found, err))
	}
	u, err := r.Usage()
	if u.DiskBytes == 0 || err != nil {
		errs = append(errs, fmt.Errorf("%d bytes, %w", u.DiskBytes, err))
	}
	errs = append(errs, r.Verify(context.Background(), func(problem string) { errs = append(errs, errors.New(problem)) }), r.Close())
	return errors.Join(errs...)
}

// contents describes all that a reader must not change: names, modes, times and bytes.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		var data []byte
		if info.Mode().IsRegular() {
			if data, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		all[path] = fmt.Sprintf("%v %d %v %x", info.Mode(), info.Size(), info.ModTime().UnixNano(), sha256.Sum256(data))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// unchanged runs do, and checks that it changes nothing in the directory.
func unchanged(t *testing.T, dir string, do func()) {
	t.Helper()
	before := contents(t, dir)
	do()
	after := contents(t, dir)
	for path := range before {
		if before[path] != after[path] {
			t.Errorf("%s was\n%s and is\n%s", path, before[path], after[path])
		}
	}
	for path := range after {
		if _, was := before[path]; !was {
			t.Errorf("%s is new", path)
		}
	}
}

// closedCleanly and killed are the ways in which the owner of a store with 100 claims has ended.
func (k *kind) closedCleanly(t *testing.T) {
	s := k.mustOpen(t, k.dir)
	claims(t, s, 100)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func (k *kind) killed(t *testing.T) {
	t.Helper()
	cmd, _, told := k.start(t, k.dir)
	if told != "open" {
		t.Fatal(told)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
}

// inEachState runs a test with both stores, after a clean close and after a kill.
func inEachState(t *testing.T, test func(t *testing.T, k *kind)) {
	for state, end := range map[string]func(*kind, *testing.T){"closed": (*kind).closedCleanly, "killed": (*kind).killed} {
		t.Run(state, func(t *testing.T) {
			inBoth(t, func(t *testing.T, k *kind) {
				end(k, t)
				test(t, k)
			})
		})
	}
}

func TestAReaderChangesNothing(t *testing.T) {
	inEachState(t, func(t *testing.T, k *kind) {
		unchanged(t, k.dir, func() {
			for range 2 {
				if err := readAll(k.name, k.dir); err != nil {
					t.Error(err)
				}
			}
		})
		k.expect(t, k.dir, 100)
	})
}

// The negative control of all tests here: what an owner does is seen.
func TestAnOwnerIsSeenToChangeTheDirectory(t *testing.T) {
	inEachState(t, func(t *testing.T, k *kind) {
		before := contents(t, k.dir)
		if err := k.mustOpen(t, k.dir).Close(); err != nil {
			t.Fatal(err)
		}
		if maps.Equal(before, contents(t, k.dir)) {
			t.Error("Open and Close changed nothing")
		}
	})
}

func TestADirectoryWithoutRightsToWriteIsRead(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes")
	}
	inEachState(t, func(t *testing.T, k *kind) {
		for path := range contents(t, k.dir) {
			mode := fs.FileMode(0o400)
			if path == k.dir {
				mode = 0o500
			}
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
		}
		defer os.Chmod(k.dir, 0o700)
		unchanged(t, k.dir, func() {
			if err := readAll(k.name, k.dir); err != nil {
				t.Error(err)
			}
		})
	})
}

func TestAReadOnlyMountIsRead(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	inEachState(t, func(t *testing.T, k *kind) {
		for _, args := range [][]string{{"--bind", k.dir, k.dir}, {"-o", "remount,bind,ro", k.dir}} {
			if out, err := exec.Command("mount", args...).CombinedOutput(); err != nil {
				t.Skipf("mount %q: %v: %s", args, err, out)
			}
			defer exec.Command("umount", k.dir).Run()
		}
		if f, err := os.Create(filepath.Join(k.dir, "file")); err == nil {
			f.Close()
			t.Fatal("the mount is writable")
		}
		if err := readAll(k.name, k.dir); err != nil {
			t.Error(err)
		}
	})
}

func TestAReaderExcludesOwnersAndNoReader(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		k.closedCleanly(t)
		r, err := openReader(k.name, k.dir)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := readAll(k.name, k.dir); err != nil {
			t.Errorf("a second reader: %v", err)
		}
		if _, err := k.open(k.dir); !errors.Is(err, storage.ErrLocked) {
			t.Errorf("an owner in this process: %v", err)
		}
		told, done := k.elsewhere(t, k.dir)
		defer done()
		if !strings.Contains(told, "is being read by another process") {
			t.Errorf("an owner in another process: %s", told)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		k.expect(t, k.dir, 100)
	})
}

func TestAnOwnerExcludesReaders(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		cmd, _, told := k.start(t, k.dir)
		if told != "open" {
			t.Fatal(told)
		}
		_, err := openReader(k.name, k.dir)
		if !errors.Is(err, storage.ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("process %d on ", cmd.Process.Pid)) {
			t.Errorf("a reader beside process %d: %v", cmd.Process.Pid, err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		s := k.mustOpen(t, k.dir)
		defer s.Close()
		if _, err := openReader(k.name, k.dir); !errors.Is(err, storage.ErrLocked) {
			t.Errorf("a reader beside an owner in this process: %v", err)
		}
	})
}

func TestAReaderOfNothingMakesNothing(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		if _, err := openReader(k.name, k.dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a missing directory: %v", err)
		}
		if _, err := os.Lstat(k.dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the directory: %v", err)
		}
		if err := os.Mkdir(k.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		unchanged(t, k.dir, func() {
			if _, err := openReader(k.name, k.dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("an empty directory: %v", err)
			}
		})
	})
}

func TestAReaderRefusesTheOtherKind(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		k.closedCleanly(t)
		other := map[string]string{"bolt": "pebble", "pebble": "bolt"}[k.name]
		unchanged(t, k.dir, func() {
			if _, err := openReader(other, k.dir); !errors.Is(err, storage.ErrForeign) {
				t.Errorf("%s reads %s: %v", other, k.name, err)
			}
		})
	})
}

func TestADirForReadingRefusesEveryChange(t *testing.T) {
	path := t.TempDir()
	if err := os.WriteFile(filepath.Join(path, "file"), []byte("bytes"), 0o644); err != nil {
		t.Fatal(err)
	}
	d, err := storedir.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Lock(0); err != nil {
		t.Fatal(err)
	}
	other, err := storedir.Make(filepath.Join(t.TempDir(), "other"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	file := func(f *os.File, err error) error {
		if err == nil {
			f.Close()
		}
		return err
	}
	unchanged(t, path, func() {
		d.Protect(func(string) bool { return true })
		for what, err := range map[string]error{
			"create": file(d.Create("new")), "open for writing": file(d.OpenFile("file", os.O_RDWR)), "open or create": file(d.OpenFile("new", os.O_RDWR|os.O_CREATE)),
			"rename": d.Rename("file", "new"), "remove": d.Remove("file"), "remove all": d.RemoveAll("file"), "mkdir": d.Mkdir("new"),
			"link": d.Link("file", "new"), "link here": other.LinkTo("LOCK", d, "new"),
		} {
			if !errors.Is(err, fs.ErrPermission) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
	if b, err := d.ReadFile("file"); string(b) != "bytes" || err != nil {
		t.Errorf("reading: %q, %v", b, err)
	}
}
