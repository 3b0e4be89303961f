package logstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// A Store keeps claims and state in memory and in a log. It implements [storage.Store].
type Store struct {
	storage.OneEngine

	dir      *storedir.Dir
	wrap     func(files) files // of tests
	fsys     files             // in dir
	identity storage.Identity
	found    uint64 // the last batch that Open found

	mu      sync.RWMutex // guards all below; held during writes to the log, not during syncs
	c       *contents
	log     logFile
	size    int64 // of the log
	synced  int64 // its durable part
	written uint64
	dead    uint64 // bytes of dropped buckets
	failed  error  // the first failed write or sync
	closed  bool

	syncing  sync.Mutex // held while the log is synced
	sidecars sync.Mutex // held while a sidecar is written
}

// files is the file system that the store needs; tests use one that fails.
type files interface {
	sidecar.FS
	OpenLog(path string) (logFile, error)
}

type logFile interface {
	io.Writer
	io.ReaderAt
	Sync() error
	Close() error
}

// dirFiles are files in a directory that cannot change under the store.
type dirFiles struct {
	sidecar.FS
	dir *storedir.Dir
}

func (f dirFiles) OpenLog(path string) (logFile, error) {
	return f.dir.OpenFile(filepath.Base(path), os.O_RDWR|os.O_APPEND)
}

// Open opens the store in dir, and creates it if there is none. Only one Store at a time has dir
// open: Open returns [storage.ErrLocked] otherwise.
func Open(dir string) (*Store, error) { return open(dir, func(f files) files { return f }) }

func open(dir string, wrap func(files) files) (s *Store, err error) {
	d, err := storedir.Open(dir)
	if err != nil {
		return nil, err
	}
	s = &Store{dir: d, wrap: wrap, fsys: wrap(dirFiles{d.FS(), d})}
	if err := s.open(); err != nil {
		if s.log != nil {
			_ = s.log.Close()
		}
		return nil, errors.Join(err, d.Close())
	}
	d.Watch(func(err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		_ = s.fail(err)
	})
	return s, nil
}

// path returns the path of a file in the directory.
func (s *Store) path(name string) string { return filepath.Join(s.dir.Path(), name) }

// Identity implements [storage.Store].
func (s *Store) Identity() storage.Identity { return s.identity }

// LastSeq implements [storage.Store].
func (s *Store) LastSeq() uint64 { return s.found }

// Apply implements [storage.Store]. The batch is written to the log and then visible in memory; the
// wait syncs the log, unless another sync has covered the batch.
func (s *Store) Apply(b *storage.Batch) (wait func() error, err error) {
	end, err := s.append(func(f *frame) error {
		if b.Seq != s.c.lastSeq+1 {
			return fmt.Errorf("hapax: batch %d follows batch %d", b.Seq, s.c.lastSeq)
		}
		for _, c := range b.Claims {
			if _, _, err := storage.SplitKey(c.Key); err != nil {
				return err
			}
		}
		f.addBatch(b)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return func() error { return s.syncTo(end) }, nil
}

// append writes a frame to the log and applies it to the contents. It returns the end of the frame.
// fill is called with mu held; after an error of fill nothing was written.
func (s *Store) append(fill func(f *frame) error) (end int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return 0, s.failed
	}
	f := newFrame(s.synced)
	if err := fill(&f); err != nil {
		return 0, err
	}
	b := f.seal()
	if _, err := s.log.Write(b); err != nil {
		return 0, s.fail(fmt.Errorf("hapax: writing %s: %w", logName, err))
	}
	s.size += int64(len(b))
	s.written += uint64(len(b))
	if err := s.c.replay(b[frameHeader : len(b)-frameSum]); err != nil {
		return 0, s.fail(err)
	}
	return s.size, nil
}

// syncTo makes the log durable up to end.
func (s *Store) syncTo(end int64) error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	s.mu.RLock()
	size, synced, failed := s.size, s.synced, s.failed
	s.mu.RUnlock()
	switch {
	case synced >= end:
		return nil
	case failed != nil:
		return failed
	}
	err := cmp.Or(s.log.Sync(), s.dir.Recheck())
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		return s.fail(fmt.Errorf("hapax: syncing %s: %w", logName, err))
	}
	s.synced = size
	return nil
}

// fail poisons the store with the first error. It is called with mu held.
func (s *Store) fail(err error) error {
	if s.failed == nil {
		s.failed = err
	}
	return s.failed
}

// Claim implements [storage.Store].
func (s *Store) Claim(key []byte) (record []byte, found bool, err error) {
	bucket, _, err := storage.SplitKey(key)
	if err != nil {
		return nil, false, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	record, found = s.c.claims[bucket][string(key)]
	return bytes.Clone(record), found, nil
}

// State implements [storage.Store].
func (s *Store) State(key []byte) (value []byte, found bool, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	value, found = s.c.state[string(key)]
	return bytes.Clone(value), found, nil
}

// ScanState implements [storage.Store].
func (s *Store) ScanState(span storage.Span, fn func(key, value []byte) error) error {
	s.mu.RLock()
	entries := inSpan(nil, s.c.state, span)
	s.mu.RUnlock()
	sortByKey(entries)
	for _, e := range entries {
		if err := fn([]byte(e.key), e.value); err != nil {
			return err
		}
	}
	return nil
}

// Scan implements [storage.Store].
func (s *Store) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	s.mu.RLock()
	var entries []entry
	for _, claims := range s.c.claims {
		entries = inSpan(entries, claims, span)
	}
	s.mu.RUnlock()
	started()
	sortByKey(entries)
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("hapax: scanning claims: %w", err)
		}
		if err := fn([]byte(e.key), e.value); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// Buckets implements [storage.Store].
func (s *Store) Buckets(fn func(storage.Bucket) error) error {
	s.mu.RLock()
	buckets := s.c.buckets()
	s.mu.RUnlock()
	for _, b := range buckets {
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

// Journal implements [storage.Store].
func (s *Store) Journal(from uint64, fn func(seq uint64, entry []byte) error) error {
	s.mu.RLock()
	journal := maps.Clone(s.c.journal)
	s.mu.RUnlock()
	for _, seq := range slices.Sorted(maps.Keys(journal)) {
		if seq < from {
			continue
		}
		if err := fn(seq, journal[seq]); err != nil {
			return err
		}
	}
	return nil
}

// TrimJournal implements [storage.Store].
func (s *Store) TrimJournal(below uint64) error {
	_, err := s.append(func(f *frame) error {
		f.add(opTrim, number(below), nil)
		return nil
	})
	return err
}

// Drop implements [storage.Store].
func (s *Store) Drop(buckets []storage.Bucket) error {
	end, err := s.append(func(f *frame) error {
		for _, b := range buckets {
			s.dead += uint64(sizeOf(s.c.claims[b]))
			f.add(opDrop, b.AppendPrefix(nil), nil)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.syncTo(end)
}

// Reclaim implements [storage.Store]. The space is freed when the store is opened again.
func (s *Store) Reclaim(ctx context.Context, _ []storage.Bucket) error { return ctx.Err() }

// ReclaimState implements [storage.Store]. The space is freed when the store is opened again.
func (s *Store) ReclaimState(ctx context.Context, _ storage.Span) error { return ctx.Err() }

// Close implements [storage.Store].
func (s *Store) Close() error {
	s.Retire()
	s.mu.Lock()
	size, failed, closed := s.size, s.failed, s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	var err error
	if failed == nil {
		failed = s.dir.Check()
		err = failed
	}
	if failed == nil {
		if err = s.syncTo(size); err == nil {
			err = s.writeClean(size)
		}
	}
	return errors.Join(err, s.log.Close(), s.dir.Close())
}
