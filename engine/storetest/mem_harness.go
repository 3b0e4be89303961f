package storetest

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
)

// Harness returns the harness of the stores in memory on this disk. Directories are only names on
// the disk.
func (d *Disk) Harness() Harness {
	return Harness{
		AtomicClone: true,
		Open: func(_ testing.TB, dir string) (storage.Store, error) {
			m, err := d.Open(dir, storage.Identity{})
			if err != nil {
				return nil, err // a nil *Mem is not a nil storage.Store
			}
			return m, nil
		},
		CrashClone: func(t testing.TB, s storage.Store, _ string, unsyncedPercent int) string {
			m := memOf(s)
			image := m.crashImage(m.Unsynced() * unsyncedPercent / 100)
			d.mu.Lock()
			defer d.mu.Unlock()
			to := fmt.Sprint("clone-", len(d.dirs))
			if err := d.put(to, image); err != nil {
				t.Fatal(err)
			}
			return to
		},
		FailWrites: func(_ testing.TB, s storage.Store) error {
			err := errors.New("the disk is on fire")
			memOf(s).Fail(err)
			return err
		},
		NoRoom: func(_ testing.TB, s storage.Store) func() {
			memOf(s).Before(OpWriteSidecar, func(int) error { return syscall.ENOSPC })
			return func() { memOf(s).Before(OpWriteSidecar, nil) }
		},
		MakeNewer: func(_ testing.TB, dir string) func() {
			d.setNewer(dir, true)
			return func() { d.setNewer(dir, false) }
		},
		Fingerprint: func(_ testing.TB, dir string) string { return d.fingerprint(dir) },
	}
}

// memOf returns the Mem that s is or embeds.
func memOf(s storage.Store) *Mem { return s.(interface{ mem() *Mem }).mem() }

func (m *Mem) mem() *Mem { return m }
