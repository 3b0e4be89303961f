package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/entry"
)

// A Relay publishes the messages of one engine's outbox. New makes one, Run runs it. Its other
// methods are safe for concurrent use, even while it runs or if it is disabled.
type Relay struct {
	shared *shared
	ran    atomic.Bool
}

// New makes a relay of the engine's outbox. Close unregisters its metrics.
func New(eng *engine.Engine, options Options) (*Relay, error) {
	if eng == nil {
		return nil, errors.New("hapax: outbox: the engine is nil: open one with engine.Open, and check its error")
	}
	opt, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Relay{shared: &shared{eng: eng, opt: opt, lease: newLease(&opt), wake: make(chan struct{}, 1)}}
	r.shared.reach.Grace = lostAfter
	r.shared.dial = func(o ...kgo.Opt) (client, error) { return r.shared.hooks.NewClient(o...) }
	r.shared.limits.read = func(ctx context.Context, topics []string) (map[string]int32, map[string]error) {
		return r.shared.limits.readFrom(ctx, &r.shared.hooks, &r.shared.opt, topics)
	}
	if !opt.Disabled {
		if err := checkClient(&opt, eng.Identity()); err != nil {
			return nil, fmt.Errorf("hapax: outbox: Options.Client: %w", err)
		}
	}
	if r.shared.metrics, err = newMetrics(r.shared.figures, &r.shared.reach, opt.Telemetry.Registerer); err != nil {
		return nil, err
	}
	return r, nil
}

// Close unregisters the metrics. It does not end Run.
func (r *Relay) Close() { r.shared.metrics.unregister() }

// Run publishes until ctx ends. It then waits for the broker's answers for the batch in flight, at
// most Batch.Time, and returns nil. It returns an error only if the engine has failed or is closed;
// errors of the broker are logged and retried. Run can be called once.
func (r *Relay) Run(ctx context.Context) error {
	if !r.ran.CompareAndSwap(false, true) {
		return ErrAlreadyRan
	}
	if r.shared.opt.Disabled {
		<-ctx.Done()
		return nil
	}
	defer r.shared.lease.live(r.shared.eng)()
	defer r.shared.hooks.Close()
	defer r.shared.closing.Wait()
	defer driver.OnProduced(r.shared.eng, r.Wake)()
	defer r.shared.watch()()
	failures := uint64(0)
	for ctx.Err() == nil {
		pause, err := r.turn(ctx)
		switch {
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return nil
		case errors.Is(err, errLeaseLost):
			r.shared.metrics.leaseLost.Inc()
			r.shared.opt.Telemetry.Logger.Warn("outbox: the lease was lost: another relay publishes now", slog.Any("error", err))
			pause = r.shared.opt.Interval
		case r.shared.eng.Err() != nil:
			return r.shared.eng.Err()
		case errors.Is(err, engine.ErrClosed), errors.Is(err, storage.ErrDamaged), errors.Is(err, storage.ErrNewerFormat):
			return err
		case err != nil:
			failures++
			pause = r.shared.opt.Retry.delay(failures)
			r.shared.opt.Telemetry.Logger.Warn("outbox: publishing failed; it is retried", slog.Duration("after", pause), slog.Any("error", err))
			rest(ctx, r.shared.opt.Clock, pause, nil)
			continue
		}
		failures = 0
		rest(ctx, r.shared.opt.Clock, pause, r.shared.wake)
	}
	return nil
}

// Wake lets the relay check the outbox at once.
func (r *Relay) Wake() { r.shared.wakeUp() }

// turn publishes the due entries if there are any and the relay gets the lease. It returns how long
// to wait until the next turn.
func (r *Relay) turn(ctx context.Context) (pause time.Duration, err error) {
	pause, err = r.untilWork(ctx)
	if err != nil || pause > 0 {
		return pause, err
	}
	left, err := r.shared.lease.take(ctx, r.shared.eng)
	if err != nil {
		return 0, err
	}
	if left > 0 {
		return min(left, r.shared.opt.Interval), nil
	}
	r.shared.holds.reset()
	s := &session{connection: connection{shared: r.shared}, queue: newQueue(r.shared)}
	err = s.run(ctx)
	err = errors.Join(err, s.end())
	r.shared.marks.due.Store(0)
	s.connection.abandon()
	return 0, errors.Join(err, r.shared.lease.release(r.shared.eng))
}

// untilWork returns 0 if there may be entries to publish, otherwise how long to wait.
func (r *Relay) untilWork(ctx context.Context) (time.Duration, error) {
	space := driver.In(r.shared.eng, entry.Space)
	for _, prefix := range [][]byte{entry.ReadyPrefix, entry.HeldPrefix, entry.DelayedPrefix} {
		rest := engine.Range{Prefix: prefix}
		if prefix[0] == entry.ReadyPrefix[0] {
			rest = r.shared.marks.ready()
		}
		for kv, err := range space.Scan(ctx, rest) {
			if err != nil {
				return 0, err
			}
			if prefix[0] != entry.DelayedPrefix[0] {
				return 0, nil
			}
			due, err := entry.DelayedDue(kv.Key)
			if err != nil {
				return 0, damaged(err)
			}
			return min(r.shared.opt.Interval, max(0, time.UnixMilli(due).Sub(r.shared.opt.Clock.Now()))), nil
		}
	}
	return r.shared.opt.Interval, nil
}
