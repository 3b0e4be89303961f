package bolt

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
)

const shortLock = 50 * time.Millisecond

func mustOpen(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return s
}

func mustApply(t testing.TB, s *Store, b *storage.Batch) {
	t.Helper()
	wait, err := s.Apply(b)
	if err == nil {
		err = wait()
	}
	if err != nil {
		t.Fatalf("Apply of batch %d: %v", b.Seq, err)
	}
}

// cloneOpen copies a directory in the state after a kill.
func cloneOpen(t testing.TB, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "clone")
	copyDir(t, dir, to)
	return to
}

// copyDir copies the files of a directory. It leaves out one that is renamed or removed meanwhile,
// as the temporary file of a sidecar is.
func copyDir(t testing.TB, from, to string) {
	t.Helper()
	if err := os.MkdirAll(to, 0o700); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(from, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, e.Name()), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
