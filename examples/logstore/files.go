package logstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// The files of a store. HAPAX is its identity (package sidecar).
const (
	logName = "LOG"

	// CLEAN exists after a clean close, until the store is opened again: the length of the log,
	// sealed. If it exists, the whole log must exist.
	cleanName = "CLEAN"

	sidecarSuffix = ".sidecar" // the engine's sidecars: only their names have this suffix

	smallLog = 1 << 20 // a log of fewer bytes is not rewritten for its dead part
)

// kind identifies the store's directory; package sidecar lists the letters that are used.
var kind = sidecar.Kind{Letter: 'L', Name: "log", Format: 1}

// open finds the store's files, or creates them, and reads the log.
func (s *Store) open() (err error) {
	if err := s.dir.Lock(0); err != nil {
		return err
	}
	s.identity, err = sidecar.ReadIdentity(s.fsys, s.dir.Path(), kind)
	if errors.Is(err, fs.ErrNotExist) {
		if err = s.checkUnused(); err == nil {
			s.identity = storage.NewIdentity()
			err = create(s.fsys, s.dir.Path(), s.identity, newContents())
		}
	}
	if err != nil {
		return err
	}
	log, err := s.fsys.ReadFile(s.path(logName))
	if err != nil {
		return fmt.Errorf("%w: %w", storage.ErrDamaged, err)
	}
	s.c = newContents()
	whole, err := walkLog(log, s.c.replay)
	if err == nil {
		err = s.checkClean(len(log), whole)
	}
	if err != nil {
		return err
	}
	return s.begin(len(log), whole)
}

// begin makes the contents of the log durable, without its torn end, before anything is added. A
// log of which more than half is dead is replaced by a new one.
func (s *Store) begin(length, whole int) error {
	if err := sidecar.Remove(s.fsys, s.dir.Path(), cleanName); err != nil {
		return fmt.Errorf("hapax: removing %s: %w", cleanName, err)
	}
	rewrite := whole < length || whole > smallLog && s.c.size() < int64(whole)/2
	if rewrite {
		if err := sidecar.Write(s.fsys, s.dir.Path(), logName, s.c.write); err != nil {
			return fmt.Errorf("hapax: writing %s: %w", logName, err)
		}
	}
	log, err := s.fsys.OpenLog(s.path(logName))
	if err != nil {
		return fmt.Errorf("hapax: opening %s: %w", logName, err)
	}
	s.log = log
	if err := log.Sync(); err != nil {
		return fmt.Errorf("hapax: syncing %s: %w", logName, err)
	}
	info, err := s.dir.Lstat(logName)
	if err == nil {
		err = errors.Join(s.dir.Track(logName), s.dir.Track(sidecar.IdentityName)) // a store without them stops
	}
	if err != nil {
		return fmt.Errorf("hapax: %w", err)
	}
	s.size, s.synced, s.found = info.Size(), info.Size(), s.c.lastSeq
	if rewrite {
		s.written = uint64(s.size)
	}
	return nil
}

// create makes dir a store with these contents. The identity is written last: before that, there is
// no store.
func create(fsys files, dir string, id storage.Identity, c *contents) error {
	if err := sidecar.Write(fsys, dir, logName, c.write); err != nil {
		return fmt.Errorf("hapax: creating %s: %w", logName, err)
	}
	if err := sidecar.WriteIdentity(fsys, dir, kind, id); err != nil {
		return fmt.Errorf("hapax: creating the store: %w", err)
	}
	return nil
}

// checkUnused rejects a directory with other contents, or with a store whose identity was lost.
func (s *Store) checkUnused() error {
	names, err := s.dir.List(".")
	if err != nil {
		return fmt.Errorf("hapax: %w", err)
	}
	for _, name := range names {
		switch name {
		case storedir.LockName, logName + ".tmp", sidecar.IdentityName + ".tmp":
		case logName:
			log, err := s.fsys.ReadFile(s.path(logName))
			if c := newContents(); err == nil {
				_, err = walkLog(log, c.replay)
				if err == nil && c.lastSeq > 0 {
					err = fmt.Errorf("%w: %s is missing, but there are %d batches", storage.ErrDamaged, sidecar.IdentityName, c.lastSeq)
				}
			}
			if err != nil {
				return err
			}
		default:
			return fmt.Errorf("%w: %s has no %s, but %s", storage.ErrForeign, s.dir.Path(), sidecar.IdentityName, name)
		}
	}
	return nil
}

// write writes the contents as a log.
func (c *contents) write(w io.Writer) error {
	return c.frames(func(f frame) error {
		_, err := w.Write(f.seal())
		return err
	})
}

func (s *Store) writeClean(size int64) error {
	return sidecar.Write(s.fsys, s.dir.Path(), cleanName, func(w io.Writer) error {
		_, err := w.Write(sidecar.Seal(number(uint64(size))))
		return err
	})
}

// checkClean compares the log with the record of a clean close, if there is one.
func (s *Store) checkClean(length, whole int) error {
	b, err := s.fsys.ReadFile(s.path(cleanName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		b, err = sidecar.Unseal(b)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%w: %s: %w", storage.ErrDamaged, cleanName, err)
	case len(b) != 8 || binary.BigEndian.Uint64(b) != uint64(length) || whole != length:
		return fmt.Errorf("%w: %s has %d bytes, %d of them whole; it was closed with another length or content", storage.ErrDamaged, logName, length, whole)
	}
	return nil
}

// WriteSidecar implements [storage.Store].
func (s *Store) WriteSidecar(name string, write func(io.Writer) error) error {
	s.sidecars.Lock()
	defer s.sidecars.Unlock()
	s.mu.RLock()
	failed := s.failed
	s.mu.RUnlock()
	if failed != nil {
		return failed
	}
	var counted counter
	var own error // an error of the caller's function
	err := sidecar.Write(s.fsys, s.dir.Path(), name+sidecarSuffix, func(w io.Writer) error {
		counted.Writer = w
		own = write(&counted)
		return own
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written += counted.n
	if err != nil && !sidecar.NoSpace(err) && (own == nil || counted.failed) {
		return s.fail(fmt.Errorf("hapax: writing sidecar %s: %w", name, err))
	}
	return err
}

type counter struct {
	io.Writer
	n      uint64
	failed bool
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n += uint64(n)
	c.failed = c.failed || err != nil
	return n, err
}

// ReadSidecar implements [storage.Store].
func (s *Store) ReadSidecar(name string, read func(r io.Reader, size int64) error) error {
	return sidecar.Read(s.fsys, s.path(name+sidecarSuffix), read)
}

// Usage implements [storage.Store].
func (s *Store) Usage() (storage.Usage, error) {
	names, err := s.dir.List(".")
	if err != nil {
		return storage.Usage{}, fmt.Errorf("hapax: %w", err)
	}
	s.mu.RLock()
	u := storage.Usage{ReclaimableBytes: s.dead, WrittenBytes: s.written}
	s.mu.RUnlock()
	for _, name := range names {
		if info, err := s.dir.Lstat(name); err == nil { // it may have been removed
			u.DiskBytes += uint64(info.Size())
		}
	}
	return u, nil
}

// BucketBytes implements [storage.Store].
func (s *Store) BucketBytes(b storage.Bucket) (uint64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return uint64(sizeOf(s.c.claims[b])), nil
}

// Backup implements [storage.Store]. The sidecars are not copied: the engine writes them again.
func (s *Store) Backup(ctx context.Context, dir string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("hapax: backup: %w", err)
	}
	if s.dir.Contains(dir) {
		return fmt.Errorf("hapax: backup to %s: %w", dir, storedir.ErrInside)
	}
	to, err := storedir.Make(dir)
	if err != nil {
		return fmt.Errorf("hapax: backup: %w", err)
	}
	s.mu.RLock()
	c := s.c.clone()
	s.mu.RUnlock()
	err = create(s.wrap(dirFiles{to.FS(), to}), to.Path(), s.identity.Backup(), c)
	if err != nil {
		to.RemoveSelf(logName, sidecar.IdentityName) // nothing that another program has put there
	}
	if err = errors.Join(err, to.Close()); err != nil {
		return fmt.Errorf("hapax: backup: %w", err)
	}
	return nil
}

// Verify implements [storage.Store].
func (s *Store) Verify(ctx context.Context, report func(problem string)) error {
	if id, err := sidecar.ReadIdentity(s.fsys, s.dir.Path(), kind); err != nil || id != s.identity {
		report(fmt.Sprintf("%s has changed since the store was opened: %v", sidecar.IdentityName, err))
	}
	s.mu.RLock()
	log := make([]byte, s.size)
	s.mu.RUnlock()
	if _, err := s.log.ReadAt(log, 0); err != nil {
		return fmt.Errorf("hapax: reading %s: %w", logName, err)
	}
	whole, err := walkLog(log, func([]byte) error { return ctx.Err() })
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("hapax: verifying %s: %w", logName, ctx.Err())
	case err != nil:
		report(err.Error())
	case whole < len(log):
		report(fmt.Sprintf("%s is damaged at byte %d of %d", logName, whole, len(log)))
	}
	return nil
}
