package engine

import (
	"context"
	"iter"

	"github.com/hapax-dev/hapax/engine/storage"
)

// Get returns the durable value of an application key. If the value was just committed, Get waits
// until it would survive a power failure, or ctx ends. It does not wait for open transactions.
func (e *Engine) Get(ctx context.Context, key []byte) (value []byte, found bool, err error) {
	return spaceKeys{&e.core, applicationSpace}.Get(ctx, key)
}

// Scan returns an iterator over the application's durable keys in a range, in the order of their
// bytes. It reads pages of at most 1024 keys and about 1 MiB; each page is read from its own, later
// snapshot. A key that does not change during the iteration is returned exactly once; one that is
// written meanwhile at most once. A Tx.Scan reads a single snapshot.
//
// When ctx ends, the engine is closed or the store fails, the last pair has the error. Nothing is
// locked between pages: the loop may use the engine and take any time. The iterator may be used
// again.
func (e *Engine) Scan(ctx context.Context, r Range) iter.Seq2[KeyValue, error] {
	return spaceKeys{&e.core, applicationSpace}.Scan(ctx, r)
}

// spaceKeys are the durable keys of one key space, see driver.Keys.
type spaceKeys struct {
	e      *core
	prefix []byte // prefix of its state keys
}

// Get is Engine.Get in the space.
func (k spaceKeys) Get(ctx context.Context, key []byte) (value []byte, found bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	if err := checkHostKey(key); err != nil {
		return nil, false, err
	}
	if err := k.e.enter(); err != nil {
		return nil, false, err
	}
	defer k.e.leave()
	value, found, err = k.e.store.State(join(k.prefix, key))
	if err != nil {
		return nil, false, k.e.stop(err)
	}
	if err := k.e.settleContext(ctx); err != nil {
		return nil, false, err
	}
	return value, found, nil
}

// Scan is Engine.Scan in the space.
func (k spaceKeys) Scan(ctx context.Context, r Range) iter.Seq2[KeyValue, error] {
	return func(yield func(KeyValue, error) bool) {
		if err := r.check(); err != nil {
			yield(KeyValue{}, err)
			return
		}
		for kv, err := range k.e.pages(ctx, r.span(k.prefix), r.Limit) {
			if err == nil {
				kv.Key = kv.Key[len(k.prefix):]
			}
			if !yield(kv, err) {
				return
			}
		}
	}
}

// Reclaim frees the disk space of deleted and overwritten keys with the prefix, as far as the store
// can. It rewrites what the store has under the prefix, which may take long.
func (k spaceKeys) Reclaim(ctx context.Context, prefix []byte) error {
	if err := (Range{Prefix: prefix}).check(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.e.work, cancel)()
	if err := k.e.enter(); err != nil {
		return err
	}
	defer k.e.leave()
	switch err := k.e.reclaimState(ctx, storage.Span{Prefix: join(k.prefix, prefix)}); {
	case err == nil:
		return nil
	case k.e.work.Err() != nil:
		return ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	default:
		return k.e.stop(err)
	}
}

// reclaimState calls the store's ReclaimState, one call at a time.
func (c *core) reclaimState(ctx context.Context, span storage.Span) error {
	select {
	case c.reclaimingState <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-c.reclaimingState }()
	return c.writes.ReclaimState(ctx, span)
}
