package engine

import (
	"context"
	"iter"

	"github.com/hapax-dev/hapax/engine/storage"
)

// Get returns the durable value of an application key. A value that was committed at the same time
// is returned only when it would survive a power failure, so that it is never undone. Get waits for
// that, at most until ctx ends; it does not wait for open transactions.
func (e *Engine) Get(ctx context.Context, key []byte) (value []byte, found bool, err error) {
	return spaceKeys{&e.core, applicationSpace}.Get(ctx, key)
}

// Scan returns an iterator over the application's durable keys in a range, in the order of their
// bytes. It reads them in pages of at most 1024 keys and about 1 MiB; each page is a snapshot, and
// the next page a later one. A key that does not change during the iteration is returned exactly
// once; one that is written meanwhile may be returned or not, and never twice. A Tx.Scan reads a
// single snapshot.
//
// The iteration ends with an error, which is its last pair, when ctx ends, the engine is closed or
// the store fails. Nothing is held between pages: the loop may use the engine, and may take as long
// as it likes. It may be run again.
func (e *Engine) Scan(ctx context.Context, r Range) iter.Seq2[KeyValue, error] {
	return spaceKeys{&e.core, applicationSpace}.Scan(ctx, r)
}

// spaceKeys are the durable keys of one key space, see driver.Keys.
type spaceKeys struct {
	e      *core
	prefix []byte // of its state keys
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

// Reclaim gives the disk space of keys with the prefix that were deleted or overwritten back, as far
// as the store can. It rewrites what the store has under the prefix, and may take long.
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

// reclaimState is ReclaimState of the store, one call after the other.
func (c *core) reclaimState(ctx context.Context, span storage.Span) error {
	select {
	case c.reclaimingState <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-c.reclaimingState }()
	return c.store.ReclaimState(ctx, span)
}
