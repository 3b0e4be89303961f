package outbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/entry"
)

var errUnknownOutcome = errors.New("hapax: outbox: a Kafka transaction may have committed or not")

// publishInTransaction publishes items together with the record of progress that lists them. If one
// of them fails, none is published. After errUnknownOutcome, and whenever the client was abandoned,
// the progress topic must be read before anything else is published.
func (c *connection) publishInTransaction(items []*item) error {
	if err := c.client.BeginTransaction(); err != nil {
		c.abandon()
		return fmt.Errorf("hapax: outbox: beginning a transaction: %w", err)
	}
	if err := c.identify(); err != nil {
		c.abandon()
		return err
	}
	b := newSending(c, len(items)+1)
	sent := items
	if !c.shared.holds.holding() {
		for _, i := range items {
			b.start(i)
		}
	} else { // the record must list neither the items of held partitions nor those behind them
		b.startGroups(items, oneDestination)
		if err := b.await(); err != nil {
			c.abandon()
			return err
		}
		sent = slices.DeleteFunc(slices.Clone(items), b.notSent)
	}
	record := c.progress.record(sent)
	if len(sent) > 0 && !b.silent {
		b.start(record)
		if err := b.await(); err != nil {
			c.abandon()
			return err
		}
	}
	c.holdSilent(b)
	if record.outcome == published && record.by != c.progress.by { // recovery would ignore it
		record.outcome, record.err = failed, errors.New("hapax: outbox: the client has another producer id")
	}
	if record.outcome != published || slices.ContainsFunc(sent, func(i *item) bool { return i.outcome != published }) || overtaken(items) {
		return c.abort(items, record, len(b.flying) == 0)
	}
	if err := c.shared.lease.ensure(c.shared.eng, c.shared.opt.Batch.Time); err != nil {
		c.abandon() // the relay that has the lease aborts the transaction
		return err
	}
	if err := c.end(kgo.TryCommit); err != nil {
		c.abandon()
		return fmt.Errorf("%w: %w", errUnknownOutcome, err)
	}
	c.progress.published(record.offset)
	return nil
}

// oneDestination reports whether all items of a group go to the same partition. They then need not
// wait for each other, because that partition is held for all of them or for none.
func oneDestination(group []*item) bool {
	first := &group[0].Entry
	return !slices.ContainsFunc(group[1:], func(i *item) bool {
		e := &i.Entry
		return e.Topic != first.Topic || e.Partition != first.Partition ||
			e.Partition == entry.NoPartition && (e.Key == nil || !bytes.Equal(e.Key, first.Key))
	})
}

// overtaken reports whether an item waits for its partition while a later one of its group was
// published. This happens if the number of partitions of the topic has changed meanwhile.
func overtaken(items []*item) bool {
	wait := make(map[entry.Group]bool)
	for _, i := range items {
		switch {
		case i.outcome == waiting:
			wait[i.group] = true
		case i.outcome == published && wait[i.group]:
			return true
		}
	}
	return false
}

// identify gets the producer id of the transaction.
func (c *connection) identify() error {
	client := c.client
	return c.during(context.Background(), c.shared.opt.Batch.Time, func(ctx context.Context) error {
		id, epoch, err := client.ProducerID(ctx)
		if err != nil {
			return fmt.Errorf("hapax: outbox: getting the producer id of a transaction: %w", err)
		}
		c.progress.by = producerID{id, epoch}
		return nil
	})
}

// holdSilent fails the items in flight. It holds their partitions if these are silent.
func (c *connection) holdSilent(b *sending) {
	partitions := make(map[partition]struct{})
	for i, f := range b.flying { // the time of the batch is over
		i.outcome, i.err = failed, errBatchTime
		if b.silent {
			i.err = errSilent
			partitions[f.partition()] = struct{}{}
		}
	}
	c.holdForATime(partitions)
}

// abort ends a transaction in which an item has failed. The other items must be published again.
func (c *connection) abort(items []*item, record *item, answered bool) error {
	denied := func(i *item) bool { return i.outcome == failed && errors.Is(i.err, kerr.TopicAuthorizationFailed) }
	broken := denied(record) || slices.ContainsFunc(items, denied) // the client may begin no other transaction
	if broken {
		if err := c.spare(items); err != nil {
			c.abandon()
			return err
		}
	}
	failures := 0
	for _, i := range items {
		switch i.outcome {
		case failed:
			failures++
		case published:
			i.outcome = aborted
		}
	}
	if !answered || broken {
		c.abandon() // its transaction ends when the client is made again
	} else if err := c.end(kgo.TryAbort); err != nil {
		c.abandon()
	}
	if failures == 0 && record.outcome == failed {
		c.abandon()
		return fmt.Errorf("%w: publishing to it: %w", ErrProgressTopic, record.err)
	}
	return nil
}

// end ends the transaction. If its context ended, the outcome would be unknown, and also if a
// broker does not answer within Batch.Time: then the client is closed.
func (c *connection) end(how kgo.TransactionEndTry) error {
	client := c.client
	return c.during(context.Background(), c.shared.opt.Batch.Time, func(context.Context) error {
		return client.EndTransaction(context.Background(), how)
	})
}
