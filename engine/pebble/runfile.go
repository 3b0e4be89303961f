package pebble

import (
	"bufio"
	"errors"

	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// runWriteBytes is the size of a write to a run's file. Pebble's own writable files write blocks of
// some kilobytes, which end within a page of the file system's cache.
const runWriteBytes = 256 << 10

// A runFile is a file for a table of a run.
type runFile struct {
	file vfs.File
	buf  *bufio.Writer
}

func newRunFile(f vfs.File) objstorage.Writable {
	return &runFile{f, bufio.NewWriterSize(f, runWriteBytes)}
}

// Write implements objstorage.Writable.
func (f *runFile) Write(p []byte) error {
	_, err := f.buf.Write(p)
	return err
}

// Finish implements objstorage.Writable.
func (f *runFile) Finish() error {
	err := f.buf.Flush()
	if err == nil {
		err = f.file.Sync()
	}
	return errors.Join(err, f.file.Close())
}

// Abort implements objstorage.Writable.
func (f *runFile) Abort() { _ = f.file.Close() }
