//go:build unix

package bolt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
)

// The file system fails in the middle of a commit: RLIMIT_FSIZE, in a process of its own.
func TestAFileSystemThatIsFullIsAnError(t *testing.T) {
	if dir := os.Getenv("HAPAX_TEST_FULL"); dir != "" {
		s := mustOpen(t, dir, Options{})
		limit := syscall.Rlimit{Cur: 1 << 20, Max: 1 << 20}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			t.Fatalf("lowering the limit of a file's size, which any process may: %v", err)
		}
		g := newClaims("v4")
		seq, err := uint64(0), error(nil)
		for err == nil && seq < 50 {
			seq++
			_, err = s.Apply(&storage.Batch{Seq: seq, Claims: g.next(1000)})
		}
		_, again := s.Apply(&storage.Batch{Seq: seq + 1})
		fmt.Printf("cause=%v typed=%v again=%v close=%v\n", errors.Is(err, syscall.EFBIG), errors.Is(err, ErrFailed), errors.Is(again, ErrFailed), s.Close())
		return
	}
	dir := filepath.Join(t.TempDir(), "store")
	cmd := child("-test.run=^TestAFileSystemThatIsFullIsAnError$", "-test.v")
	cmd.Env = append(os.Environ(), "HAPAX_TEST_FULL="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "typed=true again=true close=<nil>") {
		t.Errorf("%v: %s", err, out)
	}
	s := mustOpen(t, dir, Options{})
	if err := s.Verify(t.Context(), func(p string) { t.Error(p) }); err != nil {
		t.Error(err)
	}
	s.Close()
}

// To bbolt, a bad disk or a truncated file looks like a mapped page that does not exist.
func TestAFaultOfTheMappingIsAnError(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "mapped"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapped, err := syscall.Mmap(int(f.Fd()), 0, 2*os.Getpagesize(), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(mapped)
	var sum byte
	if err := guard(func() error { sum += mapped[os.Getpagesize()]; return nil }); !errors.Is(err, storage.ErrDamaged) {
		t.Errorf("a fault gives %v, %d", err, sum)
	}
}

// A truncating context truncates a file when it is asked for the n-th time whether it has ended.
type truncating struct {
	context.Context
	path string
	n    int
}

func (c *truncating) Err() error {
	if c.n--; c.n == 0 {
		return os.Truncate(c.path, 0)
	}
	return nil
}

// The disk of a backup fails while bbolt reads the file that it writes there.
func TestABackupToADiskThatFailsIsAnError(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "store"), Options{})
	defer s.Close()
	b := &storage.Batch{Seq: 1}
	for i := range 60 {
		b.State = append(b.State, storage.StateWrite{Key: fmt.Append(nil, i), Value: make([]byte, 100_000)})
	}
	mustApply(t, s, b)
	to := filepath.Join(t.TempDir(), "backup")
	for n := 42; n < 47; n++ { // the first transaction ends about here
		ctx := &truncating{t.Context(), filepath.Join(to, copyFileName), n}
		err := s.Backup(ctx, to)
		if err == nil {
			t.Errorf("a file that is truncated before entry %d is a backup", n)
		}
		if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a file that is truncated before entry %d is left: %v", n, err)
		}
	}
	if err := s.Backup(t.Context(), to); err != nil {
		t.Error(err)
	}
	mustOpen(t, to, Options{}).Close()
}
