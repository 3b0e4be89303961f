package pebble

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A meter measures the size of the store.
type meter struct {
	core        *core
	claimReader *claimReader
	reclaimer   *reclaimer
	memtable    *memtable.Memtable
}

func (m *meter) Usage() (u storage.Usage, err error) {
	names, err := m.core.disk.names()
	if err != nil {
		return u, fmt.Errorf("hapax: reading the store's directory: %w", err)
	}
	for _, name := range names {
		if name == reserveName {
			continue
		}
		info, err := m.core.disk.Stat(m.core.disk.path(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the file was deleted meanwhile
		}
		if err != nil {
			return u, fmt.Errorf("hapax: reading the store's directory: %w", err)
		}
		u.DiskBytes += uint64(info.Size())
	}
	held, err := m.reclaimer.held(m.reclaimer.spans.list())
	if err != nil && !errors.As(err, new(*storage.DamageError)) { // unreadable parts count as 0
		return u, err
	}
	waiting, err := m.reclaimer.waitingFiles()
	if err != nil {
		return u, err
	}
	u.ReclaimableBytes = min(held+waiting, u.DiskBytes)
	u.WrittenBytes = m.core.disk.written.Load()
	u.Damaged = m.core.disk.damages.list()
	u.WithoutReserve = m.core.disk.reserve.short.Load()
	return u, nil
}

func (m *meter) BucketBytes(b storage.Bucket) (uint64, error) {
	span, prefix := bucketSpan(b), string(b.AppendPrefix(nil))
	some := false
	err := m.claimReader.claims(span, func(*memtable.View) {}, func(v *memtable.View, c *cursor) error {
		if some = v.HoldsSome(prefix); !some && c.do(c.it.First) {
			walk := bucketWalk{view: v, cursor: c}
			some = walk.seen(prefix)
		}
		return nil
	})
	if errors.As(err, new(*storage.DamageError)) {
		some, err = true, nil
	}
	if err != nil || !some {
		return 0, err
	}
	n, err := m.reclaimer.estimate(span)
	if errors.As(err, new(*storage.DamageError)) {
		n, err = 0, nil
	}
	return n + m.memtable.BytesOf(prefix), err
}
