package bolt

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A meter measures the store.
type meter struct{ *core }

// Usage returns the sizes. DiskBytes is the length of all files of the directory, ReclaimableBytes
// that of the free pages, which the file keeps for reuse. WrittenBytes counts the pages of each
// transaction, the meta pages and the sidecars.
func (m *meter) Usage() (storage.Usage, error) {
	u := storage.Usage{WrittenBytes: m.written.Load()}
	names, err := m.dir.List(".")
	if err != nil {
		return storage.Usage{}, fmt.Errorf("hapax: looking at the store's directory: %w", err)
	}
	for _, name := range names {
		info, err := m.dir.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // replaced meanwhile
		}
		if err != nil {
			return storage.Usage{}, fmt.Errorf("hapax: looking at the store's directory: %w", err)
		}
		if info.Mode().IsRegular() {
			u.DiskBytes += uint64(info.Size())
		}
	}
	stats := m.db.Stats()
	u.ReclaimableBytes = uint64(stats.FreePageN+stats.PendingPageN) * uint64(m.pageSize)
	return u, nil
}

// BucketBytes estimates the size from the bucket's sum: entries and their headers, in pages that
// are two thirds full.
func (m *meter) BucketBytes(b storage.Bucket) (uint64, error) {
	var size uint64
	err := m.view(func(tx *readTx) error {
		got, _, err := tx.sum(sumKey(claimSpace, b.AppendPrefix(nil)))
		size = got.bytes + got.bytes/2
		return err
	})
	return size, err
}
