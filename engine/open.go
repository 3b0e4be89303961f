package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A FilterSource says where the filters came from when the engine was opened.
type FilterSource string

// What the filters came from.
const (
	FromSnapshot FilterSource = "snapshot+journal" // a snapshot and the journal of the batches after it
	FromJournal  FilterSource = "journal"          // the journal of all batches; there was no snapshot yet
	FromScan     FilterSource = "scan"             // a scan of all claims, behind, while claims are answered through the store
)

// Open starts an engine on a store. The engine owns the store from then on and closes it; if Open
// fails, the caller still owns it. Before Open returns the store was checked as far as the store's
// own Open says, the filters are there or are being rebuilt behind, and removals that a crash
// interrupted are being repeated behind.
func Open(store storage.Store, options Options) (*Engine, error) {
	opt, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	e := &Engine{
		store: store, opt: opt, seed: store.Identity().Seed,
		requests: make(chan request, 64), batches: make(chan *group), groups: make(chan *group, groupsAhead),
		names: newNames(), screen: newScreen(opt), recent: newRecent(opt.RecentClaims), sums: newSums(),
		seq: store.LastSeq(), stopped: make(chan struct{}),
	}
	e.tx.init(e)
	e.work, e.stopWork = context.WithCancel(context.Background())
	if err := e.load(); err != nil {
		e.stopWork()
		return nil, err
	}
	e.start()
	return e, nil
}

func (e *Engine) start() {
	e.applying.Store(e.seq)
	e.applied.init(e.seq)
	e.durable.init(e.seq)
	free := make(chan *group, groups)
	for range cap(free) {
		free <- new(group)
	}
	e.loops.Add(3)
	go e.commitLoop(free)
	go e.applyLoop()
	go e.releaseLoop(free)
	if !e.screen.trusted.Load() {
		e.goBehind(e.rebuild)
	}
	e.goBehind(e.finishDrops)
}

// load brings the engine to where the last one left the store.
func (e *Engine) load() error {
	if err := e.loadState(); err != nil {
		return err
	}
	return e.loadScreen()
}

func (e *Engine) loadState() error {
	e.holds.at = make(map[string]time.Time)
	err := e.store.ScanState(storage.Span{Prefix: []byte{stateName}}, func(key, value []byte) error {
		return e.names.load(string(key[1:]), value)
	})
	if err != nil {
		return err
	}
	if err := e.loadUses(); err != nil {
		return err
	}
	err = e.store.ScanState(storage.Span{Prefix: []byte{stateHold}}, func(key, value []byte) error {
		at, err := parseHold(value)
		e.holds.at[string(key[1:])] = at
		return err
	})
	if err != nil {
		return err
	}
	err = e.store.ScanState(storage.Span{Prefix: []byte{stateFloor}}, func(key, value []byte) error { return e.floors.load(key, value) })
	if err != nil {
		return err
	}
	e.floors.publish()()
	if err := e.outbox.load(e.store); err != nil {
		return err
	}
	return e.loadOldest()
}

// loadUses reads which names the weeks use. A store of an older format has no notes of that (see
// names.convert).
func (e *Engine) loadUses() error {
	err := e.store.ScanState(storage.Span{Prefix: []byte{stateUse}}, func(key, value []byte) error { return e.names.loadUse(key, value) })
	if err != nil {
		return err
	}
	_, noted, err := e.store.State(keyNames)
	if err != nil {
		return err
	}
	if !noted && e.seq > 0 {
		newest := weekbucket.Min
		err := e.store.Buckets(func(b storage.Bucket) error {
			newest = max(newest, b.Week)
			return nil
		})
		if err != nil {
			return err
		}
		e.names.legacy = &newest
	}
	return e.names.check()
}

// loadOldest reads the oldest week kept; a new store begins with the first week that its retention
// keeps.
func (e *Engine) loadOldest() error {
	value, found, err := e.store.State(keyOldest)
	switch {
	case err != nil:
		return err
	case found:
		e.decideOld, err = weekbucket.FromKey(value)
		if err != nil {
			return fmt.Errorf("%w: oldest week: %w", storage.ErrDamaged, err)
		}
	case e.seq > 0:
		return fmt.Errorf("%w: it has %d batches and no oldest week", storage.ErrDamaged, e.seq)
	default:
		this, err := weekbucket.Of(e.now())
		if err != nil {
			return fmt.Errorf("hapax: the clock: %w", err)
		}
		e.decideOld = firstKept(this, e.opt.RetentionWeeks)
		e.seq = 1
		wait, err := e.store.Apply(&storage.Batch{Seq: 1, State: []storage.StateWrite{
			{Key: keyOldest, Value: e.decideOld.AppendKey(nil)}, {Key: keyNames, Value: []byte{}},
		}})
		if err == nil {
			err = wait()
		}
		if err != nil {
			return err
		}
	}
	e.oldest.Store(uint32(e.decideOld))
	return nil
}

// loadScreen gets filters and counts from a snapshot and the journal after it, or leaves them to be
// rebuilt.
func (e *Engine) loadScreen() error {
	first, err := e.firstJournaled()
	if err != nil {
		return err
	}
	snap, err := e.loadSnapshot(first)
	if err != nil {
		return err
	}
	after := uint64(0)
	switch {
	case snap != nil:
		e.source, after = FromSnapshot, snap.seq
		e.screen.filters.Store(&snap.filters)
		for ref, c := range snap.counts {
			e.screen.merge(ref, c)
		}
	case first == 1 || e.seq == 0:
		e.source = FromJournal
	default:
		e.source = FromScan
		return e.replayJournal(math.MaxUint64)
	}
	if err := e.replayJournal(after); err != nil {
		return err
	}
	e.screen.dropBefore(e.decideOld, e.oldestByNumber())
	e.screen.trusted.Store(true)
	return nil
}

var errEnough = errors.New("enough")

// firstJournaled is the first batch that the journal has, 0 for none.
func (e *Engine) firstJournaled() (first uint64, err error) {
	err = e.store.Journal(0, func(seq uint64, _ []byte) error {
		first = seq
		return errEnough
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return first, err
}

// replayJournal takes the batches after the given one. A gap, here or before, or an end before the
// last batch means that acknowledged batches are missing.
func (e *Engine) replayJournal(after uint64) error {
	last := uint64(0)
	err := e.store.Journal(0, func(seq uint64, entry []byte) error {
		if last != 0 && seq != last+1 {
			return fmt.Errorf("%w: batch %d is followed by batch %d", storage.ErrDamaged, last, seq)
		}
		last = seq
		if seq <= after {
			return nil
		}
		return readJournal(entry, func(ref bucketRef, sign byte, hash uint64) {
			switch sign {
			case journalRemoved:
				e.screen.remove(ref, hash)
			case journalDropped:
				e.screen.forget(ref)
			default:
				e.screen.filter(ref.week).Add(hash)
				e.screen.put(ref, hash)
				e.sinceSnap++
			}
		})
	})
	if err == nil && last != e.seq && (last != 0 || e.seq > after) {
		err = fmt.Errorf("%w: the journal ends with batch %d, the store with %d", storage.ErrDamaged, last, e.seq)
	}
	return err
}

// rebuild fills filters and counts from a scan of the claims as they are when it begins. The
// committer adds what comes after that; counts add up, and a filter does not mind.
func (e *Engine) rebuild(ctx context.Context) {
	counts := make(map[bucketRef]count)
	err := e.beginScan(ctx, func() { e.screen.reset() }, func(c scanned) error {
		e.screen.filter(c.ref.week).Add(c.hash)
		n := counts[c.ref]
		counts[c.ref] = count{n.claims + 1, n.xor ^ c.hash}
		return nil
	})
	if err == nil {
		err = e.control(ctx, func(*group) error {
			for ref, c := range counts {
				e.screen.merge(ref, c)
			}
			e.screen.dropBefore(e.decideOld, e.oldestByNumber())
			e.screen.trusted.Store(true)
			e.sinceSnap = max(e.screen.claims, e.opt.snapshotEvery) // the next batch makes a snapshot
			return nil
		})
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) {
		_ = e.stop(err)
	}
}

// finishDrops repeats removals that were interrupted, and gives back space that is still owed.
func (e *Engine) finishDrops(ctx context.Context) {
	e.drops.Lock()
	defer e.drops.Unlock()
	removed, err := e.removeDropped(ctx)
	if err == nil {
		err = e.freeNames(ctx)
	}
	if err != nil || len(removed) > 0 {
		return // an error has stopped the engine, or the engine is closing
	}
	if owed, err := e.owedBuckets(); err == nil && len(owed) > 0 {
		e.reclaimBehind(owed)
	}
}

// Close waits for the calls under way, cuts off the work behind, and closes the store. Transactions
// whose closures still run fail with ErrClosed when they next touch the engine. Close returns the
// failure that stopped the engine, if one did.
func (e *Engine) Close() error {
	e.closing.Store(true)
	e.stopWork() // before calls is taken: scans, verifications and backups hold it for reading until they are cut off
	e.calls.Lock()
	if e.closed {
		e.calls.Unlock()
		return ErrClosed
	}
	e.closed = true
	e.calls.Unlock()
	close(e.requests)
	e.loops.Wait() // before the work behind: the committer may begin a snapshot until it ends
	e.behind.Wait()
	if e.Err() == nil && e.screen.trusted.Load() && e.snaps.newest() != e.seq {
		e.saveSnapshot(e.cut())
	}
	return errors.Join(e.Err(), e.store.Close())
}
