package bolt

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A meter measures the size of the store.
type meter struct{ core *core }

func (m *meter) Usage() (storage.Usage, error) {
	u := storage.Usage{WrittenBytes: m.core.written.Load()}
	names, err := m.core.dir.List(".")
	if err != nil {
		return storage.Usage{}, fmt.Errorf("hapax: looking at the store's directory: %w", err)
	}
	for _, name := range names {
		info, err := m.core.dir.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the file was replaced meanwhile
		}
		if err != nil {
			return storage.Usage{}, fmt.Errorf("hapax: looking at the store's directory: %w", err)
		}
		if info.Mode().IsRegular() {
			u.DiskBytes += uint64(info.Size())
		}
	}
	free, err := m.freePages()
	u.ReclaimableBytes = free * uint64(m.core.pageSize)
	return u, err
}

func (m *meter) freePages() (uint64, error) {
	if m.core.fixed == nil {
		stats := m.core.db.Stats()
		return uint64(stats.FreePageN + stats.PendingPageN), nil
	}
	newest, _, err := pages.ReadMetas(m.core.file, m.core.pageSize)
	if err != nil {
		return 0, pages.Damaged("%w", err)
	}
	return m.core.fixed.pages.FreePages(newest.Freelist)
}

func (m *meter) BucketBytes(b storage.Bucket) (uint64, error) {
	var size uint64
	err := m.core.view(func(tx *readTx) error {
		got, _, err := tx.sum(sumKey(claimSpace, b.AppendPrefix(nil)))
		size = got.bytes + got.bytes/2
		return err
	})
	return size, err
}
