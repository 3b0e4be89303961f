package pebble

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// A Copy is a directory for a store whose batches are also in a log that several members read (package
// replica), so that it may lose them. Its batches are not synced one by one: a wait returns at once, and
// a power cut, or the end of the process, may take the newest ones, also confirmed ones. What remains is
// without a gap, and contains all batches that a sidecar, a table or a drop depends on.
// Open does not open it as a store.
type Copy struct {
	dir string
	o   Options
}

// CopyIn returns the copy in dir.
func CopyIn(dir string, o Options) *Copy { return &Copy{dir, o} }

// Copies returns the local copies of partitions for kafkaadapter.Changelog, each in a directory below dir. It
// is called with a partition and the memory that its copy may use: unless o says so, a fifth of it is
// PendingBytes and a half CacheBytes. 0: the defaults of Options. Options.FS cannot be used.
func Copies(dir string, o Options) func(topic string, partition int32, memory int64) storage.Copies {
	return func(topic string, partition int32, memory int64) storage.Copies {
		in := func(dir string) storage.Copies { return CopyIn(dir, o.within(memory)) }
		return &storedir.Partition{Root: dir, Topic: topic, Partition: partition, In: in}
	}
}

// within returns the options for a store that may use that much memory.
func (o Options) within(memory int64) Options {
	if memory <= 0 {
		return o
	}
	if o.PendingBytes == 0 {
		o.PendingBytes = min(max(uint64(memory)/5, minPendingBytes), maxTableBytes)
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = max(memory/2, minCacheBytes)
	}
	return o
}

// The least memory of a copy.
const (
	minPendingBytes = 256 << 10
	minCacheBytes   = 1 << 20
)

// Open opens the copy. It returns fs.ErrNotExist if there is none, and otherwise the errors of Open.
func (c *Copy) Open() (storage.Store, error) { return c.open(storage.Identity{}) }

// Create makes an empty copy with an identity. It returns fs.ErrExist if there is a store.
func (c *Copy) Create(id storage.Identity) (storage.Store, error) {
	s, err := c.open(id)
	if err == nil && s.Identity() != id {
		err = errors.Join(fmt.Errorf("hapax: creating a copy in %s: %w", c.dir, fs.ErrExist), s.Close())
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (c *Copy) open(id storage.Identity) (storage.Store, error) {
	o := c.o
	o.copy = &copyOptions{identity: id}
	s, err := Open(c.dir, o)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Remove removes the files of a copy that is not open. The identity is removed last: until then, what
// remains is damaged, and not a store with fewer batches. If the directory has other files or a store that
// is no copy, nothing is removed.
func (c *Copy) Remove() (err error) {
	d, err := openFailStopFS(c.o.FS, c.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.release()) }()
	if err := d.takeLock(); err != nil {
		return err
	}
	names, err := d.names()
	if err != nil {
		return err
	}
	if _, err := sidecar.ReadIdentity(sidecarFS{d}, d.dir, sidecar.Pebble.Copy()); errors.Is(err, storage.ErrForeign) {
		return err
	}
	var ours []string
	for _, name := range names {
		switch {
		case name == lockName, name == sidecar.IdentityName, name == "lost+found":
		case isOurs(name), name == stageName:
			ours = append(ours, name)
		default:
			return fmt.Errorf("%w: %s has %s", storage.ErrForeign, c.dir, name)
		}
	}
	for _, name := range ours {
		if err := d.RemoveAll(d.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("hapax: removing a copy: %w", err)
		}
	}
	if err := syncDir(d, d.dir); err != nil {
		return err
	}
	if err := d.Remove(d.path(sidecar.IdentityName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("hapax: removing a copy: %w", err)
	}
	return syncDir(d, d.dir)
}
