package outbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/entry"
)

// A producer is the part of a Kafka client that publishes.
type producer interface {
	// Produce publishes a record. promise is called once, with nil when the broker has acknowledged
	// it.
	Produce(ctx context.Context, r *kgo.Record, promise func(*kgo.Record, error))
	Close()
}

var errBatchTime = errors.New("outbox: the broker did not acknowledge it within Batch.Time")

// refusals are the broker's errors that are about a message or its topic.
var refusals = []error{
	kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.PolicyViolation,
	kerr.CorruptMessage, kerr.UnsupportedForMessageFormat, kerr.UnsupportedCompressionType,
	kerr.InvalidTopicException, kerr.TopicAuthorizationFailed,
	kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, // the client has retried
}

// outages are errors of the client that say nothing about a message.
var outages = []error{
	errBatchTime, context.Canceled, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
	kgo.ErrClientClosed, kgo.ErrAborting, kgo.ErrMaxBuffered, kgo.ErrRecordTimeout, kgo.ErrRecordRetries,
}

// refused reports whether an error is about the message, and not about an unreachable broker.
func refused(err error) bool {
	is := func(target error) bool { return errors.Is(err, target) }
	var (
		broker  *kerr.Error
		network net.Error
		eof     *kgo.ErrFirstReadEOF
		loss    *kgo.ErrDataLoss
	)
	switch {
	case errors.As(err, &broker):
		return slices.ContainsFunc(refusals, is)
	case errors.As(err, &network), errors.As(err, &eof), errors.As(err, &loss):
		return false
	}
	return !slices.ContainsFunc(outages, is)
}

// record makes the Kafka record of an item. Its timestamp is the time at which the message was
// produced into the outbox, so that both copies of a record that is published twice have the same
// one.
func (i *item) record(idHeader string) *kgo.Record {
	headers := make([]kgo.RecordHeader, 0, len(i.Headers)+1)
	for _, h := range i.Headers {
		headers = append(headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	headers = append(headers, kgo.RecordHeader{Key: idHeader, Value: []byte(i.ID)})
	return &kgo.Record{
		Topic: i.Topic, Partition: i.Partition, Key: i.Key, Value: i.Value, Headers: headers, Timestamp: time.UnixMilli(i.Created),
	}
}

// partitioner publishes to the partition that a record names, and leaves other records to another
// partitioner.
type partitioner struct{ keyed kgo.Partitioner }

func newPartitioner() kgo.Partitioner { return partitioner{kgo.StickyKeyPartitioner(nil)} }

func (p partitioner) ForTopic(topic string) kgo.TopicPartitioner {
	return topicPartitioner{p.keyed.ForTopic(topic)}
}

type topicPartitioner struct{ kgo.TopicPartitioner }

func (p topicPartitioner) RequiresConsistency(r *kgo.Record) bool {
	return r.Partition != entry.NoPartition || p.TopicPartitioner.RequiresConsistency(r)
}

func (p topicPartitioner) Partition(r *kgo.Record, n int) int {
	if r.Partition != entry.NoPartition {
		return int(r.Partition)
	}
	return p.TopicPartitioner.Partition(r, n)
}

// OnNewBatch implements [kgo.TopicPartitionerOnNewBatch] for the partitioner that it embeds.
func (p topicPartitioner) OnNewBatch() {
	if on, ok := p.TopicPartitioner.(kgo.TopicPartitionerOnNewBatch); ok {
		on.OnNewBatch()
	}
}

// A sending is a batch on its way to the broker. Of each group, one item at a time is in flight,
// unless all succeed or fail together: a later item never overtakes an earlier one that fails.
type sending struct {
	s       *session
	client  producer
	results chan result
	flying  map[*item]struct{}
	behind  map[entry.Group][]*item // items that wait for the one in flight
	started time.Time
}

type result struct {
	item   *item
	offset int64
	err    error
}

func newSending(s *session, n int) *sending {
	return &sending{
		s: s, client: s.client, results: make(chan result, n), flying: make(map[*item]struct{}, n),
		behind: make(map[entry.Group][]*item), started: s.opt.Clock.Now(),
	}
}

// publish publishes the items of a batch one by one. An error means that the lease is lost or the
// store has failed: the outcome of the messages in flight is then unknown.
func (s *session) publish(items []*item) error {
	if err := s.connect(); err != nil {
		return err
	}
	b := newSending(s, len(items))
	inFlight := make(map[entry.Group]struct{}, len(items))
	for _, i := range items {
		if _, wait := inFlight[i.group]; wait {
			b.behind[i.group] = append(b.behind[i.group], i)
			continue
		}
		inFlight[i.group] = struct{}{}
		b.start(i)
	}
	if err := b.await(b.finish); err != nil {
		s.abandon()
		return err
	}
	for i := range b.flying { // the time of the batch is over
		i.outcome, i.err = failed, errBatchTime
	}
	if len(b.flying) > 0 {
		s.abandon()
	}
	return nil
}

// start sends an item, unless the send could outlast the lease.
func (b *sending) start(i *item) {
	left := b.s.opt.Batch.Time - b.s.opt.Clock.Now().Sub(b.started)
	if left <= 0 || !b.s.lease.covers(left) {
		return
	}
	b.flying[i] = struct{}{}
	b.client.Produce(context.Background(), i.record(b.s.opt.IDHeader), func(r *kgo.Record, err error) {
		b.results <- result{i, r.Offset, err} // it has capacity for all
	})
}

func (b *sending) finish(r result) {
	delete(b.flying, r.item)
	r.item.offset = r.offset
	if r.err != nil {
		r.item.outcome, r.item.err = failed, r.err
		return
	}
	r.item.outcome = published
	if behind := b.behind[r.item.group]; len(behind) > 0 {
		b.behind[r.item.group] = behind[1:]
		b.start(behind[0])
	}
}

// await calls each for the results of the items in flight, until there are none, or the time of the
// batch is over. It renews the lease meanwhile and ends with an error if that fails.
func (b *sending) await(each func(result)) error {
	over, stopOver := b.s.opt.Clock.After(b.s.opt.Batch.Time - b.s.opt.Clock.Now().Sub(b.started))
	defer stopOver()
	renew, stopRenew := b.s.opt.Clock.After(b.s.lease.untilRenewal())
	defer func() { stopRenew() }()
	for len(b.flying) > 0 {
		select {
		case r := <-b.results:
			each(r)
		case <-over:
			return nil
		case <-renew:
			if err := b.s.lease.ensure(b.s.eng, 0); err != nil {
				return fmt.Errorf("outbox: renewing the lease during a batch: %w", err)
			}
			stopRenew()
			renew, stopRenew = b.s.opt.Clock.After(b.s.lease.untilRenewal())
		}
	}
	return nil
}
