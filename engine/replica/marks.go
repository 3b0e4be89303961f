package replica

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// The marks are states of the engine: weeks before them are dropped, of all scopes (moldest) or of one
// (f and its name). The values are weeks as in a key. The engine removes the claims of its own store
// once a mark is durable. A copy removes them when it applies the mark: later batches may give the
// numbers of names to others.
var markOldest = []byte("moldest")

const markScope = 'f'

// hasMark reports whether a batch sets a mark.
func hasMark(b *storage.Batch) bool {
	for i := range b.State {
		if w := &b.State[i]; w.Value != nil && (bytes.Equal(w.Key, markOldest) || len(w.Key) > 1 && w.Key[0] == markScope) {
			return true
		}
	}
	return false
}

// dropUnretained removes the claims before the marks.
func dropUnretained(s storage.Store) error {
	oldest, scopes, err := marks(s)
	if err != nil {
		return err
	}
	var drop []storage.Bucket
	err = s.Buckets(func(b storage.Bucket) error {
		if b.Week < max(oldest, scopes[b.Scope]) {
			drop = append(drop, b)
		}
		return nil
	})
	if err != nil || len(drop) == 0 {
		return err
	}
	return s.Drop(drop)
}

// marks returns the oldest retained week, and those of single scopes.
func marks(s storage.Store) (oldest weekbucket.Week, scopes map[string]weekbucket.Week, err error) {
	value, found, err := s.State(markOldest)
	if err != nil || !found {
		return 0, nil, err
	}
	oldest, err = weekbucket.FromKey(value)
	scopes = make(map[string]weekbucket.Week)
	scan := s.ScanState(storage.Span{Prefix: []byte{markScope}}, func(key, value []byte) error {
		week, err := weekbucket.FromKey(value)
		scopes[string(key[1:])] = week
		return err
	})
	if err := errors.Join(err, scan); err != nil {
		return 0, nil, fmt.Errorf("%w: the oldest week: %w", storage.ErrDamaged, err)
	}
	return oldest, scopes, nil
}
