package storedir_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine/bolt"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/storage"
)

// The tests of this file open both stores in a directory that changes under them.

var kinds = map[string]func(dir string) (storage.Store, error){
	"pebble": func(dir string) (storage.Store, error) {
		s, err := pebble.Open(dir, pebble.Options{SmallTables: true, CacheBytes: 1 << 20})
		if err != nil {
			return nil, err
		}
		return s, nil
	},
	"bolt": func(dir string) (storage.Store, error) {
		s, err := bolt.Open(dir, bolt.Options{LockTimeout: time.Millisecond, MaxFileBytes: 64 << 20})
		if err != nil {
			return nil, err
		}
		return s, nil
	},
}

// inBoth runs a test with both stores, in the directory "store" of a temporary one.
func inBoth(t *testing.T, test func(t *testing.T, k *kind)) {
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) {
			k := &kind{name: name, open: open, dir: filepath.Join(t.TempDir(), "store")}
			test(t, k)
		})
	}
}

type kind struct {
	name string
	open func(dir string) (storage.Store, error)
	dir  string
}

func (k *kind) mustOpen(t *testing.T, dir string) storage.Store {
	t.Helper()
	s, err := k.open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var bucket = storage.Bucket{Scope: "orders", Week: 2900}

func key(i uint64) []byte { return bucket.AppendKey(nil, fmt.Appendf(nil, "id-%06d", i)) }

// claim stores one claim in a batch of its own, durably.
func claim(s storage.Store, seq uint64) error {
	wait, err := s.Apply(&storage.Batch{Seq: seq, Claims: []storage.ClaimWrite{{Key: key(seq), Record: []byte("record")}}})
	if err != nil {
		return err
	}
	return wait()
}

// claims stores n claims.
func claims(t *testing.T, s storage.Store, n uint64) {
	t.Helper()
	for seq := s.LastSeq() + 1; seq <= n; seq++ {
		if err := claim(s, seq); err != nil {
			t.Fatal(err)
		}
	}
}

// expect checks that the store in dir has n claims, or one more that was not confirmed.
func (k *kind) expect(t *testing.T, dir string, n uint64) {
	t.Helper()
	s := k.mustOpen(t, dir)
	defer s.Close()
	if s.LastSeq() != n && s.LastSeq() != n+1 {
		t.Errorf("%s has %d batches, want %d", dir, s.LastSeq(), n)
	}
	for seq := uint64(1); seq <= n; seq++ {
		if _, found, err := s.Claim(key(seq)); !found || err != nil {
			t.Fatalf("claim %d in %s: %v, %v", seq, dir, found, err)
		}
	}
}

// claimUntilStopped claims until the store refuses, and returns how many claims it has confirmed
// since.
func claimUntilStopped(t *testing.T, s storage.Store, from uint64) (confirmed int) {
	t.Helper()
	for seq := from; ; seq++ {
		err := claim(s, seq)
		switch {
		case errors.Is(err, storage.ErrMoved):
			return confirmed
		case err != nil:
			t.Fatal(err)
		case confirmed == 10_000:
			t.Fatal("the store does not notice")
		}
		confirmed++
	}
}

// TestMain is also the other process: with HAPAX_OPEN it opens a store, makes 100 claims, says so,
// and closes the store when its input ends. With HAPAX_READ it reads these claims.
func TestMain(m *testing.M) {
	if name, dir, found := strings.Cut(os.Getenv("HAPAX_READ"), ":"); found {
		if err := readAll(name, dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	name, dir, found := strings.Cut(os.Getenv("HAPAX_OPEN"), ":")
	if !found {
		os.Exit(m.Run())
	}
	s, err := kinds[name](dir)
	if err == nil {
		for seq := s.LastSeq() + 1; seq <= 100 && err == nil; seq++ {
			err = claim(s, seq)
		}
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("open")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	if err := s.Close(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// elsewhere opens the store in another process. told is "open" or an error.
func (k *kind) elsewhere(t *testing.T, dir string) (told string, done func()) {
	t.Helper()
	cmd, in, told := k.start(t, dir)
	return told, func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
}

// start is elsewhere for a process that the caller ends.
func (k *kind) start(t *testing.T, dir string) (cmd *exec.Cmd, in io.Closer, told string) {
	t.Helper()
	cmd = exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "HAPAX_OPEN="+k.name+":"+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if told, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return cmd, in, strings.TrimSpace(told)
}

func (k *kind) refusedElsewhere(t *testing.T, dir string) {
	t.Helper()
	told, done := k.elsewhere(t, dir)
	defer done()
	if !strings.Contains(told, "in use by another process") {
		t.Errorf("another process opens the store: %s", told)
	}
}

// renamed returns a store with 200 claims whose directory an operator has renamed. A new process, which
// done ends, has opened a store on the old path.
func (k *kind) renamed(t *testing.T) (s storage.Store, old string, done func()) {
	t.Helper()
	s = k.mustOpen(t, k.dir)
	claims(t, s, 200)
	old = k.dir + ".old"
	if err := os.Rename(k.dir, old); err != nil {
		t.Fatal(err)
	}
	told, done := k.elsewhere(t, k.dir)
	if told != "open" {
		t.Fatal(told)
	}
	return s, old, done
}

func TestARenamedDirectoryStopsItsStore(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		s, old, done := k.renamed(t)
		confirmed := claimUntilStopped(t, s, 201)
		if _, _, err := s.Claim(key(1)); !errors.Is(err, storage.ErrMoved) {
			t.Errorf("Claim: %v", err)
		}
		if err := s.WriteSidecar("x", nil); !errors.Is(err, storage.ErrMoved) {
			t.Errorf("WriteSidecar: %v", err)
		}
		_ = s.Close()
		done()
		k.expect(t, k.dir, 100)
		k.expect(t, old, uint64(200+confirmed))
	})
}

// As above, without a write in between: Close itself must not write.
func TestCloseOfARenamedDirectoryLeavesTheOtherStoreAlone(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		s, old, done := k.renamed(t)
		if err := s.Close(); !errors.Is(err, storage.ErrMoved) {
			t.Errorf("Close: %v", err)
		}
		done()
		k.expect(t, k.dir, 100)
		k.expect(t, old, 200)
	})
}

func TestARenamedDirectoryIsNotOpenedTwice(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		s := k.mustOpen(t, k.dir)
		defer s.Close()
		old := k.dir + ".old"
		if err := os.Rename(k.dir, old); err != nil {
			t.Fatal(err)
		}
		if _, err := k.open(old); !errors.Is(err, storage.ErrLocked) {
			t.Errorf("opened twice: %v", err)
		}
	})
}

func TestARemovedLockLetsNobodyIn(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		s := k.mustOpen(t, k.dir)
		claims(t, s, 10)
		if err := os.Remove(filepath.Join(k.dir, "LOCK")); err != nil {
			t.Fatal(err)
		}
		k.refusedElsewhere(t, k.dir)
		confirmed := claimUntilStopped(t, s, 11)
		_ = s.Close()
		k.expect(t, k.dir, uint64(10+confirmed))
	})
}

// A job of the process copies the directory: POSIX would drop a lock of fcntl.
func TestAClosedDescriptorOfTheLockLetsNobodyIn(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		s := k.mustOpen(t, k.dir)
		defer s.Close()
		entries, err := os.ReadDir(k.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if _, err := os.ReadFile(filepath.Join(k.dir, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
		k.refusedElsewhere(t, k.dir)
	})
}

func TestARemovedDirectoryStopsItsStore(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		s := k.mustOpen(t, k.dir)
		claims(t, s, 10)
		if err := os.RemoveAll(k.dir); err != nil {
			t.Fatal(err)
		}
		claimUntilStopped(t, s, 11)
		if err := s.Close(); !errors.Is(err, storage.ErrMoved) {
			t.Errorf("Close: %v", err)
		}
		if _, err := os.Stat(k.dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Close has made the directory again: %v", err)
		}
	})
}

func TestAnUnmountedVolumeStopsItsStore(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	inBoth(t, func(t *testing.T, k *kind) {
		volume := filepath.Join(t.TempDir(), "volume")
		back := filepath.Join(t.TempDir(), "back")
		run := func(name string, args ...string) {
			t.Helper()
			if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
				t.Skipf("%s %q: %v: %s", name, args, err, out)
			}
		}
		for _, dir := range []string{volume, back} {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		run("mount", "-t", "tmpfs", "-o", "mode=700", "tmpfs", volume)
		run("mount", "--bind", volume, back) // a device that can be mounted again
		defer run("umount", back)
		s := k.mustOpen(t, filepath.Join(volume, "store"))
		claims(t, s, 100)
		run("umount", "-l", volume)
		confirmed := claimUntilStopped(t, s, 101)
		if err := s.Close(); !errors.Is(err, storage.ErrMoved) {
			t.Errorf("Close: %v", err)
		}
		if entries, err := os.ReadDir(volume); err != nil || len(entries) > 0 {
			t.Errorf("below the volume: %v, %v", entries, err)
		}
		k.expect(t, filepath.Join(back, "store"), uint64(100+confirmed))
	})
}

// A store that nobody uses notices, too: it must not answer from a directory that another process has.
func TestAnIdleStoreNotices(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		s := k.mustOpen(t, k.dir)
		defer s.Close()
		claims(t, s, 10)
		if err := os.RemoveAll(k.dir); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			_, _, err := s.Claim(key(1))
			if errors.Is(err, storage.ErrMoved) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("after a minute: %v", err)
			}
		}
	})
}

// Each of the files that make a directory this store.
func TestAFileThatIsReplacedStopsTheStore(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		for _, pattern := range []string{"HAPAX", "LOCK", "claims.bolt", "MANIFEST-*", "*.log"} {
			dir := filepath.Join(t.TempDir(), "store")
			s := k.mustOpen(t, dir)
			claims(t, s, 10)
			names, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				content, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(os.WriteFile(name+".copy", content, 0o600), os.Rename(name+".copy", name)); err != nil {
					t.Fatal(err)
				}
			}
			if len(names) > 0 {
				claimUntilStopped(t, s, 11)
			}
			_ = s.Close()
		}
	})
}

func TestTheOwnerOfALockIsNamed(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		s := k.mustOpen(t, k.dir)
		defer s.Close()
		told, done := k.elsewhere(t, k.dir)
		defer done()
		host, err := os.Hostname()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{fmt.Sprintf("process %d on %s", os.Getpid(), host), "docs/operations.md#rolling-updates"} {
			if !strings.Contains(told, want) {
				t.Errorf("%q does not contain %q", told, want)
			}
		}
	})
}
