package pebble

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// backups makes backups of the store, one at a time.
//
// A backup begins in a stage, a directory in the store's own, where tables are linked and only the
// remaining log is copied: this takes some milliseconds, in which nothing can be sealed. From there
// it is copied to its destination, which may be another disk and take hours, while the store is
// used.
type backups struct {
	*core
	*identity
	*packedLog
	backingUp chan struct{} // has a value during a backup, because there is only one stage
}

// Backup implements storage.Store. Tables are linked where the file system supports it, and then
// keep their space until the backup is removed, too. Without hard links, the tables are copied
// while nothing is sealed, and Apply waits when memory is full; the context ends that before the next
// table. The copy is opened and closed once, and only after that becomes a store: Open rejects the files
// of an interrupted backup.
func (b *backups) Backup(ctx context.Context, dir string) error {
	// Locked before the check of dir: two backups to one path must not both find it empty, because
	// the one that fails removes its contents.
	select {
	case b.backingUp <- struct{}{}:
		defer func() { <-b.backingUp }()
	case <-ctx.Done():
		return fmt.Errorf("hapax: backup to %s: %w", dir, ctx.Err())
	}
	fsys := b.disk.FS
	if fsys == vfs.Default {
		abs, err := filepath.Abs(dir) // the process may change its directory meanwhile
		if err != nil {
			return fmt.Errorf("hapax: backup to %s: %w", dir, err)
		}
		dir = abs
	}
	if _, err := fsys.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fs.ErrExist
		}
		return fmt.Errorf("hapax: backup to %s: %w", dir, err)
	}
	if err := b.backup(ctx, dir); err != nil {
		return fmt.Errorf("hapax: backup to %s: %w", dir, errors.Join(err, fsys.RemoveAll(dir)))
	}
	return nil
}

func (b *backups) backup(ctx context.Context, dir string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ended := ctx.Err
	b.disk.ended.Store(&ended)
	defer b.disk.ended.Store(nil)
	sidecars, err := b.copyTo(ctx, dir)
	if err != nil {
		return err
	}
	if dir, err = prepareDir(b.disk.FS, dir); err != nil {
		return err
	}
	if b.disk.FS == vfs.Default {
		if err := os.Chmod(dir, 0o700); err != nil {
			return err
		}
	}
	d := newDisk(b.disk.FS, dir)
	c := &core{o: b.o, disk: d, fault: d.fault, startup: newStartup()}
	if c.lock, err = takeLock(d); err != nil {
		return err
	}
	return errors.Join(becomeBackup(ctx, c, b.id.Backup(), sidecars), c.release())
}

// copyTo makes Pebble's files in dir and returns the sidecars that belong to them.
func (b *backups) copyTo(ctx context.Context, dir string) (map[string][]byte, error) {
	stage := b.disk.path(stageName)
	if err := b.disk.RemoveAll(stage); err != nil {
		return nil, err
	}
	sidecars, err := b.checkpoint(stage)
	if errors.Is(err, errNoLinks) {
		return b.checkpoint(dir)
	}
	if err == nil {
		err = fromStage(ctx, b.disk, stage, dir)
	}
	return sidecars, errors.Join(err, b.disk.RemoveAll(stage))
}

// fromStage links or copies the files of a stage, durably.
func fromStage(ctx context.Context, d *disk, stage, dir string) error {
	dir, err := prepareDir(d.FS, dir)
	if err != nil {
		return err
	}
	names, err := d.List(stage)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := d.Link(d.PathJoin(stage, name), d.PathJoin(dir, name)); err != nil {
			return err
		}
	}
	return syncDir(d.FS, dir)
}

// checkpoint makes Pebble's files and returns the sidecars that belong to them: the journal has the
// later batches.
func (b *backups) checkpoint(dir string) (map[string][]byte, error) {
	b.maintenance.Lock()
	defer b.maintenance.Unlock()
	// A checkpoint lists the tables first and then copies the log, including later writes: a run
	// that is ingested in between would be missing, and its packed batches as well.
	b.ingest.Lock()
	defer b.ingest.Unlock()
	names, err := b.disk.List(b.disk.dir)
	if err != nil {
		return nil, err
	}
	files := make(map[string][]byte)
	for _, name := range names {
		if strings.HasPrefix(name, sidecarPrefix) && !strings.HasSuffix(name, tmpSuffix) {
			if files[name], err = readFile(b.disk, b.disk.path(name)); err != nil {
				return nil, err
			}
		}
	}
	return files, b.fault.write(func() error { return b.db.Checkpoint(dir, pebble.WithFlushedWAL()) })
}

// becomeBackup makes a checkpoint a cleanly closed store.
func becomeBackup(ctx context.Context, c *core, id storage.Identity, files map[string][]byte) (err error) {
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
	d := c.disk
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
