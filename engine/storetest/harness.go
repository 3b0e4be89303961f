package storetest

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/crc32c"
)

// A Harness tells the suite how to handle one kind of store. Only Open must be set; if another
// function is nil, its checks are skipped, or use the stated replacement.
//
// Only the harness interprets a directory's name; the store may keep it on a file system in memory.
type Harness struct {
	// Open opens the store in dir, and creates it if there is none. The parent of dir exists.
	Open func(t testing.TB, dir string) (storage.Store, error)

	// CrashClone copies the state that a power failure at this moment would leave of s, which is
	// open in dir, to a new directory, and returns the name of that directory. About the given
	// percentage of the unsynced bytes survives; a store that syncs everything it writes may ignore
	// it. s continues. No call of s is in progress, except that the suite also calls CrashClone in
	// the write function of a WriteSidecar.
	CrashClone func(t testing.TB, s storage.Store, dir string, unsyncedPercent int) string

	// AtomicClone means that CrashClone copies all files at one moment, so that one goroutine may
	// call it while calls of s are in progress. Copying files one after the other is not atomic.
	AtomicClone bool

	// Flush brings all data that s has in memory or in a log into its final form. If it is nil, the
	// suite closes and opens the store instead.
	Flush func(t testing.TB, s storage.Store)

	// FailWrites makes every write and sync of a file of s fail from now on. It returns the cause,
	// which the errors of s must wrap.
	FailWrites func(t testing.TB, s storage.Store) (cause error)

	// NoRoom makes every file of s that WriteSidecar writes fail with syscall.ENOSPC when its bytes
	// are written, until there is space again.
	NoRoom func(t testing.TB, s storage.Store) (room func())

	// MakeNewer makes the closed store in dir look as if a newer build had written it; undo
	// restores it. If it is nil, the format in the file HAPAX is raised.
	MakeNewer func(t testing.TB, dir string) (undo func())

	// Fingerprint returns a text that changes with every name and byte in dir. If it is nil, the
	// files are hashed.
	Fingerprint func(t testing.TB, dir string) string

	patience time.Duration // the time limit of a call that should be fast
	budget   time.Duration // the duration of RandomRunAgreesWithAMap
}

func (h Harness) withDefaults() Harness {
	if h.MakeNewer == nil {
		h.MakeNewer = raiseFormat
	}
	if h.Fingerprint == nil {
		h.Fingerprint = hashTree
	}
	if h.patience == 0 {
		h.patience = 2 * time.Minute // a busy machine may stall for a long time
	}
	if h.budget == 0 {
		h.budget = 5 * time.Second
		if testing.Short() {
			h.budget = 2 * time.Second
		}
	}
	return h
}

// raiseFormat relies on the promise of the identity file for all formats: a magic of 8 bytes, the
// format as a big-endian uint32, and at the end the CRC-32C of all before it.
func raiseFormat(t testing.TB, dir string) (undo func()) {
	t.Helper()
	path := filepath.Join(dir, "HAPAX")
	old, err := os.ReadFile(path)
	if err != nil || len(old) < 16 {
		t.Fatalf("reading the identity file: %d bytes, %v", len(old), err)
	}
	patched := append([]byte{}, old[:len(old)-4]...)
	binary.BigEndian.PutUint32(patched[8:], binary.BigEndian.Uint32(patched[8:])+1)
	patched = binary.BigEndian.AppendUint32(patched, crc32c.Checksum(patched))
	write := func(b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatalf("writing the identity file: %v", err)
		}
	}
	write(patched)
	return func() { write(old) }
}

func hashTree(t testing.TB, dir string) string {
	t.Helper()
	h := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		_, _ = fmt.Fprintf(h, "%q %d\n", path, len(content))
		h.Write(content)
		return err
	})
	if err != nil {
		t.Fatalf("hashing %s: %v", dir, err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}
