package pebble

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A meter measures the store.
type meter struct {
	*core
	*claimReader
	*reclaimer
	unsealed *unsealed
}

// Usage implements storage.Store. Data that was dropped before the store was opened and not
// reclaimed counts as reclaimable only after Drop or Reclaim named it again.
func (m *meter) Usage() (u storage.Usage, err error) {
	names, err := m.disk.names()
	if err != nil {
		return u, fmt.Errorf("hapax: reading the store's directory: %w", err)
	}
	for _, name := range names {
		if name == reserveName {
			continue
		}
		info, err := m.disk.Stat(m.disk.path(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted since
		}
		if err != nil {
			return u, fmt.Errorf("hapax: reading the store's directory: %w", err)
		}
		u.DiskBytes += uint64(info.Size())
	}
	held, err := m.held(m.spans.list())
	if err != nil {
		return u, err
	}
	waiting, err := m.waitingFiles()
	if err != nil {
		return u, err
	}
	u.ReclaimableBytes = min(held+waiting, u.DiskBytes)
	u.WrittenBytes = m.disk.written.Load()
	return u, nil
}

// BucketBytes implements storage.Store. Claims that are not in tables yet count with their bytes in
// the journal, and the remains of a dropped bucket in tables count as nothing.
func (m *meter) BucketBytes(b storage.Bucket) (uint64, error) {
	span, prefix := bucketSpan(b), string(b.AppendPrefix(nil))
	some := false
	err := m.claims(span, func([]*table) {}, func(tables []*table, c *cursor) (err error) {
		if some = m.unsealed.holdsSome(tables, prefix); !some && c.do(c.it.First) {
			some, err = m.seen(tables, prefix, c)
		}
		return err
	})
	if err != nil || !some {
		return 0, err
	}
	n, err := m.estimate(span)
	return n + m.unsealed.bytesOf(prefix), err
}
