package outbox

import (
	"context"
	"errors"
	"log/slog"
)

// A session is the time during which a relay has the lease.
type session struct {
	connection connection
	queue      *queue
	landed     []*item // left to the client by an earlier batch, then answered, and not settled yet
}

// run publishes until ctx ends, the lease is lost, or no entries are left and the lease must be
// renewed.
func (s *session) run(ctx context.Context) error {
	if err := s.load(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := s.connection.shared.lease.ensure(s.connection.shared.eng, s.connection.shared.opt.Batch.Time); err != nil {
			return err
		}
		now := s.connection.shared.opt.Clock.Now().UnixMilli()
		w, err := s.collect(ctx, now)
		if err != nil {
			return err
		}
		if w.empty() {
			s.connection.shared.marks.due.Store(s.queue.oldest())
			idle := s.queue.wait(now, min(s.connection.shared.opt.Interval, max(s.connection.shared.lease.untilRenewal(), 0)))
			rest(ctx, s.connection.shared.opt.Clock, idle, s.connection.shared.wake)
			if s.connection.shared.lease.due(s.connection.shared.opt.Clock.Now()) && !s.queue.waiting() {
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

// end removes the messages left to the client that were acknowledged after the last batch had
// started, so that they are not published again.
func (s *session) end() error {
	c := &change{}
	for _, i := range append(s.landed, s.connection.landed()...) {
		if i.outcome == published {
			c.remove(i)
			c.gone.Entries++
			c.gone.Bytes += i.Entry.Bytes()
		}
	}
	if c.gone.Entries == 0 {
		return nil
	}
	if err := s.connection.shared.lease.update(context.Background(), s.connection.shared.eng, c.apply); err != nil {
		return err
	}
	s.connection.shared.metrics.sent.Add(float64(c.gone.Entries))
	return nil
}

// collect takes the next batch.
func (s *session) collect(ctx context.Context, now int64) (*work, error) {
	if s.connection.shared.marks.lookAgain.Swap(false) {
		s.queue.lookAll = 0
	}
	s.queue.bound(now, s.connection.shared.opt.Retry.Max)
	s.connection.shared.holds.pass(now, longestHold(&s.connection.shared.opt))
	s.landed = append(append(s.landed, s.connection.landed()...), s.connection.expired()...)
	s.release()
	w, err := s.queue.collect(ctx, now, s.connection.shared.opt.Batch)
	for _, i := range s.landed {
		w.landed = append(w.landed, i)
		w.groups = append(w.groups, s.queue.groups[i.group])
	}
	return w, err
}

// release makes groups due whose partitions have answered.
func (s *session) release() {
	s.queue.release(s.connection.released)
	s.connection.released = nil
}

// load reads the queue from the store; an exactly-once relay first determines what was published.
func (s *session) load(ctx context.Context) error {
	if s.connection.shared.opt.ExactlyOnce != nil {
		if _, err := s.connection.recover(ctx); err != nil {
			return err
		}
	}
	return s.queue.load(ctx, s.connection.shared.marks.ready().After)
}

// reconnect makes the client of an exactly-once relay again, after it had to be closed before the
// last transaction was committed. The queue is kept, together with the items that the transaction
// has left. But if the progress topic lists entries that the store still had, the queue is read
// again, and its entries must be collected again.
func (s *session) reconnect(ctx context.Context) (again bool, err error) {
	removed, err := s.connection.recover(ctx)
	if err != nil || removed == 0 {
		return false, err
	}
	return true, s.queue.load(ctx, s.connection.shared.marks.ready().After)
}

// batch publishes one batch and records the outcome.
func (s *session) batch(ctx context.Context, w *work) error {
	publish := s.connection.publish
	if s.connection.shared.opt.ExactlyOnce != nil {
		publish = s.connection.publishInTransaction
	}
	items, again, err := s.fit(ctx, w.items)
	if err != nil || again {
		return err
	}
	if len(items) > 0 {
		if err := publish(items); err != nil {
			if errors.Is(err, errUnknownOutcome) {
				s.connection.shared.opt.Telemetry.Logger.Warn("outbox: the outcome of a Kafka transaction is unknown; the progress topic is read to find it", slog.Any("error", err))
				return s.load(ctx)
			}
			return err
		}
	}
	c := s.queue.settle(w, s.connection.shared.opt.Clock.Now().UnixMilli(), &s.connection.shared.opt.Retry)
	s.release()
	if s.connection.progress != nil {
		c.put = append(c.put, s.connection.progress.keyValue())
	}
	if err := s.connection.shared.lease.update(ctx, s.connection.shared.eng, c.apply); err != nil {
		return err
	}
	s.landed = nil
	if len(s.queue.left) == 0 {
		passed := s.queue.cursor
		s.connection.shared.marks.passed.Store(&passed)
	}
	s.report(w, c)
	if s.connection.shared.opt.ExactlyOnce != nil && s.connection.client == nil {
		_, err = s.reconnect(ctx)
	}
	return err
}

// report counts and logs the results of a batch, and records whether the broker seems to be
// unreachable.
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
	s.connection.shared.metrics.sent.Add(float64(sent))
	s.connection.shared.metrics.failed.Add(float64(failures))
	log := s.connection.shared.opt.Telemetry.Logger
	for _, i := range c.parked {
		log.Error("outbox: a message is parked", s.connection.shared.opt.Telemetry.IDs.Attr("id", i.Entry.ID), slog.String("topic", i.Entry.Topic),
			slog.Uint64("attempts", i.Entry.Attempts), slog.String("error", i.Entry.LastError))
	}
	switch {
	case w.apart && !reached: // all tried items had failed before, so this says nothing about others
	case !reached && unreachable != nil:
		if !s.queue.outage {
			log.Warn("outbox: the broker cannot be reached", slog.Any("error", unreachable))
		}
		s.queue.outage, s.queue.probe = true, s.connection.shared.opt.Clock.Now().Add(s.connection.shared.opt.Interval).UnixMilli()
	case reached && s.queue.outage:
		s.queue.outage = false
		log.Info("outbox: the broker can be reached again")
	}
	s.connection.shared.marks.due.Store(s.queue.oldest())
}
