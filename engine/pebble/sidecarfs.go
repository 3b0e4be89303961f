package pebble

import (
	"errors"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// sidecarFS adapts a failStopFS to package sidecar.
type sidecarFS struct{ disk *failStopFS }

var _ sidecar.FS = sidecarFS{}

// Rename implements sidecar.FS.
func (s sidecarFS) Rename(from, to string) error { return s.disk.Rename(from, to) }

// Remove implements sidecar.FS.
func (s sidecarFS) Remove(path string) error { return s.disk.Remove(path) }

func (s sidecarFS) Create(path string) (sidecar.File, error) {
	f, err := s.disk.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	return &sidecarFile{File: f}, nil
}

// A sidecarFile is an io.Writer, which must not change the bytes it is given; a vfs.File may.
type sidecarFile struct {
	vfs.File
	buf []byte
}

func (f *sidecarFile) Write(p []byte) (n int, err error) {
	const chunk = 256 << 10
	for n < len(p) && err == nil {
		f.buf = append(f.buf[:0], p[n:min(len(p), n+chunk)]...)
		var k int
		k, err = f.File.Write(f.buf)
		n += k
	}
	return n, err
}

func (s sidecarFS) ReadFile(path string) ([]byte, error) { return readFile(s.disk, path) }

func (s sidecarFS) Open(path string) (io.ReadCloser, int64, error) {
	f, err := s.disk.Open(path)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

func (s sidecarFS) SyncDir(path string) error { return syncDir(s.disk, path) }

// writeSealed replaces a small file, durably on return.
func writeSealed(d *failStopFS, name string, b []byte) error {
	err := sidecar.Write(sidecarFS{d}, d.dir, name, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
	if failed := d.fault.get(); failed != nil {
		return failed
	}
	return err
}

// removeSidecar removes a file, durably on return.
func removeSidecar(d *failStopFS, name string) error {
	if err := sidecar.Remove(sidecarFS{d}, d.dir, name); err != nil {
		return err
	}
	return d.fault.get()
}
