package bench

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/hapax-dev/hapax/bench/internal/callers"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A feeding sends n events to an engine or a bare store in batches. Events are generated in
// portions while the clock of the measurement is stopped, and callers take batches of them in
// order.
type feeding struct {
	source   traffic.Source
	n        int
	plan     callers.Plan
	repeats  float64 // share of the events
	repeated traffic.Repeats
	progress func(done uint64) // after each portion; nil: none
}

// portionEvents is small, so that the events do not outweigh the memory of what is measured.
const portionEvents = 1 << 16

// fed counts what was sent to an engine or to a bare store.
type fed struct {
	n     uint64 // events, or their prepared form
	fresh uint64 // distinct events of them
	took  time.Duration
	// firstTenth and lastTenth are the parts of took for the first and the last tenth of the
	// events; 0 if there are fewer than ten.
	firstTenth, lastTenth time.Duration
	generating            time.Duration // processor time, unless it is unknown
}

func (f *fed) add(more fed) {
	f.n += more.n
	f.fresh += more.fresh
	f.took += more.took
	f.firstTenth += more.firstTenth
	f.lastTenth += more.lastTenth
	f.generating += more.generating
}

func (f *fed) perS() float64 {
	if f.took <= 0 {
		return 0
	}
	return float64(f.n) / f.took.Seconds()
}

// feed prepares each portion while the clock is stopped, and lets the callers process it in
// batches. start starts a batch, and the func that it returns waits until the batch is done.
func feed[T any](ctx context.Context, o *feeding, prepare func([]engine.Event) ([]T, error), start func(batch []T) (wait func() error)) (f fed, err error) {
	t := traffic.Numbers{Seed: o.source.Seed, Share: o.repeats, Repeats: o.repeated}
	events := make([]engine.Event, 0, min(portionEvents, o.n))
	var arena []byte
	var items []T
	tenth := o.n / 10
	for at := 0; at < o.n; at += len(events) {
		end := min(at+portionEvents, o.n)
		for _, edge := range []int{tenth, o.n - tenth} {
			if at < edge {
				end = min(end, edge)
			}
		}
		spent, err := threadTimeOf(func() (err error) {
			events, arena = events[:0], arena[:0]
			for range end - at {
				var ev engine.Event
				number, _ := t.Next()
				ev, arena = o.source.Event(number, arena)
				events = append(events, ev)
			}
			items, err = prepare(events)
			return err
		})
		f.generating += spent
		if err != nil {
			return f, err
		}
		began := time.Now()
		_, err = callers.Take(ctx, o.plan, items, start)
		took := time.Since(began)
		f.took += took
		if err != nil {
			return f, err
		}
		if end <= tenth {
			f.firstTenth += took
		}
		if at >= o.n-tenth {
			f.lastTenth += took
		}
		f.n += uint64(len(items))
		f.fresh = t.Distinct()
		if o.progress != nil {
			o.progress(f.n)
		}
	}
	return f, nil
}

// judged counts what an engine has judged in all feedings.
type judged struct {
	logicalBytes uint64 // of the claims' keys and records

	mu                 sync.Mutex // guards the rest while callers run
	calls              *hdrhistogram.Histogram
	claimed, duplicate uint64
}

// longestCall is the longest time of a call that is recorded.
const longestCall = 10 * time.Minute

func newJudged() *judged { return &judged{calls: hdrhistogram.New(1, int64(longestCall), 3)} }

// all lets the engine judge all events.
func (j *judged) all(ctx context.Context, o *feeding, e *opened) (fed, error) {
	now, seen := time.Now(), int64(0) // events with smaller numbers existed before this one
	var scratch []byte
	return feed(ctx, o, func(events []engine.Event) (_ []engine.Event, err error) {
		for i := range events {
			if n := events[i].Origin.Offset; n >= seen {
				var p rawPair
				if p, scratch, err = pairLike(&events[i], now, scratch[:0]); err != nil {
					return nil, err
				}
				j.logicalBytes += uint64(len(p.key) + len(p.value))
				seen = n + 1
			}
		}
		return events, nil
	}, func(events []engine.Event) func() error {
		start := time.Now()
		wait := func(ctx context.Context) ([]engine.Result, error) { return e.Engine.TryClaimBatch(ctx, events) }
		if o.plan.InFlight > 1 {
			wait = e.Engine.StartClaimBatch(ctx, events).Wait
		}
		return func() error { return j.batch(ctx, start, wait) }
	})
}

// batch waits for the results of a batch that was started at the given time, and counts them.
func (j *judged) batch(ctx context.Context, start time.Time, wait func(context.Context) ([]engine.Result, error)) error {
	results, err := wait(ctx)
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
	return decided(results)
}

// pairLike returns the key and value that the stores of Hapax would write for a claim on ev: the
// value has the size of the engine's record. Both are appended to arena.
func pairLike(ev *engine.Event, now time.Time, arena []byte) (rawPair, []byte, error) {
	week, err := weekbucket.Of(ev.Time)
	if err != nil {
		return rawPair{}, arena, err
	}
	from := len(arena)
	b := storage.Bucket{Scope: ev.Scope, Week: week}.AppendKey(arena, ev.ID)
	end := len(b)
	b = binary.AppendUvarint(append(b, 0x80), uint64(ev.Origin.Partition))
	ms := binary.BigEndian.AppendUint64(nil, uint64(now.UnixMilli()))
	b = append(b, ms[3:]...)
	b = binary.AppendUvarint(b, uint64(ev.Origin.Offset))
	return rawPair{b[from:end:end], b[end:]}, b, nil
}
