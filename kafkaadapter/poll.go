package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
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
		fetches := c.client.PollRecords(ctx, 2*c.queueLimit())
		if fetches.IsClientClosed() {
			return
		}
		c.dispatch(ctx, fetches)
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
	case f.Err != nil:
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
	only := map[string][]int32{tp.topic: {tp.partition}}
	c.client.PauseFetchPartitions(only)
	c.drain([]*partition{p}, c.opt.DrainTimeout) // what was fetched before is judged to the end of its batch
	views, err := c.views(ctx, map[string]map[int32]kgo.Offset{tp.topic: {tp.partition: {}}})
	if err != nil {
		c.stop(tp, reasonOf(err), fmt.Errorf("%w; looking it up: %w", cause, err))
		return
	}
	v := views[0]
	v.committed = nil // it was agreed on when the partition was assigned
	if errors.Is(cause, kerr.UnknownTopicID) && (v.topicID == p.topicID || c.opt.Positions.Recreated != Stop) ||
		v.topicID != p.topicID && c.opt.Positions.Recreated != Stop {
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
		c.client.ResumeFetchPartitions(only)
	}
}

func reasonOf(err error) string {
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return "topic_gone"
	}
	return "position"
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
