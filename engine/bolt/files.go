package bolt

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// Usage returns the sizes. DiskBytes are the lengths of all files of the directory,
// ReclaimableBytes those of the pages that are free to be used again: the file keeps them.
// WrittenBytes counts the pages of each transaction, the meta pages and the sidecars.
func (s *Store) Usage() (storage.Usage, error) {
	u := storage.Usage{WrittenBytes: s.written.Load()}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return storage.Usage{}, fmt.Errorf("hapax: looking at the store's directory: %w", err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // replaced meanwhile
		}
		if err != nil {
			return storage.Usage{}, fmt.Errorf("hapax: looking at the store's directory: %w", err)
		}
		if info.Mode().IsRegular() {
			u.DiskBytes += uint64(info.Size())
		}
	}
	stats := s.db.Stats()
	u.ReclaimableBytes = uint64(stats.FreePageN+stats.PendingPageN) * uint64(s.pageSize)
	return u, nil
}

// BucketBytes estimates by the bucket's sum: entries and their headers, in pages that are two
// thirds full.
func (s *Store) BucketBytes(b storage.Bucket) (uint64, error) {
	var size uint64
	err := s.view(func(m *moment) error {
		got, _, err := m.sum(sumKey(claimSpace, b.AppendPrefix(nil)))
		size = got.bytes + got.bytes/2
		return err
	})
	return size, err
}

// WriteSidecar replaces the sidecar. An error of write itself, and a full disk, leave the old one
// and do no harm; any other error of the disk fails the store.
func (s *Store) WriteSidecar(name string, write func(io.Writer) error) error {
	if err := checkSidecarName(name); err != nil {
		return err
	}
	if err := s.failed(); err != nil {
		return err
	}
	s.sidecars.Lock()
	defer s.sidecars.Unlock()
	var callers error
	c := counter{n: &s.written}
	err := sidecar.Write(s.o.files, s.dir, name+sidecarSuffix, func(w io.Writer) error {
		c.Writer = w
		callers = write(&c)
		return callers
	})
	if err == nil {
		return nil
	}
	err = fmt.Errorf("hapax: writing sidecar %s: %w", name, err)
	if callers != nil && c.err == nil || sidecar.NoSpace(err) {
		return err
	}
	return s.fail(err)
}

// ReadSidecar returns the sidecar's bytes.
func (s *Store) ReadSidecar(name string) ([]byte, error) {
	if err := checkSidecarName(name); err != nil {
		return nil, err
	}
	b, err := s.o.files.ReadFile(filepath.Join(s.dir, name+sidecarSuffix))
	if err != nil {
		return nil, fmt.Errorf("hapax: reading sidecar %s: %w", name, err)
	}
	return b, nil
}

func checkSidecarName(name string) error {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return fmt.Errorf("hapax: %q is no name for a sidecar: a-z, 0-9 and '-'", name)
		}
	}
	if name == "" {
		return errors.New("hapax: a sidecar without a name")
	}
	return nil
}

// A counter counts what goes through it.
type counter struct {
	io.Writer
	n   *atomic.Uint64
	err error // the first one
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n.Add(uint64(n))
	if c.err == nil {
		c.err = err
	}
	return n, err
}
