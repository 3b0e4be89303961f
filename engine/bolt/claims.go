package bolt

import (
	"context"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A claimReader reads claims.
type claimReader struct{ core *core }

func (r *claimReader) Claim(key []byte) (record []byte, found bool, err error) {
	_, tail, err := storage.SplitKey(key)
	if err != nil {
		return nil, false, err
	}
	err = r.core.view(func(tx *readTx) error {
		t, exists, err := tx.bucket(key[:len(key)-len(tail)])
		if err != nil || !exists {
			return err
		}
		record, found, err = t.Get(tail)
		return err
	})
	return record, found, err
}

func (r *claimReader) Buckets(fn func(storage.Bucket) error) error {
	return r.core.view(func(tx *readTx) error {
		return tx.buckets(func(prefix []byte, _ sum) error {
			b, _, err := storage.SplitKey(prefix)
			if err != nil {
				return err
			}
			return fn(b)
		})
	})
}

func (r *claimReader) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	return r.core.view(func(tx *readTx) error {
		started()
		key := make([]byte, 0, 256)
		return tx.scan(ctx, span, func(prefix []byte, c *pages.Cursor) error {
			key = append(append(key[:0], prefix...), c.Key()...)
			return fn(key, c.Record())
		})
	})
}
