package engine

import (
	"context"
	"errors"
	"time"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/internal/names"
	"github.com/hapax-dev/hapax/engine/storage"
)

// Open starts an engine on a store. The engine owns the store from then on and closes it; if Open
// fails, the caller still owns it. A store that an engine uses already, or that is closed, is refused
// with storage.ErrInUse. When Open returns, the store was checked as far as the store's
// own Open says, the filters are loaded or are being rebuilt in the background, and removals that a
// crash interrupted are being repeated in the background.
func Open(store storage.Store, options Options) (*Engine, error) {
	if isNil(store) {
		return nil, errors.New("hapax: the store is nil: open one with pebble.Open or bolt.Open, and check its error")
	}
	opt, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := store.Acquire(); err != nil {
		return nil, err
	}
	e := newEngine(store, opt)
	if err := e.load(); err != nil {
		e.core.stopWork()
		store.Release()
		return nil, err
	}
	e.start()
	return e, nil
}

// newEngine combines the parts of an engine.
func newEngine(store storage.Store, opt Options) *Engine {
	e := &Engine{}
	e.core.store, e.core.opt, e.core.seed, e.core.stopped = store, opt, store.Identity().Seed, make(chan struct{})
	e.core.work, e.core.stopWork = context.WithCancel(context.Background())
	e.core.reclaimingState = make(chan struct{}, 1)
	c, f, q := &e.core, &e.finder, &e.queue
	e.finder = finder{core: c, retained: &e.retained, names: names.New(ErrLimit), filters: filters.New(opt.MaxFilterBytes, opt.ExpectedPerWeek), cache: newClaimCache(opt.RecentClaims)}
	e.queue.core, e.queue.requests = c, make(chan request, 64)
	t := &e.transactor
	t.core, t.finder, t.queue, t.sums = c, f, q, newSums()
	t.reserved.Init(f.filters)
	t.history.Init(&c.applied.at)
	e.decider = decider{core: c, retained: &e.retained, finder: f, reserved: &t.reserved, history: &t.history, sums: t.sums, holds: &e.holds, outbox: &t.outbox, seq: store.LastSeq()}
	e.scanner = scanner{c, f, q}
	e.snaps = filters.NewSnapshots(f.filters, filters.SnapshotOptions{
		Store: store, Durable: c.durable.wait, Go: c.goBehind, Every: opt.snapshotEvery, TrimAtClose: opt.trimAtClose, Retry: opt.snapshotRetry,
	})
	e.rebuild = rebuilder{c, f, q, &e.scanner, e.snaps}
	e.committer.init(c, q.requests, &e.decider, e.snaps)
	e.retention.core, e.retention.finder, e.retention.queue, e.retention.holds, e.retention.rebuild = c, f, q, &e.holds, &e.rebuild
	e.retention.drops = make(chan struct{}, 1)
	e.admin = Admin{c, f, q, &e.decider, &e.scanner}
	return e
}

func (e *Engine) start() {
	seq := e.decider.seq
	e.core.applying.Store(seq)
	e.core.applied.init(seq)
	e.core.durable.init(seq)
	e.committer.start()
	if !e.finder.filters.Trusted() {
		e.core.goBehind(e.rebuild.run)
	}
	e.retention.reclaim.begin()
	e.core.goBehind(e.retention.finishDrops)
	if !e.core.opt.Nightly.Off && !e.retention.keepsAll() {
		now := e.core.now()
		e.retention.nights.Go(func() { e.retention.runNightly(e.core.work, now) })
	}
}

// load restores the state in which the previous engine left the store.
func (e *Engine) load() error {
	if err := loadState(e); err != nil {
		return err
	}
	return e.rebuild.load(e.decider.seq)
}

func loadState(e *Engine) error {
	e.holds.at = make(map[string]time.Time)
	if err := e.finder.names.Load(e.core.store); err != nil {
		return err
	}
	err := e.core.store.ScanState(storage.Span{Prefix: []byte{stateHold}}, func(key, value []byte) error {
		at, err := parseHold(value)
		e.holds.at[string(key[1:])] = at
		return err
	})
	if err != nil {
		return err
	}
	err = e.core.store.ScanState(storage.Span{Prefix: []byte{stateFloor}}, func(key, value []byte) error { return e.retained.floors.load(key, value) })
	if err != nil {
		return err
	}
	e.retained.floors.publish()()
	if err := e.transactor.outbox.load(e.core.store); err != nil {
		return err
	}
	return loadOldest(e)
}

// Close waits for calls in progress, cancels background work, and closes the store. Transactions
// whose closures still run fail with ErrClosed when they next touch the engine. Close returns the
// failure that stopped the engine, if one did.
func (e *Engine) Close() error {
	e.core.closing.Store(true)
	// before calls is locked: scans, verifications and backups hold it for reading until they are
	// canceled
	e.core.stopWork()
	e.core.calls.Lock()
	if e.core.closed {
		e.core.calls.Unlock()
		return ErrClosed
	}
	e.core.closed = true
	e.core.calls.Unlock()
	e.retention.nights.Wait()
	close(e.queue.requests)
	// before the background work ends: until then the committer may begin a snapshot
	e.committer.loops.Wait()
	e.core.behind.Wait()
	if e.Err() == nil {
		e.snaps.SaveLast(e.decider.seq)
	}
	return errors.Join(e.Err(), e.core.store.Close())
}
