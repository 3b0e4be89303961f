package bolt

import (
	"context"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A claimReader reads claims.
type claimReader struct{ *core }

// Claim returns a copy of the record under key.
func (r *claimReader) Claim(key []byte) (record []byte, found bool, err error) {
	_, tail, err := storage.SplitKey(key)
	if err != nil {
		return nil, false, err
	}
	err = r.view(func(tx *readTx) error {
		t, exists, err := tx.bucket(key[:len(key)-len(tail)])
		if err != nil || !exists {
			return err
		}
		record, found, err = t.get(tail)
		return err
	})
	return record, found, err
}

// Buckets calls fn for each bucket with a claim; it reads only the list of buckets.
func (r *claimReader) Buckets(fn func(storage.Bucket) error) error {
	return r.view(func(tx *readTx) error {
		return tx.buckets(func(prefix []byte, _ sum) error {
			b, _, err := storage.SplitKey(prefix)
			if err != nil {
				return err
			}
			return fn(b)
		})
	})
}

// Scan calls fn for each claim in the span, as of the call to started. Batches are applied
// meanwhile; the pages that they replace are not reused before the scan has ended, so that the file
// may grow.
func (r *claimReader) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	return r.view(func(tx *readTx) error {
		started()
		key := make([]byte, 0, 256)
		return tx.scan(ctx, span, func(prefix []byte, c *cursor) error {
			key = append(append(key[:0], prefix...), c.key()...)
			return fn(key, c.record())
		})
	})
}
