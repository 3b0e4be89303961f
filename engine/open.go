package engine

import (
	"errors"
	"time"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/internal/names"
	"github.com/hapax-dev/hapax/engine/storage"
)

// Open starts an engine on a store. From then on, the engine owns the store and closes it; if Open
// fails, the caller still owns it. If the store is closed or already used by an engine, Open
// returns storage.ErrInUse. Open does not check the store further than the store's own Open. It
// loads the filters or starts to rebuild them in the background, where it also repeats removals
// that a crash interrupted.
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

// newEngine connects the parts of an engine.
func newEngine(store storage.Store, opt Options) *Engine {
	e := &Engine{}
	e.core.init(store, opt)
	e.core.writes = store
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
	e.admin = Admin{c, f, q, &e.decider, &e.scanner, queries{c, f}}
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

// load loads the state of the previous engine from the store.
func (e *Engine) load() error {
	if err := loadState(e.core.store, &e.retained, e.finder.names, &e.holds, &e.transactor.outbox); err != nil {
		return err
	}
	if err := loadOldest(e); err != nil {
		return err
	}
	return e.rebuild.load(e.decider.seq)
}

// loadState loads all but the oldest retained week.
func loadState(store storage.Reader, k *retained, n *names.Table, h *holds, o *outbox) error {
	h.at = make(map[string]time.Time)
	if err := n.Load(store); err != nil {
		return err
	}
	err := store.ScanState(storage.Span{Prefix: []byte{stateHold}}, func(key, value []byte) error {
		at, err := parseHold(value)
		h.at[string(key[1:])] = at
		return err
	})
	if err != nil {
		return err
	}
	if err := store.ScanState(storage.Span{Prefix: []byte{stateFloor}}, k.floors.load); err != nil {
		return err
	}
	k.floors.publish()()
	return o.load(store)
}

// Close waits for calls in progress, cancels background work, and closes the store. Transactions
// whose closures still run fail with ErrClosed when they next use the engine. Close returns the
// error that stopped the engine, if any.
func (e *Engine) Close() error {
	if err := e.core.beginClose(); err != nil {
		return err
	}
	e.retention.nights.Wait()
	close(e.queue.requests)
	// before waiting for background work: until then, the committer may start a snapshot
	e.committer.loops.Wait()
	e.core.behind.Wait()
	if e.Err() == nil {
		e.snaps.SaveLast(e.decider.seq)
	}
	return errors.Join(e.Err(), e.core.store.Close())
}
