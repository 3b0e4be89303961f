package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// Events are made in portions, while the clock of the measurement stands still. A portion is cut
// into batches, which free callers take in order.
const portionEvents = 1 << 18

// portions calls fn with one portion of the traffic after the other, and returns the number of
// distinct events in it.
func (c *claiming) portions(fn func(events []engine.Event) error) (fresh uint64, err error) {
	t := traffic{seed: c.Seed, share: c.Dup}
	events := make([]engine.Event, 0, min(portionEvents, c.N))
	var arena []byte
	for left := c.N; left > 0; left -= len(events) {
		events, arena = events[:0], arena[:0]
		for range min(left, portionEvents) {
			var ev engine.Event
			ev, arena = c.source.event(t.next(), arena)
			events = append(events, ev)
		}
		if err := errors.Join(c.ctx.Err(), fn(events)); err != nil {
			return t.fresh, err
		}
	}
	return t.fresh, nil
}

// inBatches lets the callers take batches of n items, and returns how long it took until the last
// one was done.
func (c *claiming) inBatches(n int, do func(caller, from, to int) error) (time.Duration, error) {
	errs := make([]error, c.Goroutines)
	var next atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	for g := range c.Goroutines {
		all.Go(func() {
			for errs[g] == nil {
				from := int(next.Add(int64(c.Batch))) - c.Batch
				if from >= n || c.ctx.Err() != nil {
					return
				}
				errs[g] = do(g, from, min(from+c.Batch, n))
			}
		})
	}
	all.Wait()
	took := time.Since(start)
	if err := c.ctx.Err(); err != nil {
		return took, err
	}
	return took, several(errs...)
}

// callers are the goroutines that call the engine, each with its own counts.
type callers struct {
	e       *opened
	calls   []latency
	claimed []uint64
	dup     []uint64
}

func (c *callers) judge(ctx context.Context, g int, events []engine.Event) error {
	start := time.Now()
	results, err := c.e.TryClaimBatch(ctx, events)
	c.calls[g].since(start)
	if err != nil {
		return err
	}
	for i := range results {
		if results[i].Verdict == engine.Claimed {
			c.claimed[g]++
		} else {
			c.dup[g]++
		}
	}
	return told(results)
}

// feedEngine opens an engine in dir, feeds it everything, and takes its figures.
func (c *claiming) feedEngine(dir string) (perS float64, err error) {
	before, n, took := heapBytes(), c.engineN, c.engineTime
	e, err := openEngine(c.Store, dir, false, c.source.options())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	stop := func() error { return nil }
	if c.Profile != nil {
		if stop, err = c.Profile(); err != nil {
			return 0, errors.Join(err, e.Close())
		}
	}
	fresh, err := c.judgeAll(e)
	c.fresh += fresh
	if err == nil {
		err = c.takeFigures(e, before)
	}
	if err = errors.Join(err, e.Close(), stop()); err != nil {
		return 0, err
	}
	disk, err := fileBytes(dir, nil)
	c.diskBytes += disk
	return rate(c.engineN-n, c.engineTime-took), err
}

func (c *claiming) judgeAll(e *opened) (fresh uint64, err error) {
	w := callers{e: e, calls: make([]latency, c.Goroutines), claimed: make([]uint64, c.Goroutines), dup: make([]uint64, c.Goroutines)}
	for g := range w.calls {
		w.calls[g] = newLatency()
	}
	defer func() {
		for g := range w.calls {
			c.calls.merge(w.calls[g])
			c.report.Claimed += w.claimed[g]
			c.report.Duplicate += w.dup[g]
		}
	}()
	done, seen := uint64(0), int64(0)
	return c.portions(func(events []engine.Event) error {
		took, err := c.inBatches(len(events), func(g, from, to int) error { return w.judge(c.ctx, g, events[from:to]) })
		c.engineTime += took
		if err != nil {
			return err
		}
		c.engineN += uint64(len(events))
		done += uint64(len(events))
		c.Progress.tell("engine", done, uint64(c.N))
		seen, err = c.addLogical(events, seen)
		return err
	})
}

// addLogical adds the sizes of the keys and records of the events that are new, those whose number
// is at least seen.
func (c *claiming) addLogical(events []engine.Event, seen int64) (int64, error) {
	now := time.Now()
	for i := range events {
		if n := events[i].Origin.Offset; n >= seen {
			p, err := pairLike(&events[i], now)
			if err != nil {
				return seen, err
			}
			c.logicalBytes += uint64(len(p.key) + len(p.value))
			seen = n + 1
		}
	}
	return seen, nil
}

// feedRaw feeds the bare store everything. Its keys and values are made while the clock stands
// still, too.
func (c *claiming) feedRaw(dir string) (perS float64, err error) {
	n, before := c.rawN, c.rawTime
	raw, err := c.kind.raw(dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	done, now := uint64(0), time.Now()
	var pairs []rawPair
	_, err = c.portions(func(events []engine.Event) error {
		pairs = pairs[:0]
		for i := range events {
			p, err := pairLike(&events[i], now)
			if err != nil {
				return err
			}
			pairs = append(pairs, p)
		}
		took, err := c.inBatches(len(pairs), func(_, from, to int) error { return raw.put(pairs[from:to]) })
		c.rawTime += took
		c.rawN += uint64(len(pairs))
		done += uint64(len(pairs))
		c.Progress.tell("bare store", done, uint64(c.N))
		return err
	})
	return rate(c.rawN-n, c.rawTime-before), errors.Join(err, raw.Close())
}

// takeFigures takes what only an open engine can tell.
func (c *claiming) takeFigures(e *opened, heapBefore uint64) error {
	if after := heapBytes(); after > heapBefore {
		c.report.HeapBytes = max(c.report.HeapBytes, after-heapBefore)
	}
	c.Progress.tell("come to rest", 0, 0)
	if err := comeToRest(c.ctx, e, restLimit); err != nil {
		return err
	}
	stats, err := e.Stats()
	if err != nil {
		return err
	}
	c.negatives += stats.FilterNegatives
	c.falsePos += stats.FilterFalsePositives
	c.writtenBytes += stats.Store.WrittenBytes
	weeks, err := e.Weeks(c.ctx)
	if err != nil {
		return err
	}
	for _, w := range weeks {
		c.claimBytes += w.Bytes
	}
	return nil
}

// restLimit is how long a store may take to come to rest before figures are taken as they are.
const restLimit = time.Minute

// comeToRest waits until the store writes nothing any more, for half a second, or the limit has
// passed.
func comeToRest(ctx context.Context, e *opened, limit time.Duration) error {
	last, still := storage.Usage{}, 0
	for end := time.Now().Add(limit); still < 5 && time.Now().Before(end); {
		u, err := e.store.Usage()
		if err != nil {
			return err
		}
		if still++; u != last {
			last, still = u, 0
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// pairLike is what our stores write for a claim on ev: its key, and a value as long as its record.
func pairLike(ev *engine.Event, now time.Time) (rawPair, error) {
	week, err := weekbucket.Of(ev.Time)
	if err != nil {
		return rawPair{}, err
	}
	return rawPair{storage.Bucket{Scope: ev.Scope, Week: week}.AppendKey(nil, ev.ID), recordLike(ev, now)}, nil
}

// recordLike is a value of the size that the engine's record of a claim on ev has.
func recordLike(ev *engine.Event, now time.Time) []byte {
	b := make([]byte, 0, 16)
	b = append(b, byte(engine.Done))
	b = binary.AppendUvarint(b, 0)
	b = binary.AppendVarint(b, now.UnixMilli())
	b = binary.AppendUvarint(b, 1)
	b = binary.AppendVarint(b, int64(ev.Origin.Partition))
	return binary.AppendVarint(b, ev.Origin.Offset)
}
