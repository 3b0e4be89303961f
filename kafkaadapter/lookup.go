package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/engine"
)

// lookUpTime bounds one look at the brokers.
const lookUpTime = 5 * time.Second

// The timestamps of ListOffsets that stand for a log's start and end.
const (
	logStart = -2
	logEnd   = -1
)

// lookUp asks the brokers for what takeOver needs. The partition is paused meanwhile, and its queue
// is closed.
func (p *partition) lookUp() state {
	p.queue.close()
	p.taken = nil
	if !p.mayClaim() {
		return failingOpen
	}
	l, _ := p.c.links.get()
	p.attach(l)
	p.open.Store(false)
	if before := p.before.Load(); before != nil {
		if before.link.Load() == l { // another one is of a store that has failed: nothing is committed there any more
			if err := before.fence.release(); err != nil {
				return p.failed(err)
			}
		}
		p.before.Store(nil)
	}
	v, err := p.ask(l)
	switch {
	case p.isEnding():
		return ended
	case errors.Is(err, engine.ErrStopped), errors.Is(err, engine.ErrClosed):
		return p.failed(err)
	case err != nil && p.cause != nil:
		return p.stopForNow(reasonOf(err), fmt.Errorf("%w; looking it up: %w", p.cause, err), lookingUp)
	case err != nil:
		return p.stopForNow(reasonOf(err), err, lookingUp)
	case p.readsAnotherTopic(v):
		p.c.forget(p)
		if !p.wait(p.retries.NextBackOff()) {
			return ended
		}
		return lookingUp
	}
	p.view = v
	return takingOver
}

// readsAnotherTopic reports whether the client has to forget the topic before the partition can be
// read: it keeps asking for a topic that was created again by the id of the old one.
func (p *partition) readsAnotherTopic(v *view) bool {
	follow := p.recovery().Recreated != Stop
	return errors.Is(p.cause, kerr.UnknownTopicID) && (v.topicID == p.topicID || follow) ||
		p.opened && v.topicID != p.topicID && follow
}

// reasonOf names the reason why a partition cannot be looked up.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return "topic_gone"
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return "unauthorized"
	}
	return "unreachable"
}

// ask looks the partition up, in the store and at the brokers; without a link it takes what is
// known of the store. It asks again for a while if the error may pass soon: leaders may be moving.
func (p *partition) ask(l *link) (v *view, err error) {
	ctx, cancel := context.WithTimeout(p.ending, lookUpTime)
	defer cancel()
	for pause := 50 * time.Millisecond; ; pause *= 2 {
		v, err = p.askOnce(ctx, l)
		gone := p.opened && errors.Is(err, kerr.UnknownTopicOrPartition) // the client has waited long enough
		if err == nil || gone || !kerr.IsRetriable(err) || pause > time.Second {
			return v, err
		}
		select {
		case <-ctx.Done():
			return v, err
		case <-time.After(pause):
		}
	}
}

func (p *partition) askOnce(ctx context.Context, l *link) (*view, error) {
	topic, partition := p.pos.Topic, p.pos.Partition
	v := &view{topic: topic, partition: partition, committed: p.offsets.known(), epochEnd: -1}
	var o engine.Offset
	var found bool
	var err error
	if l != nil {
		v.id = l.id
		o, found, err = l.eng.Offset(ctx, p.pos)
	} else {
		o, found = p.withoutStore(v)
	}
	if err != nil {
		return nil, err
	}
	if v.topicID, v.partitions, err = p.c.topic(ctx, topic, p.opened); err != nil {
		return nil, err
	}
	if v.start, err = p.c.listOffset(ctx, topic, partition, logStart, readUncommitted); err != nil {
		return nil, err
	}
	if v.end, err = p.c.listOffset(ctx, topic, partition, logEnd, readUncommitted); err != nil {
		return nil, err
	}
	stable, err := p.c.listOffset(ctx, topic, partition, logEnd, readCommitted)
	if err != nil {
		return nil, err
	}
	p.ends.tell(v.end, stable)
	if found {
		p.offsets.saw(o.Next)
	}
	if found && o.LeaderEpoch >= 0 {
		v.epochEnd, err = p.c.epochEnd(ctx, topic, partition, o.LeaderEpoch)
	}
	return v, err
}

// topic returns the id of a topic and the number of its partitions. Partitions that are looked up
// at one time share an answer, which is at most a second old; fresh asks for a new one.
func (c *Consumer) topic(ctx context.Context, topic string, fresh bool) (id [16]byte, partitions int32, err error) {
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &topic
	req.Topics = append(req.Topics, t)
	age := time.Second
	if fresh {
		age = time.Millisecond
	}
	resp, err := c.client.RequestCachedMetadata(ctx, req, age)
	if err == nil {
		err = kerr.UnknownTopicOrPartition
		for i := range resp.Topics {
			if rt := &resp.Topics[i]; rt.Topic != nil && *rt.Topic == topic {
				id, partitions, err = rt.TopicID, int32(len(rt.Partitions)), kerr.ErrorForCode(rt.ErrorCode)
			}
		}
	}
	if err != nil {
		return id, 0, fmt.Errorf("looking up topic %s: %w", topic, err)
	}
	return id, partitions, nil
}

// Isolation levels of ListOffsets and Fetch.
const (
	readUncommitted int8 = 0
	readCommitted   int8 = 1
)

// listOffset asks the partition's leader for the log's start, its end (the high watermark), or with
// readCommitted its last stable offset.
func (c *Consumer) listOffset(ctx context.Context, topic string, partition int32, at int64, isolation int8) (int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.IsolationLevel = isolation
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	q := kmsg.NewListOffsetsRequestTopicPartition()
	q.Partition, q.Timestamp = partition, at
	t.Partitions = append(t.Partitions, q)
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, c.client)
	if err == nil {
		err = kerr.UnknownTopicOrPartition
		for i := range resp.Topics {
			for _, rp := range resp.Topics[i].Partitions {
				if rp.Partition == partition {
					if err = kerr.ErrorForCode(rp.ErrorCode); err == nil {
						return rp.Offset, nil
					}
				}
			}
		}
	}
	return 0, fmt.Errorf("looking up where the log of %s/%d starts and ends: %w", topic, partition, err)
}

// epochEnd returns where a leader epoch ends: if the store has read further, the log no longer has
// what was read. -1 if the broker does not know.
func (c *Consumer) epochEnd(ctx context.Context, topic string, partition, epoch int32) (int64, error) {
	req := make(kadm.OffsetForLeaderEpochRequest)
	req.Add(topic, partition, epoch)
	ends, err := c.admin.OffsetForLeaderEpoch(ctx, req)
	e, ok := ends[topic][partition]
	switch {
	case !ok && err != nil:
		return -1, fmt.Errorf("looking up leader epochs: %w", err)
	case !ok, e.Err != nil && !kerr.IsRetriable(e.Err): // a broker that cannot tell
		return -1, nil
	case e.Err != nil:
		return -1, fmt.Errorf("looking up leader epochs: %s/%d: %w", topic, partition, e.Err)
	}
	return e.EndOffset, nil
}
