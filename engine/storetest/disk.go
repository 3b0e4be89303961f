package storetest

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A Disk has the directories of Mem stores. It survives when a Mem is closed or loses power.
type Disk struct {
	mu   sync.Mutex // guards the images and every Mem of this disk; not held during callbacks
	dirs map[string]*image
}

// An image is a store in a directory.
type image struct {
	newer    bool // written by a newer build
	identity storage.Identity
	contents *contents
	sidecars map[string][]byte
	open     bool
}

func (i *image) clone(c *contents) *image {
	return &image{newer: i.newer, identity: i.identity, contents: c, sidecars: maps.Clone(i.sidecars)}
}

// NewDisk returns an empty disk.
func NewDisk() *Disk { return &Disk{dirs: map[string]*image{}} }

func (d *Disk) put(dir string, i *image) error {
	if d.dirs[dir] != nil {
		return fmt.Errorf("storetest: %s: %w", dir, fs.ErrExist)
	}
	d.dirs[dir] = i
	return nil
}

// fingerprint changes with every byte of the store in dir.
func (d *Disk) fingerprint(dir string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var b bytes.Buffer
	if i := d.dirs[dir]; i != nil {
		fmt.Fprint(&b, i.newer, i.identity, i.contents, i.sidecars) // maps are printed in key order
	}
	return b.String()
}

func (d *Disk) setNewer(dir string, newer bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dirs[dir].newer = newer
}
