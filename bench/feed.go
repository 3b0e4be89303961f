package bench

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A feeding is traffic of n events that goes to an engine or a bare store in batches. Events are
// generated in portions, while the clock of the measurement is stopped; callers take batches of them
// in order.
type feeding struct {
	source
	stage             string
	n, batch, callers int
	repeats           float64 // share of the events
	progress          Progress
}

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

// feed prepares each portion, also while the clock is stopped, and lets the callers process it in
// batches.
func feed[T any](ctx context.Context, o *feeding, prepare func([]engine.Event) ([]T, error), do func(batch []T) error) (f fed, err error) {
	t := traffic{seed: o.Seed, share: o.repeats}
	events := make([]engine.Event, 0, min(portionEvents, o.n))
	var arena []byte
	for left := o.n; left > 0; left -= len(events) {
		events, arena = events[:0], arena[:0]
		for range min(left, portionEvents) {
			var ev engine.Event
			ev, arena = o.event(t.next(), arena)
			events = append(events, ev)
		}
		items, err := prepare(events)
		if err != nil {
			return f, err
		}
		var next atomic.Int64
		start := time.Now()
		err = together(o.callers, func(int) error {
			for {
				from := int(next.Add(int64(o.batch))) - o.batch
				if from >= len(items) || ctx.Err() != nil {
					return ctx.Err()
				}
				if err := do(items[from:min(from+o.batch, len(items))]); err != nil {
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
		o.progress.tell(o.stage, f.n, uint64(o.n))
	}
	return f, nil
}

// Judged is what an engine has judged, in all feedings together.
type judged struct {
	logicalBytes uint64 // of the claims' keys and records

	mu                 sync.Mutex // guards the rest while callers run
	calls              *hdrhistogram.Histogram
	claimed, duplicate uint64
}

// longestCall is an upper bound of the time of a call.
const longestCall = 10 * time.Minute

func newJudged() *judged { return &judged{calls: hdrhistogram.New(1, int64(longestCall), 3)} }

// all lets the engine judge all events.
func (j *judged) all(ctx context.Context, o *feeding, e *opened) (fed, error) {
	now, seen := time.Now(), int64(0) // events with smaller numbers existed before
	return feed(ctx, o, func(events []engine.Event) ([]engine.Event, error) {
		for i := range events {
			if n := events[i].Origin.Offset; n >= seen {
				p, err := pairLike(&events[i], now)
				if err != nil {
					return nil, err
				}
				j.logicalBytes += uint64(len(p.key) + len(p.value))
				seen = n + 1
			}
		}
		return events, nil
	}, func(events []engine.Event) error { return j.batch(ctx, e, events) })
}

func (j *judged) batch(ctx context.Context, e *opened, events []engine.Event) error {
	start := time.Now()
	results, err := e.TryClaimBatch(ctx, events)
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
	j.mu.Lock()
	defer j.mu.Unlock()
	_ = j.calls.RecordValue(min(int64(took), int64(longestCall))) // in range
	j.claimed += claimed
	j.duplicate += uint64(len(results)) - claimed
	return told(results)
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
