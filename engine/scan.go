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
				c, retained, err := s.finder.scanned(key, record)
				if err != nil || !retained {
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

// scanned decodes a claim, unless its week is not retained: its names may then be freed already.
func (f *finder) scanned(key, record []byte) (c scanned, retained bool, err error) {
	b, _, err := storage.ParseKey(key)
	if err != nil {
		return scanned{}, false, err
	}
	rec, err := f.parse(record)
	scope, ok := f.names.Number(b.Scope)
	switch {
	case b.Week < f.retained.oldestOf(b.Scope):
		return scanned{}, false, nil
	case err != nil:
		return scanned{}, false, err
	case !ok:
		return scanned{}, false, fmt.Errorf("%w: scope %q is not in the table of names", storage.ErrDamaged, b.Scope)
	}
	return scanned{filters.Bucket{Scope: scope, Week: b.Week}, key, f.core.hash(key), rec}, true, nil
}
