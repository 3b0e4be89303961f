package pebble

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/hapax-dev/hapax/engine"
)

// Usage implements engine.Store. What was dropped before the store was opened and not reclaimed counts as reclaimable
// only once Drop or Reclaim named it again.
func (s *Store) Usage() (u engine.Usage, err error) {
	names, err := s.disk.List(s.disk.dir)
	if err != nil {
		return u, fmt.Errorf("hapax: reading the store's directory: %w", err)
	}
	for _, name := range names {
		info, err := s.disk.Stat(s.disk.path(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted since
		}
		if err != nil {
			return u, fmt.Errorf("hapax: reading the store's directory: %w", err)
		}
		u.DiskBytes += uint64(info.Size())
	}
	held, err := s.held(s.spans.list())
	if err != nil {
		return u, err
	}
	waiting, err := s.waitingFiles()
	if err != nil {
		return u, err
	}
	u.ReclaimableBytes = min(held+waiting, u.DiskBytes)
	u.WrittenBytes = s.disk.written.Load()
	return u, nil
}

// BucketBytes implements engine.Store. Claims that are still in memory count as nothing, and so does what a dropped
// bucket left in tables.
func (s *Store) BucketBytes(b engine.Bucket) (n uint64, err error) {
	span := bucketSpan(b)
	empty := true
	err = s.iterate(span, func(c *cursor) error {
		empty = !c.do(c.it.First)
		return nil
	})
	if err != nil || empty {
		return 0, err
	}
	return s.estimate(span)
}
