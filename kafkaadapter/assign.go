package kafkaadapter

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/engine"
)

// An assigner is what the client calls while it makes an assignment, one call after the other.
type assigner struct {
	c         *Consumer
	committed map[topicPartition]*commit // as fetched for the assignment that is being made
}

// offsetsFetched keeps the group's commits. The client calls it right before adjust.
func (a *assigner) offsetsFetched(_ context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	a.committed = make(map[topicPartition]*commit)
	keep := func(topic string, partition int32, offset int64, epoch int32, metadata *string) {
		if offset < 0 {
			return
		}
		k := &commit{offset: offset, epoch: epoch}
		if metadata != nil {
			k.metadata = *metadata
		}
		a.committed[topicPartition{topic, partition}] = k
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			keep(t.Topic, p.Partition, p.Offset, p.LeaderEpoch, p.Metadata)
		}
	}
	for _, g := range resp.Groups {
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				keep(t.Topic, p.Partition, p.Offset, p.LeaderEpoch, p.Metadata)
			}
		}
	}
	return nil
}

// adjust replaces the offsets that the group committed by those of the store, and pauses the
// partitions. It asks no broker and does not wait for a store that hangs: each partition's
// goroutine compares, seeks and resumes.
func (a *assigner) adjust(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	c := a.c
	if c.closing.Load() {
		return nil, errors.New("hapax: the consumer is shutting down")
	}
	var all []topicPartition
	for topic, partitions := range offsets {
		for partition := range partitions {
			all = append(all, topicPartition{topic, partition})
		}
	}
	stored := c.stored(ctx, all)
	for _, tp := range all {
		p := newPartition(c, tp, a.committed[tp], stored[tp])
		c.client.PauseFetchPartitions(p.only())
		// Without an epoch: the client would go on by itself where the log diverged. See
		// view.epochEnd.
		offsets[tp.topic][tp.partition] = kgo.NewOffset().At(p.fetchAt).WithEpoch(-1)
		c.begin(p)
	}
	return offsets, nil
}

// storeTime bounds the look at the store while an assignment is made.
const storeTime = time.Second

// stored returns the store's offsets, as many as it has told in time. The others are sought later.
func (c *Consumer) stored(ctx context.Context, all []topicPartition) map[topicPartition]int64 {
	l, away := c.links.get()
	if away != nil {
		return nil
	}
	read := make(chan map[topicPartition]int64, 1)
	go func() {
		found := make(map[topicPartition]int64, len(all))
		for _, tp := range all {
			o, ok, err := l.eng.Offset(ctx, engine.Position{Group: c.opt.Group, Topic: tp.topic, Partition: tp.partition})
			if err != nil {
				break // the goroutines meet it too
			}
			if ok {
				found[tp] = o.Next
			}
		}
		read <- found
	}()
	select {
	case found := <-read:
		return found
	case <-time.After(storeTime):
	case <-ctx.Done():
	}
	return nil
}

// begin starts the goroutine of an assignment. One of the same partition that was not taken away is
// fenced: the session was left before its end.
func (c *Consumer) begin(p *partition) {
	c.mu.Lock()
	before := c.parts[p.tp()]
	p.before.Store(before)
	c.parts[p.tp()] = p
	c.mu.Unlock()
	if before != nil {
		before.cancel(ErrFenced)
	}
	c.share()
	go p.live()
}

// assigned is called after each rebalance, before the new partitions are read.
func (c *Consumer) assigned(added map[string][]int32) {
	c.health.joined.Store(true)
	if c.opt.Hooks.OnAssigned != nil {
		c.opt.Hooks.OnAssigned(added)
	}
}

// revoked gives partitions away: the batch that runs may end, for a bounded time; after it nothing
// of them commits.
func (c *Consumer) revoked(lost map[string][]int32) {
	if all := c.removeAll(lost); len(all) > 0 {
		c.drain(all, c.opt.Timeouts.Drain)
	}
	if c.opt.Hooks.OnRevoked != nil && len(lost) > 0 {
		c.opt.Hooks.OnRevoked(lost)
	}
}

// callRevoked tells the application about pinned partitions that end with Run. For those of a
// member the client does.
func (c *Consumer) callRevoked(all []*partition) {
	if c.opt.Hooks.OnRevoked == nil || len(all) == 0 {
		return
	}
	revoked := make(map[string][]int32)
	for _, p := range all {
		revoked[p.pos.Topic] = append(revoked[p.pos.Topic], p.pos.Partition)
	}
	c.opt.Hooks.OnRevoked(revoked)
}

// lost drops the work on partitions that already belong to another member.
func (c *Consumer) lost(lost map[string][]int32) {
	c.health.joined.Store(false)
	if c.opt.Hooks.OnLost != nil && len(lost) > 0 {
		defer c.opt.Hooks.OnLost(lost)
	}
	all := c.removeAll(lost)
	if len(all) == 0 {
		return
	}
	c.opt.Telemetry.Logger.Warn("partitions were lost; what ran for them is dropped", "group", c.opt.Group, "partitions", len(all),
		"hint", "the member was too slow to answer the group: look at handler times, Options.Timeouts.Drain and the session timeout")
	c.drain(all, 0)
}

func (c *Consumer) removeAll(lost map[string][]int32) (all []*partition) {
	c.mu.Lock()
	for topic, partitions := range lost {
		for _, partition := range partitions {
			tp := topicPartition{topic, partition}
			if p := c.parts[tp]; p != nil {
				all = append(all, p)
				delete(c.parts, tp)
			}
		}
	}
	c.mu.Unlock()
	c.share()
	return all
}

// drain ends assignments: their goroutines finish the batch that runs, and their offsets are
// committed to Kafka, all within the timeout. After it returned nothing of them commits to the
// store. It returns how many were cut off.
func (c *Consumer) drain(all []*partition, timeout time.Duration) int {
	var cut atomic.Int64
	var wg sync.WaitGroup
	for _, p := range all {
		p.end()
	}
	handlers := timeout - min(timeout/4, fenceTime) // the rest is for the fence and the commit
	over := make(chan struct{})
	timer := time.AfterFunc(handlers, func() { close(over) })
	defer timer.Stop()
	for _, p := range all {
		wg.Go(func() {
			if !p.finish(over, handlers) {
				cut.Add(1)
			}
		})
	}
	began := time.Now()
	wg.Wait()
	if timeout > 0 {
		_ = c.commit(context.Background(), all, min(commitTime, max(timeout-time.Since(began), fenceTime))) // it logs its error
	}
	return int(cut.Load())
}
