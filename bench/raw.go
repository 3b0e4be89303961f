package bench

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/cockroachdb/pebble/v2"
	bbolt "go.etcd.io/bbolt"

	"github.com/hapax-dev/hapax/bench/internal/rawstore"
)

// A rawStore is a store library without Hapax: the baseline for the cost of the engine.
type rawStore interface {
	// put writes the pairs, without reading, in one batch that is durable on return. Any number of
	// goroutines may call it.
	put(pairs []rawPair) error
	io.Closer
}

// A rawPair is the key and value that the stores of Hapax would write for a claim.
type rawPair struct{ key, value []byte }

// A rawSetting is one of the settings that are tried for a bare store.
type rawSetting struct {
	name string
	open func(dir string) (rawStore, error)
}

type rawPebble struct{ *pebble.DB }

func openRawPebble(memTableBytes uint64) func(dir string) (rawStore, error) {
	return func(dir string) (rawStore, error) {
		db, err := rawstore.OpenPebble(dir, memTableBytes, true)
		return rawPebble{db}, err
	}
}

func (r rawPebble) put(pairs []rawPair) error {
	b := r.NewBatch()
	for _, p := range pairs {
		if err := b.Set(p.key, p.value, nil); err != nil {
			return errors.Join(err, b.Close())
		}
	}
	return errors.Join(b.Commit(pebble.Sync), b.Close())
}

type rawBolt struct{ *bbolt.DB }

var rawBucket = []byte("claims")

// openRawBolt opens bbolt as engine/bolt does.
func openRawBolt(dir string) (rawStore, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	mapped := int64(16) << 30
	if strconv.IntSize == 32 {
		mapped = 512 << 20
	}
	db, err := bbolt.Open(dir+"/raw.bolt", 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, InitialMmapSize: int(mapped)})
	if err != nil {
		return nil, fmt.Errorf("opening the bare bbolt: %w", err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket(rawBucket)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return rawBolt{db}, nil
}

func (r rawBolt) put(pairs []rawPair) error {
	return r.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(rawBucket)
		for _, p := range pairs {
			if err := b.Put(p.key, p.value); err != nil {
				return err
			}
		}
		return nil
	})
}
