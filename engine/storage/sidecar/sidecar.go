// Package sidecar reads and writes the small files next to a store's data: its identity, the record
// of a clean close, snapshots. It replaces a file atomically: a crash leaves the old or the new
// one. Both stores use it.
package sidecar

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hapax-dev/hapax/internal/crc32c"
)

// An FS is the part of a file system that sidecars need.
type FS interface {
	// Create creates or replaces a file with mode 0600, without following links.
	Create(path string) (File, error)
	ReadFile(path string) ([]byte, error) // fs.ErrNotExist if absent
	// Open opens a file for reading and returns its size; fs.ErrNotExist if absent.
	Open(path string) (f io.ReadCloser, size int64, err error)
	Rename(from, to string) error
	Remove(path string) error
	SyncDir(path string) error
}

// A File is written once, then synced and closed.
type File interface {
	io.Writer
	Sync() error
	Close() error
}

// tmpSuffix is the suffix of a file that is being written. A crash may leave such a file; the next
// Write replaces it.
const tmpSuffix = ".tmp"

// Write replaces dir/name with the output of write, atomically and durably on return. After an
// error it removes the partial output, so that a file that does not fit does not fill the disk.
func Write(fsys FS, dir, name string, write func(io.Writer) error) (err error) {
	path := filepath.Join(dir, name)
	f, err := fsys.Create(path + tmpSuffix)
	if err != nil {
		return err
	}
	err = errors.Join(write(f), f.Sync(), f.Close())
	if err == nil {
		err = fsys.Rename(path+tmpSuffix, path)
	}
	if err != nil {
		_ = fsys.Remove(path + tmpSuffix) // the next Write replaces it
		return err
	}
	return fsys.SyncDir(dir)
}

// Read calls read with the content and the size of a file. It does not load the content into
// memory.
func Read(fsys FS, path string, read func(r io.Reader, size int64) error) error {
	f, size, err := fsys.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	return read(f, size)
}

// Remove removes dir/name, durably on return. It is not an error if the file does not exist.
func Remove(fsys FS, dir, name string) error {
	if err := fsys.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fsys.SyncDir(dir)
}

var errChecksum = errors.New("checksum mismatch")

// Seal appends the CRC-32C of b, so that Unseal can detect damage.
func Seal(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32c.Checksum(b))
}

// Unseal returns the sealed bytes, or an error if they are damaged.
func Unseal(b []byte) ([]byte, error) {
	n := len(b) - 4
	if n < 0 || binary.BigEndian.Uint32(b[n:]) != crc32c.Checksum(b[:n]) {
		return nil, errChecksum
	}
	return b[:n], nil
}

// OS is the machine's file system.
type OS struct{}

// Create creates a file that only its owner may read. It first removes an existing file or link
// with that name.
func (OS) Create(path string) (File, error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if !errors.Is(err, fs.ErrExist) {
			return f, err
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// ReadFile is os.ReadFile.
func (OS) ReadFile(path string) ([]byte, error) { return os.ReadFile(path) }

// Open is os.Open.
func (OS) Open(path string) (io.ReadCloser, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// Rename is os.Rename.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove is os.Remove.
func (OS) Remove(path string) error { return os.Remove(path) }
