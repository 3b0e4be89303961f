package pebble

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// backups writes backups of the store, one at a time.
//
// A backup starts in a stage, a directory inside the store's directory, where tables are linked and
// only the remaining log is copied. This takes some milliseconds, in which nothing can be sealed.
// From there the backup is copied to its destination, which may be on another disk and may take
// hours, while the store is used.
type backups struct {
	core      *core
	identity  *identity
	packedLog *packedLog
	backingUp chan struct{} // full during a backup, because there is only one stage
}

func (b *backups) Backup(ctx context.Context, dir string) error {
	// Lock before the check of dir, so that two backups to one path do not both find it empty.
	select {
	case b.backingUp <- struct{}{}:
		defer func() { <-b.backingUp }()
	case <-ctx.Done():
		return fmt.Errorf("hapax: backup to %s: %w", dir, ctx.Err())
	}
	to, err := b.destination(dir)
	if err != nil {
		return fmt.Errorf("hapax: backup to %s: %w", dir, err)
	}
	err = b.backup(ctx, to)
	if err != nil && to.stuck() == nil {
		err = errors.Join(err, removeBackup(to))
	}
	if err = errors.Join(err, to.release()); err != nil {
		return fmt.Errorf("hapax: backup to %s: %w", dir, err)
	}
	return nil
}

// destination creates the directory of a backup and locks it.
func (b *backups) destination(dir string) (*failStopFS, error) {
	to, err := b.makeDestination(dir)
	if err != nil {
		return nil, err
	}
	if err := to.takeLock(); err != nil {
		return nil, errors.Join(err, to.release())
	}
	return to, nil
}

func (b *backups) makeDestination(dir string) (*failStopFS, error) {
	if held := b.core.disk.held; held != nil {
		if held.Contains(dir) {
			return nil, storedir.ErrInside
		}
		made, err := storedir.Make(dir)
		if err != nil {
			return nil, err
		}
		return heldFailStopFS(made), nil
	}
	fsys := b.core.disk.FS
	for at := dir; ; at = fsys.PathDir(at) {
		if at == b.core.disk.dir {
			return nil, storedir.ErrInside
		}
		if at == fsys.PathDir(at) {
			break
		}
	}
	if _, err := fsys.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fs.ErrExist
		}
		return nil, err
	}
	return openFailStopFS(fsys, dir)
}

// removeBackup removes the files of a failed backup and its directory.
func removeBackup(to *failStopFS) error {
	fsys := to.FS // a failed disk discards changes
	names, err := fsys.List(to.dir)
	if err != nil {
		return err
	}
	errs := []error{fsys.RemoveAll(to.path(stageName))}
	for _, name := range names {
		if isOurs(name) && name != lockName {
			errs = append(errs, fsys.Remove(to.path(name)))
		}
	}
	if to.held != nil {
		to.held.RemoveSelf()
		return errors.Join(errs...)
	}
	errs = append(errs, fsys.Remove(to.path(lockName)))
	_ = fsys.Remove(to.dir) // fails if another program has put something into it
	return errors.Join(errs...)
}

func (b *backups) backup(ctx context.Context, to *failStopFS) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if own, ok := b.core.disk.FS.(*dirFS); ok {
		own.backup.Store(to.held)
		defer own.backup.Store(nil)
	}
	ended := ctx.Err
	b.core.disk.ended.Store(&ended)
	defer b.core.disk.ended.Store(nil)
	sidecars, err := b.copyTo(ctx, to.dir)
	if err != nil {
		return err
	}
	c := &core{o: b.core.o, disk: to, fault: to.fault, startup: newStartup()}
	return becomeBackup(ctx, c, b.identity.id.Backup(), sidecars)
}

// copyTo writes Pebble's files to dir and returns the sidecars that belong to them.
func (b *backups) copyTo(ctx context.Context, dir string) (map[string][]byte, error) {
	d, stage := b.core.disk, b.core.disk.path(stageName)
	if err := d.RemoveAll(stage); err != nil {
		return nil, err
	}
	move := func(from, to string) error { return vfs.Copy(d, from, to) }
	if b.core.o.LinkBackups {
		move = d.Link
	}
	sidecars, err := b.checkpoint(stage)
	if errors.Is(err, errNoLinks) {
		// Pebble copies, and the directory must not exist.
		stage, move = d.PathJoin(dir, stageName), d.Rename
		sidecars, err = b.checkpoint(stage)
	}
	if err == nil {
		err = fromStage(ctx, d, stage, dir, move)
	}
	return sidecars, errors.Join(err, d.RemoveAll(stage))
}

// fromStage moves the files of a stage to dir, durably.
func fromStage(ctx context.Context, d *failStopFS, stage, dir string, move func(from, to string) error) error {
	names, err := d.List(stage)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := move(d.PathJoin(stage, name), d.PathJoin(dir, name)); err != nil {
			return err
		}
	}
	return syncDir(d.FS, dir)
}

// checkpoint writes Pebble's files and returns the sidecars that belong to them; the journal has
// the later batches.
func (b *backups) checkpoint(dir string) (map[string][]byte, error) {
	b.core.maintenance.Lock()
	defer b.core.maintenance.Unlock()
	// A checkpoint first lists the tables and then copies the log, including later writes. A run
	// that is ingested in between would be missing, and so would its packed batches.
	b.packedLog.ingest.Lock()
	defer b.packedLog.ingest.Unlock()
	names, err := b.core.disk.names()
	if err != nil {
		return nil, err
	}
	files := make(map[string][]byte)
	for _, name := range names {
		if strings.HasPrefix(name, sidecarPrefix) && !strings.HasSuffix(name, tmpSuffix) {
			if files[name], err = readFile(b.core.disk, b.core.disk.path(name)); err != nil {
				return nil, err
			}
		}
	}
	return files, b.core.fault.write(func() error { return b.core.db.Checkpoint(dir, pebble.WithFlushedWAL()) })
}

// becomeBackup converts a checkpoint into a cleanly closed store.
func becomeBackup(ctx context.Context, c *core, id storage.Identity, files map[string][]byte) (err error) {
	d := c.disk
	if err := d.noteLogs(); err != nil {
		return err
	}
	if c.db, err = c.openPebble(nil); err != nil {
		return err
	}
	c.startup.end() // Flush waits for compactions if there are too many runs
	last, _, err := c.begin()
	if err := errors.Join(err, c.fault.write(func() error {
		return errors.Join(c.db.Flush(), c.db.Close())
	})); err != nil {
		if c.fault.get() != nil {
			c.closePoisoned()
		}
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for name, content := range files {
		if err := writeSealed(d, name, content); err != nil {
			return err
		}
	}
	if err := writeAttestation(d, attestation{last, currentManifest(c.disk)}); err != nil {
		return err
	}
	if err := sidecar.WriteIdentity(sidecarFS{d}, d.dir, sidecar.Pebble, id); err != nil {
		return err
	}
	return writeClean(d, last)
}
