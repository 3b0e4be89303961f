package claimer

import (
	"bytes"
	"context"
	"errors"
	"sync"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/google/uuid"
)

// badgerClaims decides under a lock, or retries after conflicts that Badger detects.
type badgerClaims struct {
	db        *badger.DB
	conflicts bool
	mu        sync.Mutex // held while a batch is claimed, unless conflicts
}

func openBadger(_ context.Context, o *Order) (claims, error) {
	conflicts := o.Setting == "conflicts"
	opt := badger.DefaultOptions(o.Dir).WithLogger(nil).WithSyncWrites(true).WithDetectConflicts(conflicts).WithNumVersionsToKeep(1).
		WithCompression(options.None).WithBlockCacheSize(64 << 20).WithIndexCacheSize(128 << 20).WithMetricsEnabled(false)
	db, err := badger.Open(opt)
	return &badgerClaims{db: db, conflicts: conflicts}, err
}

func (b *badgerClaims) claim(_ context.Context, ids []uuid.UUID) (fresh int, err error) {
	if !b.conflicts {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.try(ids)
	}
	for {
		fresh, err = b.try(ids)
		if !errors.Is(err, badger.ErrConflict) {
			return fresh, err
		}
	}
}

func (b *badgerClaims) try(ids []uuid.UUID) (fresh int, err error) {
	txn := b.db.NewTransaction(true)
	defer txn.Discard()
	for i := range ids {
		_, err := txn.Get(ids[i][:])
		if err == nil {
			continue
		}
		if !errors.Is(err, badger.ErrKeyNotFound) {
			return 0, err
		}
		if err := txn.SetEntry(badger.NewEntry(bytes.Clone(ids[i][:]), nil).WithTTL(retention)); err != nil {
			return 0, err
		}
		fresh++
	}
	return fresh, txn.Commit()
}

func (b *badgerClaims) close() error { return b.db.Close() }
