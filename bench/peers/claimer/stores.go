package claimer

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/google/uuid"
	bbolt "go.etcd.io/bbolt"

	"github.com/hapax-dev/hapax/bench/internal/rawstore"
)

func memTable(setting string) uint64 {
	if setting == "memtable=8MB" {
		return 8 << 20
	}
	return 64 << 20
}

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

type boltClaims struct {
	db   *bbolt.DB
	fill float64
}

var boltBucket = []byte("claims")

func openBolt(_ context.Context, o *Order) (claims, error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	db, err := bbolt.Open(filepath.Join(o.Dir, "claims.bolt"), 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, NoFreelistSync: true})
	if err != nil {
		return nil, err
	}
	fill := 0.5
	if o.Setting == "fill=90%" {
		fill = 0.9
	}
	return &boltClaims{db, fill}, db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(boltBucket)
		return err
	})
}

func (b *boltClaims) claim(_ context.Context, ids []uuid.UUID) (fresh int, err error) {
	sorted := slices.Clone(ids)
	slices.SortFunc(sorted, func(x, y uuid.UUID) int { return bytes.Compare(x[:], y[:]) })
	err = b.db.Update(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket(boltBucket)
		bucket.FillPercent = b.fill
		for i := range sorted {
			if bucket.Get(sorted[i][:]) != nil {
				continue
			}
			if err := bucket.Put(sorted[i][:], []byte{}); err != nil {
				return err
			}
			fresh++
		}
		return nil
	})
	return fresh, err
}

func (b *boltClaims) close() error { return b.db.Close() }

type pebbleClaims struct {
	db *pebble.DB
	mu sync.Mutex // held from the Gets to the end of Apply
}

func openPebble(_ context.Context, o *Order) (claims, error) {
	db, err := rawstore.OpenPebble(o.Dir, memTable(o.Setting), false)
	return &pebbleClaims{db: db}, err
}

func (p *pebbleClaims) claim(_ context.Context, ids []uuid.UUID) (fresh int, err error) {
	b := p.db.NewBatchWithSize(len(ids) * 24)
	if fresh, err = p.decide(b, ids); err == nil {
		err = b.SyncWait()
	}
	return fresh, errors.Join(err, b.Close())
}

// decide is durable only after SyncWait.
func (p *pebbleClaims) decide(b *pebble.Batch, ids []uuid.UUID) (fresh int, err error) {
	inBatch := make(map[uuid.UUID]struct{}, len(ids))
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range ids {
		if _, repeat := inBatch[ids[i]]; repeat {
			continue
		}
		_, closer, err := p.db.Get(ids[i][:])
		if err == nil {
			_ = closer.Close()
			continue
		}
		if !errors.Is(err, pebble.ErrNotFound) {
			return fresh, err
		}
		inBatch[ids[i]] = struct{}{}
		if err := b.Set(ids[i][:], nil, nil); err != nil {
			return fresh, err
		}
		fresh++
	}
	return fresh, p.db.ApplyNoSyncWait(b, pebble.Sync)
}

func (p *pebbleClaims) close() error { return p.db.Close() }
