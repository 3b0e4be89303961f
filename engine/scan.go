package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A scanner reads all claims from one snapshot.
type scanner struct {
	core   *core
	finder *finder
	queue  *queue
}

// A scanned is a claim with its decoded key.
type scanned struct {
	ref  filters.Bucket
	key  []byte
	hash uint64
	rec  ClaimRecord
}

// beginScan scans the claims as of the last batch decided so far. It calls begun at that point,
// while the committer waits, and then fn for each claim of a retained week, while claims continue.
func (s *scanner) beginScan(ctx context.Context, begun func(), fn func(scanned) error) error {
	if err := s.core.enter(); err != nil {
		return err
	}
	defer s.core.leave()
	callers := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.core.work, cancel)() // Close cancels the scan
	started, done, running := make(chan struct{}), make(chan error, 1), false
	scan := &command{ticket: newTicket()}
	scan.run = func(*group) error {
		running = true
		go func() {
			done <- s.core.store.Scan(ctx, storage.Span{}, func() {
				begun() // the committer waits, and nothing is scanned yet
				close(started)
			}, func(key, record []byte) error {
				b, _, err := storage.ParseKey(key)
				if err != nil {
					return err
				}
				c, err := s.scanned(b, key, record)
				if b.Week < s.finder.retained.oldestOf(b.Scope) {
					return nil // its names may already be freed
				}
				if err != nil {
					return err
				}
				return fn(c)
			})
		}()
		select {
		case <-started:
			return nil
		case err := <-done:
			running = false
			return err
		}
	}
	err := s.queue.submit(ctx, scan)
	if running {
		if err != nil {
			cancel()
		}
		err = errors.Join(err, <-done)
	}
	if s.core.work.Err() != nil && callers.Err() == nil && errors.Is(err, context.Canceled) {
		return cmp.Or(s.core.Err(), ErrClosed)
	}
	return err
}

func (s *scanner) scanned(b storage.Bucket, key, record []byte) (scanned, error) {
	rec, err := s.finder.parse(record)
	if err != nil {
		return scanned{}, err
	}
	scope, ok := s.finder.names.Number(b.Scope)
	if !ok {
		return scanned{}, fmt.Errorf("%w: scope %q is not in the table of names", storage.ErrDamaged, b.Scope)
	}
	return scanned{filters.Bucket{Scope: scope, Week: b.Week}, key, s.core.hash(key), rec}, nil
}
