package pebble

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// A backup begins on a stage, a directory in the store's own, where tables are linked and only what
// is left of the log is copied: that takes no longer than some milliseconds, in which nothing can
// be sealed. From there it goes to where it belongs, which may be another disk and take hours,
// while the store is used.
const stageName = "hapax-backup.tmp"

// errNoLinks is that there can be no stage. Pebble does not copy where it may not link.
var errNoLinks = fmt.Errorf("no hard links: %w", fs.ErrPermission)

// Backup implements storage.Store. Tables are linked where the file system can, and then keep their
// space until the backup goes, too. Where it has no hard links, the tables are copied while nothing
// is sealed, and Apply waits once memory is full. The copy is opened and closed once, and only
// after that becomes a store: whatever an interrupted backup leaves is refused by Open.
func (s *Store) Backup(ctx context.Context, dir string) error {
	// From before the look at dir: two backups to one place must not both find nothing there, as
	// the one that fails removes what is in it.
	select {
	case s.backingUp <- struct{}{}:
		defer func() { <-s.backingUp }()
	case <-ctx.Done():
		return fmt.Errorf("hapax: backup to %s: %w", dir, ctx.Err())
	}
	fsys := s.disk.FS
	if _, err := fsys.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fs.ErrExist
		}
		return fmt.Errorf("hapax: backup to %s: %w", dir, err)
	}
	if err := s.backup(ctx, dir); err != nil {
		return fmt.Errorf("hapax: backup to %s: %w", dir, errors.Join(err, fsys.RemoveAll(dir)))
	}
	return nil
}

func (s *Store) backup(ctx context.Context, dir string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	sidecars, err := s.copyTo(ctx, dir)
	if err != nil {
		return err
	}
	if dir, err = prepareDir(s.disk.FS, dir); err != nil {
		return err
	}
	if s.disk.FS == vfs.Default {
		if err := os.Chmod(dir, 0o700); err != nil {
			return err
		}
	}
	b := &Store{o: s.o, disk: newDisk(s.disk.FS, dir, hooks{})}
	b.fault = b.disk.fault
	if b.lock, err = b.disk.takeLock(); err != nil {
		return err
	}
	return errors.Join(b.becomeBackup(ctx, s, sidecars), b.release())
}

// copyTo makes Pebble's files in dir and returns the sidecars that go with them.
func (s *Store) copyTo(ctx context.Context, dir string) (map[string][]byte, error) {
	stage := s.disk.path(stageName)
	if err := s.disk.RemoveAll(stage); err != nil {
		return nil, err
	}
	sidecars, err := s.checkpoint(stage)
	if errors.Is(err, errNoLinks) {
		return s.checkpoint(dir)
	}
	if err == nil {
		err = s.disk.fromStage(ctx, stage, dir)
	}
	return sidecars, errors.Join(err, s.disk.RemoveAll(stage))
}

// fromStage links or copies what is on a stage, durably.
func (d *disk) fromStage(ctx context.Context, stage, dir string) error {
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

// checkpoint makes Pebble's files and returns the sidecars that go with them: the journal has what
// they lack.
func (s *Store) checkpoint(dir string) (map[string][]byte, error) {
	s.maintenance.Lock()
	defer s.maintenance.Unlock()
	// A checkpoint takes the tables first and then the log, with what was written to it meanwhile:
	// a run that is ingested in between would be missing, and its packed batches as well.
	if !s.o.test.backupBeside {
		s.ingest.Lock()
		defer s.ingest.Unlock()
	}
	names, err := s.disk.List(s.disk.dir)
	if err != nil {
		return nil, err
	}
	files := make(map[string][]byte)
	for _, name := range names {
		if strings.HasPrefix(name, sidecarPrefix) && !strings.HasSuffix(name, tmpSuffix) {
			if files[name], err = readFile(s.disk, s.disk.path(name)); err != nil {
				return nil, err
			}
		}
	}
	return files, s.fault.write(func() error { return s.db.Checkpoint(dir, pebble.WithFlushedWAL()) })
}

// becomeBackup makes a checkpoint a cleanly closed store.
func (s *Store) becomeBackup(ctx context.Context, of *Store, files map[string][]byte) (err error) {
	if s.db, err = s.openPebble(false); err != nil {
		return err
	}
	if err := errors.Join(s.begin(), s.fault.write(func() error {
		return errors.Join(s.db.Flush(), s.db.Close())
	})); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	d := s.disk
	for name, content := range files {
		if err := d.writeSealed(name, content); err != nil {
			return err
		}
	}
	if err := d.writeAttestation(attestation{s.lastSeq, s.currentManifest()}); err != nil {
		return err
	}
	id := of.id.Backup()
	if err := sidecar.WriteIdentity(sidecars{d}, d.dir, sidecar.Pebble, id); err != nil {
		return err
	}
	return d.writeClean(s.lastSeq)
}
