package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/entry"
)

// A Relay publishes the messages of one engine's outbox. New makes one, Run runs it. Its other
// methods are safe for concurrent use, even while it runs or if it is disabled.
type Relay struct {
	eng     *engine.Engine
	opt     Options
	lease   *lease // used by Run only
	metrics *metrics
	ran     atomic.Bool

	wake    chan struct{}          // receives when there may be entries to publish
	due     atomic.Int64           // due time of the oldest held entry while the lease is held, 0 if there is none
	passed  atomic.Pointer[[]byte] // key up to which no ready entries are left; nil: unknown
	closing sync.WaitGroup

	dial func(o ...kgo.Opt) (client, error) // makes a client; tests replace it
}

// A client is the part of a Kafka client that a relay uses.
type client interface {
	producer
	transactor
}

// New makes a relay of the engine's outbox. Close unregisters its metrics.
func New(eng *engine.Engine, options Options) (*Relay, error) {
	opt, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Relay{eng: eng, opt: opt, lease: newLease(&opt), wake: make(chan struct{}, 1)}
	r.dial = func(o ...kgo.Opt) (client, error) { return kgo.NewClient(o...) }
	if !opt.Disabled {
		if err := kgo.ValidateOpts(r.clientOptions()...); err != nil {
			return nil, fmt.Errorf("outbox: Options.Client: %w", err)
		}
	}
	if r.metrics, err = newMetrics(r, opt.Telemetry.Registerer); err != nil {
		return nil, err
	}
	return r, nil
}

// Close unregisters the metrics. It does not end Run.
func (r *Relay) Close() { r.metrics.unregister() }

// clientOptions returns the options of the producer. The options that the relay needs come last.
func (r *Relay) clientOptions() []kgo.Opt {
	o := []kgo.Opt{kgo.MetadataMinAge(250 * time.Millisecond), kgo.UnknownTopicRetries(2)}
	o = append(o, r.opt.Client...)
	o = append(o, kgo.RecordPartitioner(newPartitioner()), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.MaxBufferedRecords(2*MaxBatchEntries))
	if r.opt.ExactlyOnce != nil {
		o = append(o, kgo.TransactionalID(r.transactionalID()), kgo.TransactionTimeout(transactionTimeout))
	}
	return o
}

// Run publishes until ctx ends. It then waits for the broker's answers for the batch in flight, at
// most Batch.Time, and returns nil. It returns an error only if the engine has failed or is closed;
// errors of the broker are logged and retried. Run can be called once.
func (r *Relay) Run(ctx context.Context) error {
	if !r.ran.CompareAndSwap(false, true) {
		return ErrAlreadyRan
	}
	if r.opt.Disabled {
		<-ctx.Done()
		return nil
	}
	defer r.closing.Wait()
	defer r.eng.OnProduced(r.Wake)()
	failures := uint64(0)
	for ctx.Err() == nil {
		pause, err := r.turn(ctx)
		switch {
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return nil
		case errors.Is(err, errLeaseLost):
			r.metrics.leaseLost.Inc()
			r.opt.Telemetry.Logger.Warn("outbox: the lease was lost: another relay publishes now", slog.Any("error", err))
			pause = r.opt.Interval
		case r.eng.Err() != nil, errors.Is(err, engine.ErrClosed), errors.Is(err, storage.ErrDamaged), errors.Is(err, storage.ErrNewerFormat):
			return err
		case err != nil:
			failures++
			pause = r.opt.Retry.delay(failures)
			r.opt.Telemetry.Logger.Warn("outbox: publishing failed; it is retried", slog.Duration("after", pause), slog.Any("error", err))
			r.rest(ctx, pause, nil)
			continue
		}
		failures = 0
		r.rest(ctx, pause, r.wake)
	}
	return nil
}

// Wake lets the relay check the outbox at once.
func (r *Relay) Wake() {
	select {
	case r.wake <- struct{}{}:
	default: // it is about to
	}
}

// rest waits for d, for wake, or until ctx ends.
func (r *Relay) rest(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	fired, stop := r.opt.Clock.After(d)
	defer stop()
	select {
	case <-fired:
	case <-wake:
	case <-ctx.Done():
	}
}

// turn publishes the due entries, if there are any and the relay gets the lease, and returns how
// long to wait then.
func (r *Relay) turn(ctx context.Context) (pause time.Duration, err error) {
	pause, err = r.untilWork(ctx)
	if err != nil || pause > 0 {
		return pause, err
	}
	left, err := r.lease.take(ctx, r.eng)
	if err != nil {
		return 0, err
	}
	if left > 0 {
		return min(left, r.opt.Interval), nil
	}
	s := &session{Relay: r, queue: newQueue(r.eng)}
	err = s.run(ctx)
	r.due.Store(0)
	s.abandon()
	return 0, errors.Join(err, r.lease.release(r.eng))
}

// untilWork returns 0 if there may be entries to publish, otherwise how long to wait.
func (r *Relay) untilWork(ctx context.Context) (time.Duration, error) {
	space := r.eng.In(entry.Space)
	for _, prefix := range [][]byte{entry.ReadyPrefix, entry.HeldPrefix, entry.DelayedPrefix} {
		rest := engine.Range{Prefix: prefix}
		if prefix[0] == entry.ReadyPrefix[0] {
			rest = r.ready()
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
			return min(r.opt.Interval, max(0, time.UnixMilli(due).Sub(r.opt.Clock.Now()))), nil
		}
	}
	return r.opt.Interval, nil
}

// ready selects the ready entries. Ranges that are known to be empty are omitted: a store may need
// long to pass deleted keys.
func (r *Relay) ready() engine.Range {
	rest := engine.Range{Prefix: entry.ReadyPrefix}
	if passed := r.passed.Load(); passed != nil {
		rest.After = *passed
	}
	return rest
}

// A session is the time during which a relay has the lease.
type session struct {
	*Relay
	queue    *queue
	client   client    // nil: not made yet
	progress *progress // of the exactly-once relay, after it was read
}

// run publishes until ctx ends, the lease is lost, or no entries are left and the lease must be
// renewed.
func (s *session) run(ctx context.Context) error {
	if err := s.load(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := s.lease.ensure(s.eng, s.opt.Batch.Time); err != nil {
			return err
		}
		now := s.opt.Clock.Now().UnixMilli()
		w, err := s.queue.collect(ctx, now, s.opt.Batch)
		if err != nil {
			return err
		}
		if len(w.items)+len(w.hold) == 0 {
			s.due.Store(s.queue.oldest())
			idle := s.queue.wait(now, min(s.opt.Interval, max(s.lease.untilRenewal(), 0)))
			s.rest(ctx, idle, s.wake)
			if s.lease.due(s.opt.Clock.Now()) && !s.queue.waiting() {
				return nil
			}
			continue
		}
		if err := s.batch(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// load reads the queue from the store; an exactly-once relay first determines what was published.
func (s *session) load(ctx context.Context) error {
	if s.opt.ExactlyOnce != nil {
		if err := s.recover(ctx); err != nil {
			return err
		}
	}
	return s.queue.load(ctx, s.ready().After)
}

// batch publishes one batch and records the outcome.
func (s *session) batch(ctx context.Context, w *work) error {
	publish := s.publish
	if s.opt.ExactlyOnce != nil {
		publish = s.publishInTransaction
	}
	if len(w.items) > 0 {
		if err := publish(w.items); err != nil {
			if errors.Is(err, errUnknownOutcome) {
				s.opt.Telemetry.Logger.Warn("outbox: the outcome of a Kafka transaction is unknown; the progress topic is read to find it", slog.Any("error", err))
				return s.load(ctx)
			}
			return err
		}
	}
	c := s.queue.settle(w, s.opt.Clock.Now().UnixMilli(), &s.opt.Retry)
	if s.progress != nil {
		c.put = append(c.put, s.progress.keyValue())
	}
	if err := s.lease.update(s.eng, c.apply); err != nil {
		return err
	}
	if len(s.queue.left) == 0 {
		passed := s.queue.cursor
		s.passed.Store(&passed)
	}
	s.report(w, c)
	if s.opt.ExactlyOnce != nil && s.client == nil {
		return s.load(ctx)
	}
	return nil
}

// report counts and logs a batch, and records whether the broker seems to be unreachable.
func (s *session) report(w *work, c *change) {
	sent, failures, unreachable := 0, 0, error(nil)
	for _, i := range w.items {
		switch i.outcome {
		case published:
			sent++
		case failed:
			failures++
			if !refused(i.err) {
				unreachable = i.err
			}
		}
	}
	s.metrics.sent.Add(float64(sent))
	s.metrics.failed.Add(float64(failures))
	log := s.opt.Telemetry.Logger
	for _, i := range c.parked {
		log.Error("outbox: a message is parked", slog.String("id", i.ID), slog.String("topic", i.Topic),
			slog.Uint64("attempts", i.Attempts), slog.String("error", i.LastError))
	}
	switch {
	case sent == 0 && unreachable != nil && !s.queue.outage:
		s.queue.outage = true
		log.Warn("outbox: the broker cannot be reached", slog.Any("error", unreachable))
	case sent > 0 && s.queue.outage:
		s.queue.outage = false
		log.Info("outbox: the broker can be reached again")
	}
	s.due.Store(s.queue.oldest())
}

// connect makes the client unless there is one.
func (s *session) connect() error {
	if s.client != nil {
		return nil
	}
	c, err := s.dial(s.clientOptions()...)
	if err != nil {
		return fmt.Errorf("outbox: making a client: %w", err)
	}
	s.client = c
	return nil
}

// abandon closes the client, and with it all requests in flight. Run waits for that at its end.
func (s *session) abandon() {
	if s.client == nil {
		return
	}
	c := s.client
	s.client = nil
	s.closing.Go(c.Close)
}
