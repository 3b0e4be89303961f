package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
)

// pauseAfter is how long the poll loop waits for a full queue before it stops fetching that partition. A pause throws
// away what the client has fetched, and its end is seen by the fetch after the one that is under way, so that pauses are
// for partitions that are stuck or slow, not for those that keep the machine busy. A partition that took longer than
// this to empty its queue is paused at once the next time.
const pauseAfter = time.Second

// pollLoop hands what is fetched to the partitions' workers until ctx ends. It lets the group rebalance between any two
// polls: workers are drained by the callbacks.
func (c *Consumer) pollLoop(ctx context.Context) {
	defer c.client.AllowRebalance()
	for ctx.Err() == nil {
		c.waitForRoom(ctx)
		until, cancel := context.WithTimeout(ctx, c.lookEvery())
		fetches := c.client.PollFetches(until)
		cancel()
		if fetches.IsClientClosed() {
			return
		}
		c.dispatch(ctx, fetches)
		c.lookAgain(ctx)
		c.client.AllowRebalance()
	}
}

// queueLimit is the number of fetched records with which a partition's worker has enough to do.
func (c *Consumer) queueLimit() int { return max(4*c.opt.MaxBatch, 512) }

func (c *Consumer) dispatch(ctx context.Context, fetches kgo.Fetches) {
	for i := range fetches {
		for j := range fetches[i].Topics {
			t := &fetches[i].Topics[j]
			for k := range t.Partitions {
				c.deliver(ctx, t, &t.Partitions[k])
			}
		}
	}
}

func (c *Consumer) deliver(ctx context.Context, t *kgo.FetchTopic, f *kgo.FetchPartition) {
	tp := topicPartition{t.Topic, f.Partition}
	p := c.partition(tp)
	switch {
	case f.Err != nil && (ctx.Err() != nil || errors.Is(f.Err, context.Canceled)):
	case f.Err != nil && t.Topic == "" && errors.Is(f.Err, context.DeadlineExceeded): // time to look again
	case f.Err != nil:
		if p != nil && len(f.Records) > 0 { // they came before the error, and do not come again
			p.push(f.Records, -1)
		}
		c.fetchFailed(ctx, tp, f.Err)
	case p == nil: // stopped, or given away since it was fetched
	case t.TopicID != [16]byte{} && p.topicID != [16]byte{} && t.TopicID != p.topicID:
		c.reposition(ctx, tp, fmt.Errorf("records of another topic of that name: %w", ErrRecreated))
	default:
		p.push(f.Records, f.LastStableOffset)
	}
}

// waitForRoom waits while a worker has enough to do; a partition that stays full is paused.
func (c *Consumer) waitForRoom(ctx context.Context) {
	for began := time.Now(); ctx.Err() == nil; {
		var full []*partition
		for _, p := range c.partitions() {
			if !p.room() {
				full = append(full, p)
			}
		}
		if len(full) == 0 {
			return
		}
		waited := time.Since(began) > pauseAfter
		for _, p := range full {
			if waited || p.isSlow() {
				p.pause()
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// fetchFailed sorts an error of the client: those that it mends itself are logged; the others stop the partition or
// end Run.
func (c *Consumer) fetchFailed(ctx context.Context, tp topicPartition, err error) {
	var loss *kgo.ErrDataLoss
	var session *kgo.ErrGroupSession
	switch {
	case errors.As(err, &loss):
		c.reposition(ctx, tp, fmt.Errorf("%w: %w", ErrLogDiverged, err))
	case errors.Is(err, kerr.OffsetOutOfRange), errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.InconsistentTopicID):
		c.reposition(ctx, tp, err)
	case errors.Is(err, kerr.FencedInstanceID):
		c.fail(fmt.Errorf("hapax: another consumer runs with the same Options.InstanceID %q: %w", c.opt.InstanceID, err))
	case errors.Is(err, kerr.GroupAuthorizationFailed), errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.UnsupportedVersion):
		c.fail(fmt.Errorf("hapax: the broker refuses this consumer: %w", err))
	case errors.As(err, &session):
		c.opt.Logger.Warn("the group session ended and is begun again", "group", c.opt.Group, "error", err)
	case tp.topic != "" && !errors.As(err, new(*kerr.Error)):
		c.unreadable(tp, err)
	default:
		c.opt.Logger.Warn("fetching failed; the client tries again", "topic", tp.topic, "partition", tp.partition, "error", err)
	}
	c.m.fetchErrors.WithLabelValues(tp.topic).Inc()
}

// reposition looks again at a partition whose position does not hold any more, while it is assigned: it goes on by the
// way on that is configured, or stops.
func (c *Consumer) reposition(ctx context.Context, tp topicPartition, cause error) {
	p := c.remove(tp)
	if p == nil {
		return
	}
	c.client.PauseFetchPartitions(map[string][]int32{tp.topic: {tp.partition}})
	c.drain([]*partition{p}, c.opt.DrainTimeout) // what was fetched before is judged to the end of its batch
	c.takeUp(ctx, tp, p.topicID, cause, func(err error) bool {
		return kerr.IsRetriable(err) && !errors.Is(err, kerr.UnknownTopicOrPartition) // the client has waited long enough
	})
}

// takeUp looks a paused partition up and goes on with it where the store is, or where the way on that is configured
// leads. topicID is the topic that the client reads under that name.
func (c *Consumer) takeUp(ctx context.Context, tp topicPartition, topicID [16]byte, cause error, passes func(error) bool) {
	offsets := map[string]map[int32]kgo.Offset{tp.topic: {tp.partition: {}}}
	views, err := c.views(ctx, offsets, passes)
	if err == nil {
		err = views[0].err
	}
	switch {
	case errors.Is(err, engine.ErrStopped), errors.Is(err, engine.ErrClosed):
		c.fail(err)
		return
	case err != nil:
		c.stopForNow(tp, reasonOf(err), fmt.Errorf("%w; looking it up: %w", cause, err), topicID)
		return
	}
	v := views[0]
	v.committed = nil // it was agreed on when the partition was assigned
	if errors.Is(cause, kerr.UnknownTopicID) && (v.topicID == topicID || c.opt.Positions.Recreated != Stop) ||
		v.topicID != topicID && c.opt.Positions.Recreated != Stop {
		c.rejoin(tp.topic)
		return
	}
	b, err := c.begin(ctx, v)
	switch {
	case errors.As(err, new(*PositionError)):
		c.stop(tp, "position", err)
	case err != nil:
		c.fail(err)
	default:
		c.client.SetOffsets(map[string]map[int32]kgo.EpochOffset{tp.topic: {tp.partition: {Epoch: -1, Offset: b.offset}}})
		c.client.ResumeFetchPartitions(map[string][]int32{tp.topic: {tp.partition}})
	}
}

// unreadable stops a partition whose data the client cannot read. The client may go on behind it: so nothing more is
// taken from it, and the partition is read again from the store's position later.
func (c *Consumer) unreadable(tp topicPartition, cause error) {
	p := c.remove(tp)
	if p == nil {
		return
	}
	c.client.PauseFetchPartitions(map[string][]int32{tp.topic: {tp.partition}})
	c.drain([]*partition{p}, c.opt.DrainTimeout)
	c.stopForNow(tp, "unreadable", cause, p.topicID)
}

func reasonOf(err error) string {
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return "topic_gone"
	}
	return "unreachable"
}

// rejoin makes the client forget a topic and find it again: it keeps asking for a topic that was created again by its
// old id. The partitions are assigned anew then. It must not wait for the poll loop, whose call it may be under.
func (c *Consumer) rejoin(topic string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rejoining[topic] {
		return
	}
	c.rejoining[topic] = true
	c.behind.Go(func() {
		c.client.PurgeTopicsFromConsuming(topic)
		c.client.AddConsumeTopics(topic)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.rejoining, topic)
	})
}

// halt stops a partition from its own worker.
func (c *Consumer) halt(tp topicPartition, reason string, err error) {
	c.client.PauseFetchPartitions(map[string][]int32{tp.topic: {tp.partition}})
	c.stop(tp, reason, err)
}
