package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A transactor is the part of a Kafka client that the exactly-once relay needs in addition to a
// producer.
type transactor interface {
	ProducerID(ctx context.Context) (int64, int16, error)
	BeginTransaction() error
	EndTransaction(ctx context.Context, commit kgo.TransactionEndTry) error
}

// transactionTimeout is the time after which the broker aborts a transaction that was not ended.
// The next relay of the store ends it earlier.
const transactionTimeout = time.Minute

var errUnknownOutcome = errors.New("outbox: a Kafka transaction may have committed or not")

// transactionalID is the same for every relay of a store, so that a new one fences the one before.
func (r *Relay) transactionalID() string {
	return "hapax-outbox-" + uuid.UUID(r.eng.Identity().UUID).String()
}

// publishInTransaction publishes items together with the record of progress that lists them: all,
// or none if one of them fails. After errUnknownOutcome, and whenever the client was abandoned, the
// progress topic must be read before anything else is published.
func (s *session) publishInTransaction(items []*item) error {
	if err := s.client.BeginTransaction(); err != nil {
		s.abandon()
		return fmt.Errorf("outbox: beginning a transaction: %w", err)
	}
	b := newSending(s, len(items)+1)
	for _, i := range items {
		b.start(i)
	}
	record := s.progress.record(items, s.opt.Clock.Now())
	b.start(record)
	whole := len(b.flying) == len(items)+1
	if err := b.await(b.finish); err != nil {
		s.abandon()
		return err
	}
	for i := range b.flying { // the time of the batch is over
		i.outcome, i.err = failed, errBatchTime
	}
	if record.outcome != published {
		whole = false
	}
	for _, i := range items {
		whole = whole && i.outcome == published
	}
	if !whole {
		return s.abort(items, record, len(b.flying) == 0)
	}
	if err := s.lease.ensure(s.eng, s.opt.Batch.Time); err != nil {
		s.abandon() // the relay that has the lease aborts the transaction
		return err
	}
	if err := s.end(kgo.TryCommit); err != nil {
		s.abandon()
		return fmt.Errorf("%w: %w", errUnknownOutcome, err)
	}
	s.progress.published(record.offset)
	return nil
}

// abort ends a transaction in which an item has failed; the other items are left to be published
// again.
func (s *session) abort(items []*item, record *item, answered bool) error {
	failures := 0
	for _, i := range items {
		if i.outcome == failed {
			failures++
		} else {
			i.outcome = left
		}
	}
	if !answered {
		s.abandon() // its transaction ends when the client is made again
	} else if err := s.end(kgo.TryAbort); err != nil {
		s.abandon()
	}
	if failures == 0 && record.outcome == failed {
		s.abandon()
		return fmt.Errorf("%w: publishing to it: %w", ErrProgressTopic, record.err)
	}
	return nil
}

// end ends the transaction. If its context ended, the outcome would be unknown, and also if a
// broker does not answer within Batch.Time: then the client is closed.
func (s *session) end(how kgo.TransactionEndTry) error {
	client := s.client
	return s.during(context.Background(), s.opt.Batch.Time, func(context.Context) error {
		return client.EndTransaction(context.Background(), how)
	})
}

// during runs fn, which takes long, and renews the lease meanwhile. If that fails, or fn takes
// longer than limit, the client is abandoned and the context of fn ends; during returns when fn has
// returned.
func (s *session) during(ctx context.Context, limit time.Duration, fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	over, stopOver := s.opt.Clock.After(limit)
	defer stopOver()
	giveUp := func(why error) error {
		cancel()
		s.abandon()
		return errors.Join(why, <-done)
	}
	for {
		renew, stopRenew := s.opt.Clock.After(s.lease.untilRenewal())
		select {
		case err := <-done:
			stopRenew()
			return err
		case <-over:
			stopRenew()
			return giveUp(fmt.Errorf("outbox: the broker did not answer within %v", limit))
		case <-renew:
			if err := s.lease.ensure(s.eng, 0); err != nil {
				return giveUp(err)
			}
		}
	}
}
