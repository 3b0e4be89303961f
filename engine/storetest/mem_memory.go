package storetest

import (
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
)

// memory is the state of a Mem.
type memory struct {
	faults
	dir string

	// Guarded by disk.mu.
	image    *image
	history  history
	trimmed  uint64
	nextSeq  uint64 // Seq of the next Apply
	nextWait uint64 // Seq of the next wait
	reclaim  map[storage.Bucket]uint64
	dropped  map[storage.Bucket]bool
	written  uint64

	// For tests, guarded by disk.mu.
	held    bool // syncs are held back
	permits int  // held syncs that may finish
	holding int  // waits that are held back now
}

func newMemory(d *Disk, dir string, i *image) *memory {
	next := i.contents.lastSeq + 1
	return &memory{
		faults: faults{
			disk:    d,
			calls:   map[Op]int{},
			hooks:   map[Op]func(int) error{},
			busy:    map[string]bool{},
			changed: sync.NewCond(&d.mu),
		},
		dir:      dir,
		image:    i,
		history:  newHistory(i.contents),
		nextSeq:  next,
		nextWait: next,
		reclaim:  map[storage.Bucket]uint64{},
		dropped:  map[storage.Bucket]bool{},
	}
}
