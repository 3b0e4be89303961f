package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/wait"
	"github.com/hapax-dev/hapax/weekbucket"
)

// Events are generated in portions, while the clock of the measurement is stopped. A portion is cut
// into batches, which free callers take in order.
const portionEvents = 1 << 18

// Fed is what was fed to an engine or to a bare store.
type fed struct {
	n     uint64 // events, or their prepared form
	fresh uint64 // distinct events of them
	took  time.Duration
}

func (f *fed) add(more fed) {
	f.n += more.n
	f.fresh += more.fresh
	f.took += more.took
}

func (f *fed) perS() float64 {
	if f.took <= 0 {
		return 0
	}
	return float64(f.n) / f.took.Seconds()
}

// feed generates the traffic, prepares it, also while the clock is stopped, and lets the callers
// process it in batches.
func feed[T any](c *claiming, stage string, prepare func([]engine.Event) ([]T, error), do func(batch []T) error) (f fed, err error) {
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
		items, err := prepare(events)
		if err != nil {
			return f, err
		}
		var next atomic.Int64
		start := time.Now()
		err = together(c.Goroutines, func(int) error {
			for {
				from := int(next.Add(int64(c.Batch))) - c.Batch
				if from >= len(items) || c.ctx.Err() != nil {
					return c.ctx.Err()
				}
				if err := do(items[from:min(from+c.Batch, len(items))]); err != nil {
					return err
				}
			}
		})
		f.took += time.Since(start)
		if err != nil {
			return f, err
		}
		f.n += uint64(len(items))
		f.fresh = t.fresh
		c.Progress.tell(stage, f.n, uint64(c.N))
	}
	return f, nil
}

// feedEngine opens an engine in dir, feeds it all events, and takes its figures.
func (c *claiming) feedEngine(dir string) (perS float64, err error) {
	before := heapBytes()
	e, err := openEngine(c.Store, dir, false, c.source.options())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	f, err := c.judgeAll(e)
	if err == nil {
		err = c.takeFigures(e, before)
	}
	if err = errors.Join(err, e.Close()); err != nil {
		return 0, err
	}
	disk, err := fileBytes(dir, nil)
	c.diskBytes += disk
	return f.perS(), err
}

// judgeAll lets the engine judge all events.
func (c *claiming) judgeAll(e *opened) (fed, error) {
	now, seen := time.Now(), int64(0) // events with smaller numbers existed before
	f, err := feed(c, "engine", func(events []engine.Event) ([]engine.Event, error) {
		for i := range events {
			if n := events[i].Origin.Offset; n >= seen {
				p, err := pairLike(&events[i], now)
				if err != nil {
					return nil, err
				}
				c.logicalBytes += uint64(len(p.key) + len(p.value))
				seen = n + 1
			}
		}
		return events, nil
	}, func(events []engine.Event) error { return c.judge(e, events) })
	c.engine.add(f)
	return f, err
}

func (c *claiming) judge(e *opened, events []engine.Event) error {
	start := time.Now()
	results, err := e.TryClaimBatch(c.ctx, events)
	took := time.Since(start)
	if err != nil {
		return err
	}
	claimed := uint64(0)
	for i := range results {
		if results[i].Verdict == engine.Claimed {
			claimed++
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.calls.RecordValue(min(int64(took), int64(longestCall))) // in range
	c.report.Claimed += claimed
	c.report.Duplicate += uint64(len(results)) - claimed
	return told(results)
}

// feedRaw feeds the bare store all events.
func (c *claiming) feedRaw(dir string) (perS float64, err error) {
	raw, err := c.kind.raw(dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	now := time.Now()
	var pairs []rawPair
	f, err := feed(c, "bare store", func(events []engine.Event) ([]rawPair, error) {
		pairs = pairs[:0]
		for i := range events {
			p, err := pairLike(&events[i], now)
			if err != nil {
				return nil, err
			}
			pairs = append(pairs, p)
		}
		return pairs, nil
	}, raw.put)
	c.raw.add(f)
	return f.perS(), errors.Join(err, raw.Close())
}

// takeFigures takes the figures that need an open engine.
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

// restLimit is how long to wait for an idle store before figures are taken anyway.
const restLimit = time.Minute

// comeToRest waits until the store has written nothing for half a second, or the limit has passed.
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
		if err := wait.For(ctx, 100*time.Millisecond); err != nil {
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

// pairLike returns the key and value that the stores of Hapax would write for a claim on ev: the
// value has the size of the engine's record.
func pairLike(ev *engine.Event, now time.Time) (rawPair, error) {
	week, err := weekbucket.Of(ev.Time)
	if err != nil {
		return rawPair{}, err
	}
	b := append(make([]byte, 0, 16), byte(engine.Done), 0)
	b = binary.AppendVarint(b, now.UnixMilli())
	b = binary.AppendUvarint(b, 1)
	b = binary.AppendVarint(b, int64(ev.Origin.Partition))
	b = binary.AppendVarint(b, ev.Origin.Offset)
	return rawPair{storage.Bucket{Scope: ev.Scope, Week: week}.AppendKey(nil, ev.ID), b}, nil
}
