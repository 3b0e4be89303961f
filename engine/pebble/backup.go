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
	"github.com/hapax-dev/hapax/internal/sidecar"
)

// Backup implements engine.Store. Tables are linked where the file system can, and then keep their space until the
// backup goes, too. The copy is opened and closed once, and only after that becomes a store: whatever an interrupted
// backup leaves is refused by Open.
func (s *Store) Backup(ctx context.Context, dir string) error {
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
	sidecars, err := s.checkpoint(dir)
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

// checkpoint makes Pebble's files and returns the sidecars that go with them: the journal has what they lack.
func (s *Store) checkpoint(dir string) (map[string][]byte, error) {
	s.maintenance.Lock()
	defer s.maintenance.Unlock()
	// A checkpoint takes the tables first and then the log, with what was written to it meanwhile: a run that is ingested
	// in between would be missing, and its packed batches as well.
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
