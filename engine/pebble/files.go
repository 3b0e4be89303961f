package pebble

import (
	"bytes"
	"errors"
	"io"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hapax-dev/hapax/internal/crc32c"
)

func syncDir(fsys vfs.FS, path string) error {
	f, err := fsys.OpenDir(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func readFile(fsys vfs.FS, path string) ([]byte, error) { return readInto(nil, fsys, path) }

// readInto reads a file into buf, or into a larger slice if necessary.
func readInto(buf []byte, fsys vfs.FS, path string) ([]byte, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if size := int(info.Size()) + bytes.MinRead; cap(buf) < size {
		buf = make([]byte, 0, size)
	}
	b := bytes.NewBuffer(buf[:0])
	_, err = b.ReadFrom(f)
	return b.Bytes(), err
}

// makeDir creates a directory and its parents, durably.
func makeDir(fsys vfs.FS, dir string) error {
	if _, err := fsys.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := fsys.PathDir(dir)
	if parent != dir {
		if err := makeDir(fsys, parent); err != nil {
			return err
		}
	}
	if err := fsys.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return syncDir(fsys, parent)
}

func checksum(fsys vfs.FS, path string) (size uint64, crc uint32, err error) {
	f, err := fsys.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = f.Close() }() // it was only read
	h := crc32c.New()
	n, err := io.Copy(h, f)
	return uint64(n), h.Sum32(), err
}
