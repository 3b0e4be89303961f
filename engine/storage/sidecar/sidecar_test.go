package sidecar

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

func TestWriteReplacesAFileOrLeavesTheOldOne(t *testing.T) {
	dir := t.TempDir()
	read := func() string {
		t.Helper()
		b, err := OS{}.ReadFile(filepath.Join(dir, "x"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, s := range []string{"old", "new"} {
		if err := Write(OS{}, dir, "x", text(s)); err != nil {
			t.Fatal(err)
		}
		if got := read(); got != s {
			t.Fatal(got)
		}
	}
	mine := errors.New("the writer's")
	err := Write(OS{}, dir, "x", func(w io.Writer) error { return errors.Join(text("half")(w), mine) })
	if !errors.Is(err, mine) || read() != "new" {
		t.Fatal(err, read())
	}
	if err := Write(OS{}, dir, "x", text("after a torn one")); err != nil || read() != "after a torn one" {
		t.Fatal(err, read())
	}
}

// failingFS records the order of operations and fails the named one.
type failingFS struct {
	OS
	fail string
	done []string
}

var errFailed = errors.New("failed")

func (f *failingFS) op(name string) error {
	f.done = append(f.done, name)
	if name == f.fail {
		return errFailed
	}
	return nil
}

func (f *failingFS) Create(path string) (File, error) {
	if err := f.op("create"); err != nil {
		return nil, err
	}
	file, err := f.OS.Create(path)
	return &failingFile{file, f}, err
}

func (f *failingFS) Rename(from, to string) error {
	if err := f.op("rename"); err != nil {
		return err
	}
	return f.OS.Rename(from, to)
}

func (f *failingFS) SyncDir(dir string) error {
	if err := f.op("sync directory"); err != nil {
		return err
	}
	return f.OS.SyncDir(dir)
}

type failingFile struct {
	File
	fs *failingFS
}

func (f *failingFile) Write(p []byte) (int, error) {
	if err := f.fs.op("write"); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

func (f *failingFile) Sync() error {
	if err := f.fs.op("sync"); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *failingFile) Close() error {
	if err := f.fs.op("close"); err != nil {
		return errors.Join(err, f.File.Close())
	}
	return f.File.Close()
}

func TestAFailingStepOfAWriteIsReturnedAndKeepsTheOldFile(t *testing.T) {
	steps := []string{"create", "write", "sync", "close", "rename", "sync directory"}
	dir := t.TempDir()
	if err := Write(OS{}, dir, "x", text("old")); err != nil {
		t.Fatal(err)
	}
	for i, step := range steps {
		f := &failingFS{fail: step}
		if err := Write(f, dir, "x", text("new")); !errors.Is(err, errFailed) {
			t.Errorf("%s fails: %v", step, err)
		}
		b, err := OS{}.ReadFile(filepath.Join(dir, "x"))
		if want := step == "sync directory"; err != nil || (string(b) == "new") != want {
			t.Errorf("%s fails: the file contains %q, %v", step, b, err)
		}
		for j := 0; j <= min(i, 2); j++ {
			if f.done[j] != steps[j] {
				t.Fatalf("the order is %q", f.done)
			}
		}
	}
}

func TestRemoveOfNothingIsNoError(t *testing.T) {
	dir := t.TempDir()
	if err := Write(OS{}, dir, "x", text("x")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Remove(OS{}, dir, "x"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := (OS{}).ReadFile(filepath.Join(dir, "x")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

func TestUnsealFindsEveryFlippedBit(t *testing.T) {
	sealed := Seal([]byte("some bytes"))
	if b, err := Unseal(sealed); err != nil || string(b) != "some bytes" {
		t.Fatal(b, err)
	}
	for i := range 8 * len(sealed) {
		bad := append([]byte{}, sealed...)
		bad[i/8] ^= 1 << (i % 8)
		if _, err := Unseal(bad); !errors.Is(err, errChecksum) {
			t.Errorf("bit %d: %v", i, err)
		}
	}
	if _, err := Unseal([]byte("abc")); !errors.Is(err, errChecksum) {
		t.Fatal(err)
	}
}

// Another program may put a link where the temporary file will be.
func TestWriteFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(dir, "x"+tmpSuffix)); err != nil {
		t.Skip(err)
	}
	if err := Write(OS{}, dir, "x", text("ours")); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(victim); string(b) != "precious" {
		t.Errorf("the target of the link contains %q, %v", b, err)
	}
}

// Bytes that do not fit are removed: they would fill the disk.
func TestFailedWriteLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	err := Write(OS{}, dir, "a", func(w io.Writer) error {
		_, err := w.Write(make([]byte, 1<<16))
		return errors.Join(err, syscall.ENOSPC)
	})
	if !NoSpace(err) {
		t.Errorf("%v is not known as a full disk", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if NoSpace(io.ErrUnexpectedEOF) || NoSpace(nil) {
		t.Error("every error is a full disk")
	}
}
