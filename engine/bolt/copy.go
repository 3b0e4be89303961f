package bolt

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// A Copy is a directory for a store whose batches are also in a log that several members read (package
// replica), so that it may lose them. Its batches are not synced one by one: a wait returns at once. The
// end of the process loses nothing; a power cut may leave a file without the newest batches, also
// confirmed ones, or a damaged one, for which Open returns storage.ErrDamaged. What was there when a
// sidecar was written, or when a bucket was dropped, was synced before. Open does not open it as a store.
type Copy struct {
	dir string
	o   Options
}

// CopyIn returns the copy in dir.
func CopyIn(dir string, o Options) *Copy { return &Copy{dir, o} }

// Copies returns the local copies of partitions for kafkaadapter.Changelog, each in a directory below dir. Their
// memory is that of the operating system's cache, so the third parameter has no effect.
func Copies(dir string, o Options) func(topic string, partition int32, memory int64) storage.Copies {
	in := func(dir string) storage.Copies { return CopyIn(dir, o) }
	return func(topic string, partition int32, _ int64) storage.Copies {
		return &storedir.Partition{Root: dir, Topic: topic, Partition: partition, In: in}
	}
}

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
	d, err := storedir.Open(c.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if err := d.Lock(defaultLockTimeout); err != nil {
		return err
	}
	names, err := d.List(".")
	if err != nil {
		return fmt.Errorf("hapax: removing a copy: %w", err)
	}
	if _, err := sidecar.ReadIdentity(d.FS(), d.Path(), sidecar.Bolt.Copy()); errors.Is(err, storage.ErrForeign) {
		return err
	}
	var ours []string
	for _, name := range names {
		switch {
		case name == storedir.LockName, name == sidecar.IdentityName, name == "lost+found":
		case isOurs(name):
			ours = append(ours, name)
		default:
			return fmt.Errorf("%w: %s has %s", storage.ErrForeign, c.dir, name)
		}
	}
	for _, name := range ours {
		if err := removeIfThere(d, name); err != nil {
			return err
		}
	}
	if err := d.Sync(); err != nil {
		return err
	}
	return errors.Join(removeIfThere(d, sidecar.IdentityName), d.Sync())
}
