package pebble

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// refuseForeign rejects a foreign directory or a store of a newer format before anything is
// written. Everything is checked again under the lock.
func refuseForeign(d *failStopFS, kind sidecar.Kind) error {
	_, err := sidecar.ReadIdentity(sidecarFS{d}, d.dir, kind)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, err = newborn(d)
	return err
}

// newborn checks a directory without an identity. It returns the files of an unfinished creation,
// or storage.ErrForeign.
func newborn(d *failStopFS) (leftovers []string, err error) {
	names, err := d.names()
	if err != nil {
		return nil, fmt.Errorf("hapax: reading the store's directory: %w", err)
	}
	var begun bool
	var foreign string
	for _, name := range names {
		switch {
		case name == creatingName:
			begun = true
		case name == lockName, name == "lost+found":
		case isOurs(name) && !(strings.HasPrefix(name, sidecarPrefix)):
			leftovers = append(leftovers, name)
		default:
			foreign = name
		}
	}
	if foreign != "" {
		return nil, fmt.Errorf("%w: %s contains %s and is no store: give an empty directory", storage.ErrForeign, d.dir, foreign)
	}
	if !begun {
		for _, name := range leftovers {
			if name != creatingName+tmpSuffix {
				return nil, fmt.Errorf("%w: %s holds %s but neither %s nor %s", storage.ErrForeign, d.dir, name,
					sidecar.IdentityName, creatingName)
			}
		}
	}
	return leftovers, nil
}

// takeLock locks the directory until release is called.
func (d *failStopFS) takeLock() (err error) {
	if d.held != nil {
		return d.held.Lock(0)
	}
	if d.lock, err = d.FS.Lock(d.path(lockName)); err == nil {
		return nil
	}
	if errors.Is(err, syscall.EAGAIN) || strings.Contains(err.Error(), "lock held by current process") {
		return fmt.Errorf("%w: %s", storage.ErrLocked, d.dir)
	}
	return fmt.Errorf("hapax: locking %s: %w", d.dir, err)
}

// stuck returns an error if a write to a failed disk is still in progress.
func (d *failStopFS) stuck() error {
	if d.fault.isSet() && !d.drain(patience) {
		return errors.New("hapax: the disk does not answer: the directory stays locked until the process ends")
	}
	return nil
}

// release unlocks the directory and closes it, unless a write to it is still in progress.
func (d *failStopFS) release() error {
	if err := d.stuck(); err != nil {
		return err
	}
	var err error
	d.reserve.close()
	switch {
	case d.held != nil:
		err = d.held.Close()
	case d.lock != nil:
		err = d.lock.Close()
	}
	if err != nil {
		return fmt.Errorf("hapax: unlocking the store: %w", err)
	}
	return nil
}

// create creates a store in the directory, or completes an earlier creation.
//
// In an empty directory it writes creatingName, Pebble's files and the identity, then removes
// creatingName. If creatingName exists without an identity, the creation was not completed, Open
// never returned a store, and the files may be removed. If neither exists, the files are foreign,
// or the identity was lost: create rejects the directory.
func create(c *core) error {
	d := c.disk
	id, err := c.o.identity()
	if err != nil {
		return err
	}
	leftovers, err := newborn(d)
	if err != nil {
		return err
	}
	if err := writeSealed(d, creatingName, sidecar.Seal(nil)); err != nil {
		return fmt.Errorf("hapax: creating the store: %w", err)
	}
	for _, name := range leftovers {
		if err := d.Remove(d.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("hapax: removing what an unfinished creation left: %w", err)
		}
	}
	// The first log that Pebble writes has an old format, in which damage looks like a torn end.
	for range 2 {
		db, err := c.openPebble(nil)
		if err != nil {
			return err
		}
		if err := d.fault.write(db.Close); err != nil {
			return err
		}
	}
	if err := writeAttestation(d, attestation{manifest: d.manifests.durable()}); err != nil {
		return err
	}
	return finishCreation(d, c.o.kind(), id)
}

// finishCreation completes the directory so that Open accepts it.
func finishCreation(d *failStopFS, kind sidecar.Kind, id storage.Identity) error {
	if err := sidecar.WriteIdentity(sidecarFS{d}, d.dir, kind, id); err != nil {
		return err
	}
	if err := d.fault.get(); err != nil {
		return err
	}
	return removeSidecar(d, creatingName)
}
