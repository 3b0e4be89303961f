package brokers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Timestamps in ListOffsets that stand for a log's start and end.
const (
	logStart = -2
	logEnd   = -1
)

// Isolation levels of ListOffsets and Fetch.
const (
	readUncommitted int8 = 0
	readCommitted   int8 = 1
)

// A Log is what the leader of a partition reports about it.
type Log struct {
	AsOf   time.Time // the brokers had the offsets then or later
	Start  int64
	End    int64 // the high watermark
	Stable int64 // the last stable offset
	// EpochEnd is the end offset of the epoch that was asked for, -1 if the leader does not know it.
	EpochEnd int64
	// Epoch is that of the leader, -1 if it does not say it.
	Epoch int32
}

type logQuestion struct {
	of       Partition
	epoch    int32 // -1: none
	endsOnly bool
}

// Log returns the bounds of a partition's log, and the end of a leader epoch if epoch is not
// negative. The topic tells who leads the partition.
func (c *Client) Log(ctx context.Context, t *Topic, p Partition, epoch int32) (Log, error) {
	l, there := t.leaders[p.Partition]
	if !there {
		l.err = kerr.UnknownTopicOrPartition
	}
	var found Log
	err := l.err
	if err == nil {
		found, err = c.led(l.broker).Ask(ctx, logQuestion{p, epoch, false}, func(batch []*Question[logQuestion, Log]) { c.askLogs(l.broker, batch) })
	}
	if err != nil {
		return found, fmt.Errorf("looking up the log of %s/%d: %w", p.Topic, p.Partition, err)
	}
	return found, nil
}

// led returns the questions to a broker.
func (c *Client) led(broker int32) *Batcher[logQuestion, Log] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaders[broker] == nil {
		c.leaders[broker] = &Batcher[logQuestion, Log]{}
	}
	return c.leaders[broker]
}

// Ends calls report with the ends of the logs of partitions; the start is not asked for. A broker
// that does not answer delays only its own. Concurrent calls of report are possible. The error is
// that of some partitions, nil if all were reported.
func (c *Client) Ends(ctx context.Context, all []Partition, report func(Partition, Log)) error {
	topics := make(map[string]*Topic)
	var errs []error
	each := make(map[int32][]*Question[logQuestion, Log])
	for _, p := range all {
		t, asked := topics[p.Topic]
		if !asked {
			var err error
			if t, err = c.Topic(ctx, p.Topic); err != nil {
				errs = append(errs, err)
			}
			topics[p.Topic] = t
		}
		if t == nil {
			continue
		}
		if l, there := t.leaders[p.Partition]; there && l.err == nil {
			each[l.broker] = append(each[l.broker], &Question[logQuestion, Log]{Ask: logQuestion{p, -1, true}})
		}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for broker, batch := range each {
		wg.Go(func() {
			c.askLogs(broker, batch)
			var failed error
			for _, q := range batch {
				if q.Err == nil {
					report(q.Ask.of, q.Answer)
				} else {
					failed = fmt.Errorf("looking up the log of %s/%d: %w", q.Ask.of.Topic, q.Ask.of.Partition, q.Err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, failed)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// askLogs answers a batch: a request names a partition once.
func (c *Client) askLogs(broker int32, batch []*Question[logQuestion, Log]) {
	for len(batch) > 0 {
		var rest []*Question[logQuestion, Log]
		once := make(logBatch, len(batch))
		for _, q := range batch {
			if once[q.Ask.of] != nil {
				rest = append(rest, q)
				continue
			}
			once[q.Ask.of] = q
		}
		c.askOnce(broker, once)
		batch = rest
	}
}

// A logBatch has the questions of a batch, each partition once.
type logBatch map[Partition]*Question[logQuestion, Log]

// failures are the errors of partitions.
type failures map[Partition]error

// askOnce sends the requests of a batch, at the same time.
func (c *Client) askOnce(broker int32, batch logBatch) {
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	began := time.Now()
	whole := make(logBatch, len(batch))
	for p, q := range batch {
		q.Answer = Log{AsOf: began, EpochEnd: -1, Epoch: -1}
		if !q.Ask.endsOnly {
			whole[p] = q
		}
	}
	list := func(batch logBatch, at int64, isolation int8, field func(*Log) *int64) func() failures {
		return func() failures { return c.listOffsets(ctx, broker, batch, at, isolation, field) }
	}
	requests := []func() failures{
		list(whole, logStart, readUncommitted, func(l *Log) *int64 { return &l.Start }),
		list(batch, logEnd, readUncommitted, func(l *Log) *int64 { return &l.End }),
		list(batch, logEnd, readCommitted, func(l *Log) *int64 { return &l.Stable }),
		func() failures { return c.epochEnds(ctx, broker, whole) },
	}
	failed := make([]failures, len(requests))
	var wg sync.WaitGroup
	for i, send := range requests {
		wg.Go(func() { failed[i] = send() })
	}
	wg.Wait()
	for _, errs := range failed {
		for p, err := range errs {
			batch[p].Err = err
		}
	}
}

// all returns the error for each partition of a batch.
func (b logBatch) all(err error) failures {
	failed := make(failures, len(b))
	for p := range b {
		failed[p] = err
	}
	return failed
}

// byTopic returns the partitions of a batch.
func (b logBatch) byTopic() map[string][]*Question[logQuestion, Log] {
	topics := make(map[string][]*Question[logQuestion, Log])
	for p, q := range b {
		topics[p.Topic] = append(topics[p.Topic], q)
	}
	return topics
}

// listOffsets requests one offset of each log, and stores it in a field of the answers.
func (c *Client) listOffsets(ctx context.Context, broker int32, batch logBatch, at int64, isolation int8, field func(*Log) *int64) failures {
	if len(batch) == 0 {
		return nil
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.IsolationLevel = isolation
	for topic, questions := range batch.byTopic() {
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic = topic
		for _, q := range questions {
			p := kmsg.NewListOffsetsRequestTopicPartition()
			p.Partition, p.Timestamp = q.Ask.of.Partition, at
			t.Partitions = append(t.Partitions, p)
		}
		req.Topics = append(req.Topics, t)
	}
	resp, err := c.kafka.Broker(int(broker)).Request(ctx, req)
	if err != nil {
		return batch.all(noAnswer(ctx, err))
	}
	failed := batch.all(kerr.UnknownTopicOrPartition)
	for _, t := range resp.(*kmsg.ListOffsetsResponse).Topics {
		for _, rp := range t.Partitions {
			p := Partition{t.Topic, rp.Partition}
			if q := batch[p]; q == nil {
				continue
			} else if err := kerr.ErrorForCode(rp.ErrorCode); err != nil {
				failed[p] = err
			} else {
				delete(failed, p)
				*field(&q.Answer) = rp.Offset
				if at == logEnd && isolation == readUncommitted {
					q.Answer.Epoch = rp.LeaderEpoch
				}
			}
		}
	}
	return failed
}

// epochEnds requests the ends of leader epochs. If the store has read further than one, the log no
// longer has some of the records that were read.
func (c *Client) epochEnds(ctx context.Context, broker int32, batch logBatch) failures {
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	asked := make(logBatch)
	for topic, questions := range batch.byTopic() {
		t := kmsg.NewOffsetForLeaderEpochRequestTopic()
		t.Topic = topic
		for _, q := range questions {
			if q.Ask.epoch >= 0 {
				asked[q.Ask.of] = q
				p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
				p.Partition, p.LeaderEpoch = q.Ask.of.Partition, q.Ask.epoch
				t.Partitions = append(t.Partitions, p)
			}
		}
		if len(t.Partitions) > 0 {
			req.Topics = append(req.Topics, t)
		}
	}
	if len(asked) == 0 {
		return nil
	}
	resp, err := c.kafka.Broker(int(broker)).Request(ctx, req)
	if err != nil {
		return asked.all(noAnswer(ctx, err))
	}
	failed := make(failures)
	for _, t := range resp.(*kmsg.OffsetForLeaderEpochResponse).Topics {
		for _, rp := range t.Partitions {
			p := Partition{t.Topic, rp.Partition}
			if q := asked[p]; q == nil {
				continue
			} else if err := kerr.ErrorForCode(rp.ErrorCode); err == nil {
				q.Answer.EpochEnd = rp.EndOffset
			} else if kerr.IsRetriable(err) { // otherwise the broker does not know the epoch
				failed[p] = err
			}
		}
	}
	return failed
}

// noAnswer is the error of a request that a broker has not answered. Another broker may lead the
// partitions by then, unless the limit of time is used up.
func noAnswer(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return unanswered{err}
}
