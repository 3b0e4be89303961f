package crashfs_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/internal/crashfs"
)

func TestCopiesDuringOperationsEnd(t *testing.T) {
	fsys := crashfs.New()
	f, err := fsys.Create("a", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	const n = 5000
	done := make(chan error, 4)
	repeat := func(do func(i int) error) {
		for i := range n {
			if err := do(i); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}
	go repeat(func(i int) error { return fsys.Link("a", "link"+strconv.Itoa(i)) })
	go repeat(func(i int) error {
		lock, err := fsys.Lock("lock")
		if err != nil {
			return err
		}
		return lock.Close()
	})
	go repeat(func(i int) error {
		name := func(i int) string { return "log" + strconv.Itoa(i%2) }
		if i == 0 {
			f, err := fsys.Create(name(0), vfs.WriteCategoryUnspecified)
			if err != nil {
				return err
			}
			return f.Close()
		}
		f, err := fsys.ReuseForWrite(name(i-1), name(i), vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		return f.Close()
	})
	go repeat(func(int) error { fsys.CrashClone(vfs.CrashCloneCfg{}); return nil })
	for range 4 {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("an operation and a copy wait for each other")
		}
	}
}
