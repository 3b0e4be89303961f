package outbox

import (
	"context"
	"errors"
	"log/slog"
)

// A session is the time during which a relay has the lease.
type session struct {
	connection
	queue *queue
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
		w, err := s.collect(ctx, now)
		if err != nil {
			return err
		}
		if w.empty() {
			s.due.Store(s.queue.oldest())
			idle := s.queue.wait(now, min(s.opt.Interval, max(s.lease.untilRenewal(), 0)))
			rest(ctx, s.opt.Clock, idle, s.wake)
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

// collect takes the next batch.
func (s *session) collect(ctx context.Context, now int64) (*work, error) {
	if s.lookAgain.Swap(false) {
		s.queue.lookAll = 0
	}
	s.queue.bound(now, s.opt.Retry.Max)
	s.holds.pass(now, longestHold(&s.opt))
	landed := s.landed()
	s.release()
	w, err := s.queue.collect(ctx, now, s.opt.Batch)
	for _, i := range landed {
		w.landed = append(w.landed, i)
		w.groups = append(w.groups, s.queue.groups[i.group])
	}
	return w, err
}

// release lets the groups be tried that wait for partitions which have answered.
func (s *session) release() {
	s.queue.release(s.released)
	s.released = nil
}

// load reads the queue from the store; an exactly-once relay first determines what was published.
func (s *session) load(ctx context.Context) error {
	if s.opt.ExactlyOnce != nil {
		if _, err := s.recover(ctx); err != nil {
			return err
		}
	}
	return s.queue.load(ctx, s.ready().After)
}

// reconnect makes the client of an exactly-once relay again, which had to be closed before the last
// transaction was committed. The queue is kept, and with it what the transaction has left, unless
// the progress topic lists entries that the store still had.
func (s *session) reconnect(ctx context.Context) error {
	removed, err := s.recover(ctx)
	if err != nil || removed == 0 {
		return err
	}
	return s.queue.load(ctx, s.ready().After)
}

// batch publishes one batch and records the outcome.
func (s *session) batch(ctx context.Context, w *work) error {
	publish := s.publish
	if s.opt.ExactlyOnce != nil {
		publish = s.publishInTransaction
	}
	items, err := s.fit(ctx, w.items)
	if err != nil {
		return err
	}
	if len(items) > 0 {
		if err := publish(items); err != nil {
			if errors.Is(err, errUnknownOutcome) {
				s.opt.Telemetry.Logger.Warn("outbox: the outcome of a Kafka transaction is unknown; the progress topic is read to find it", slog.Any("error", err))
				return s.load(ctx)
			}
			return err
		}
	}
	c := s.queue.settle(w, s.opt.Clock.Now().UnixMilli(), &s.opt.Retry)
	s.release()
	if s.progress != nil {
		c.put = append(c.put, s.progress.keyValue())
	}
	if err := s.lease.update(ctx, s.eng, c.apply); err != nil {
		return err
	}
	if len(s.queue.left) == 0 {
		passed := s.queue.cursor
		s.passed.Store(&passed)
	}
	s.report(w, c)
	if s.opt.ExactlyOnce != nil && s.client == nil {
		return s.reconnect(ctx)
	}
	return nil
}

// report counts and logs a batch, and records whether the broker seems to be unreachable.
func (s *session) report(w *work, c *change) {
	sent, failures, reached, unreachable := 0, 0, false, error(nil)
	for i := range w.all() {
		switch i.outcome {
		case published:
			sent++
			reached = true
		case aborted:
			reached = true
		case flying:
			unreachable = errSilent
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
	case w.apart && !reached: // those that were tried had failed before: this is about no others
	case !reached && unreachable != nil:
		if !s.queue.outage {
			log.Warn("outbox: the broker cannot be reached", slog.Any("error", unreachable))
		}
		s.queue.outage, s.queue.probe = true, s.opt.Clock.Now().Add(s.opt.Interval).UnixMilli()
	case reached && s.queue.outage:
		s.queue.outage = false
		log.Info("outbox: the broker can be reached again")
	}
	s.due.Store(s.queue.oldest())
}
