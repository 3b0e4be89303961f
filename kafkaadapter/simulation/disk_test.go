package simulation

import (
	"math/rand/v2"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/crashfs"
)

// A disk is what remains of a machine that has ended.
type disk interface {
	// open opens the store on the disk. The power can also fail inside the store if the disk
	// supports it.
	open(p *power) (storage.Store, error)
	// crash returns the disk as a power failure at this moment leaves it, with the given percentage
	// of the unsynced data. The open store continues on a disk that is no longer read.
	crash(keep int, rng *rand.Rand) disk
}

// A memDisk holds a storetest.Mem, of whose batches a prefix survives.
type memDisk struct {
	disk *storetest.Disk
	mem  *storetest.Mem // nil: not open
}

const memDir = "mem"

func newMemDisk() *memDisk { return &memDisk{disk: storetest.NewDisk()} }

func (d *memDisk) open(*power) (_ storage.Store, err error) {
	d.mem, err = d.disk.Open(memDir, storage.Identity{})
	return d.mem, err
}

func (d *memDisk) crash(keep int, _ *rand.Rand) disk {
	after := d.mem.CrashClone((d.mem.Unsynced()*keep + 50) / 100)
	if err := after.Close(); err != nil {
		panic(err) // nothing can fail there
	}
	return &memDisk{disk: after.Disk()}
}

// A pebbleDisk is the crash file system with a real store on it.
type pebbleDisk struct{ fs *crashfs.FS }

func newPebbleDisk() *pebbleDisk { return &pebbleDisk{crashfs.New()} }

func (d *pebbleDisk) open(p *power) (storage.Store, error) {
	o := pebble.Options{FS: errorfs.Wrap(d.fs, ticker{p}), CacheBytes: 64 << 10, MemTableBytes: 64 << 10, SmallTables: true}
	return pebble.Open("store", o)
}

func (d *pebbleDisk) crash(keep int, rng *rand.Rand) disk {
	return &pebbleDisk{d.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: keep, RNG: rng})}
}

// A ticker calls tick before each change to a file system. It injects no error.
type ticker struct{ p *power }

func (ticker) String() string { return "(ticker)" }

func (t ticker) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
		t.p.tick(atDisk)
	}
	return nil
}
