package kafkaadapter

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/engine"
)

// offsetsFetched keeps what the group has committed for the partitions that are being assigned. The client calls it
// right before adjust.
func (c *Consumer) offsetsFetched(_ context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.committed)
	keep := func(topic string, partition int32, offset int64, epoch int32, metadata *string) {
		if offset < 0 {
			return
		}
		k := &commit{offset: offset, epoch: epoch}
		if metadata != nil {
			k.metadata = *metadata
		}
		c.committed[topicPartition{topic, partition}] = k
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

// adjust replaces the offsets that the group committed by those of the store, for the partitions that were assigned. A
// partition that is not to be read is paused: one that is left out could not be set going later. An error makes the
// client leave the session and join again.
func (c *Consumer) adjust(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	if c.closing.Load() {
		return nil, errors.New("hapax: the consumer is shutting down")
	}
	views, err := c.views(ctx, offsets, kerr.IsRetriable)
	switch {
	case errors.Is(err, engine.ErrStopped), errors.Is(err, engine.ErrClosed):
		c.fail(err)
		return nil, err
	case err != nil:
		c.opt.Logger.Warn("an assignment cannot be looked up, joining again", "group", c.opt.Group, "error", err)
		return nil, err
	}
	for _, v := range views {
		tp := topicPartition{v.topic, v.partition}
		only := map[string][]int32{v.topic: {v.partition}}
		if v.err != nil { // others go on
			c.client.PauseFetchPartitions(only)
			c.stopForNow(tp, reasonOf(v.err), v.err, v.topicID)
			offsets[v.topic][v.partition] = kgo.NewOffset().AtStart()
			continue
		}
		b, err := c.begin(ctx, v)
		switch {
		case errors.As(err, new(*PositionError)):
			c.client.PauseFetchPartitions(only)
			c.stop(tp, "position", err)
			b.offset = v.end
		case ctx.Err() != nil: // the group session ended meanwhile: its successor begins anew
			return nil, ctx.Err()
		case err != nil:
			c.fail(err)
			return nil, err
		default:
			c.client.ResumeFetchPartitions(only) // a pause outlives the assignment that it was for
		}
		// Without an epoch: the client would go on by itself where the log diverged. See view.epochEnd.
		offsets[v.topic][v.partition] = kgo.NewOffset().At(b.offset).WithEpoch(-1)
	}
	return offsets, nil
}

// lookUpTime bounds one look at the brokers. A leader that is away must not hold up the partitions of others.
const lookUpTime = 5 * time.Second

// views looks up what the broker says of the partitions. It asks again for a while if an error is said to pass. What
// cannot be told of one partition is its view's error; the error returned is one of the engine or of the whole cluster.
func (c *Consumer) views(ctx context.Context, offsets map[string]map[int32]kgo.Offset, passes func(error) bool) (views []*view, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookUpTime)
	defer cancel()
	for pause := 50 * time.Millisecond; ; pause *= 2 { // leaders may be moving
		views, err = c.viewsOnce(ctx, offsets)
		again := err != nil && passes(err)
		for _, v := range views {
			again = again || v.err != nil && passes(v.err)
		}
		if !again || pause > time.Second {
			return views, err
		}
		select {
		case <-ctx.Done():
			return views, err
		case <-time.After(pause):
		}
	}
}

func (c *Consumer) viewsOnce(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (views []*view, err error) {
	topics := slices.Collect(maps.Keys(offsets))
	epochs, err := c.epochs(ctx, offsets)
	if err != nil {
		return nil, err
	}
	details, err := c.admin.ListTopics(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("looking up topics: %w", err)
	}
	starts, startErr := c.admin.ListStartOffsets(ctx, topics...)
	ends, endErr := c.admin.ListEndOffsets(ctx, topics...)
	var epochEnds kadm.OffsetsForLeaderEpochs
	var epochErr error
	if len(epochs) > 0 {
		epochEnds, epochErr = c.admin.OffsetForLeaderEpoch(ctx, epochs)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for topic, partitions := range offsets {
		for partition := range partitions {
			v := &view{topic: topic, partition: partition, id: c.eng.Identity(), topicID: details[topic].ID, err: details[topic].Err, epochEnd: -1}
			v.committed = c.committed[topicPartition{topic, partition}]
			if v.err == nil {
				v.start, v.err = listed(starts, startErr, topic, partition)
			}
			if v.err == nil {
				v.end, v.err = listed(ends, endErr, topic, partition)
			}
			if _, asked := epochs[topic][partition]; asked && v.err == nil {
				v.epochEnd, v.err = epochEnd(epochEnds, epochErr, topic, partition)
			}
			views = append(views, v)
		}
	}
	return views, nil
}

// epochs are the leader epochs in which the store read last.
func (c *Consumer) epochs(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (kadm.OffsetForLeaderEpochRequest, error) {
	req := make(kadm.OffsetForLeaderEpochRequest)
	for topic, partitions := range offsets {
		for partition := range partitions {
			o, found, err := c.eng.Offset(ctx, engine.Position{Group: c.opt.Group, Topic: topic, Partition: partition})
			if err != nil {
				return nil, err
			}
			if found && o.LeaderEpoch >= 0 {
				req.Add(topic, partition, o.LeaderEpoch)
			}
		}
	}
	return req, nil
}

// epochEnd is where a leader epoch ends: if the store has read further, what it read is not in the log any more. -1 if
// the broker does not know.
func epochEnd(ends kadm.OffsetsForLeaderEpochs, err error, topic string, partition int32) (int64, error) {
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

func listed(offsets kadm.ListedOffsets, err error, topic string, partition int32) (int64, error) {
	o, ok := offsets.Lookup(topic, partition)
	if ok {
		err = o.Err
	} else if err == nil {
		err = kerr.UnknownTopicOrPartition
	}
	if err != nil {
		return 0, fmt.Errorf("looking up where the log of %s/%d starts and ends: %w", topic, partition, err)
	}
	return o.Offset, nil
}

// begin takes a partition over: from then on no batch of an earlier owner commits. It decides where to read from and
// starts the partition's worker there; a *PositionError says why it is not read.
func (c *Consumer) begin(ctx context.Context, v *view) (b beginning, err error) {
	tp := topicPartition{v.topic, v.partition}
	if old := c.remove(tp); old != nil {
		c.drain([]*partition{old}, 0) // the session was left before its end; what it had read is read again
	}
	p := newPartition(c, v)
	err = c.eng.Update(ctx, func(tx *engine.Tx) error {
		v.store = nil
		if o, found, err := tx.Offset(p.pos); err != nil {
			return err
		} else if found {
			v.store = &o
		}
		if b, err = v.begin(&c.opt.Positions, c.opt.Start == Latest); err != nil {
			return err
		}
		return p.takeOver(tx, v, b)
	}, engine.Retries(100))
	if err != nil {
		return b, err
	}
	if b.kind != nil {
		c.opt.Logger.Warn("store and Kafka disagreed on a position; going on as configured", "topic", v.topic, "partition", v.partition,
			"why", b.kind, "way", b.way.String(), "offset", b.offset, "error", v.refuse(b.kind))
	}
	p.moved() // before others see it, who commit what they see
	c.mu.Lock()
	c.parts[tp] = p
	delete(c.stopped, tp)
	delete(c.again, tp)
	c.mu.Unlock()
	go p.run()
	return b, nil
}

// takeOver makes this assignment the owner of the partition.
func (p *partition) takeOver(tx *engine.Tx, v *view, b beginning) error {
	old, err := readOwner(tx, p.pos)
	if err != nil {
		return err
	}
	if p.token, err = newToken(); err != nil {
		return err
	}
	p.width = uint32(min(firstWidth, p.c.opt.MaxBatch))
	p.careful = 0
	if old.token != (owner{}).token { // its owner died, or still runs and is fenced by this
		p.careful = int(old.width)
	}
	if err := tx.Put(partitionKey(keyOwner, p.pos), owner{p.token, p.width}.encode()); err != nil {
		return err
	}
	p.next, p.epoch = b.offset, b.epoch
	// A commit ahead of the store means a store that lost its end: after a way back nothing is handled before it is gone.
	p.signed = p.signed && v.committed != nil && v.committed.offset <= b.offset
	if v.store != nil && v.store.Next == b.offset && v.store.TopicID == p.topicID {
		if p.tries, err = readAttempts(tx, p.pos); err != nil {
			return err
		}
		return p.holdAtStart(tx, true)
	}
	if err := tx.SetOffset(p.pos, engine.Offset{Next: b.offset, LeaderEpoch: b.epoch, TopicID: p.topicID}); err != nil {
		return err
	}
	if err := tx.Delete(partitionKey(keyAttempts, p.pos)); err != nil { // they were at another record
		return err
	}
	return p.holdAtStart(tx, false)
}

func newToken() (t [16]byte, err error) {
	_, err = rand.Read(t[:])
	return t, err
}

func readOwner(tx *engine.Tx, pos engine.Position) (o owner, err error) {
	b, found, err := tx.Get(partitionKey(keyOwner, pos))
	if err != nil || !found {
		return o, err
	}
	return parseOwner(b)
}

func readAttempts(tx *engine.Tx, pos engine.Position) (a attempts, err error) {
	b, found, err := tx.Get(partitionKey(keyAttempts, pos))
	if err != nil || !found {
		return a, err
	}
	return parseAttempts(b)
}

func (c *Consumer) remove(tp topicPartition) *partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.parts[tp]
	delete(c.parts, tp)
	delete(c.stopped, tp)
	delete(c.again, tp)
	return p
}

// revoked gives partitions away: the batch that runs may end, for a bounded time; then nothing of them commits any more.
func (c *Consumer) revoked(lost map[string][]int32) {
	all := c.removeAll(lost)
	if len(all) == 0 {
		return
	}
	c.drain(all, c.opt.DrainTimeout)
}

// lost drops the work on partitions that already belong to somebody else.
func (c *Consumer) lost(lost map[string][]int32) {
	all := c.removeAll(lost)
	if len(all) > 0 {
		c.opt.Logger.Warn("partitions were lost; what ran for them is dropped", "group", c.opt.Group, "partitions", len(all),
			"hint", "the member was too slow to answer the group: look at handler times, Options.DrainTimeout and the session timeout")
	}
	c.drain(all, 0)
}

func (c *Consumer) removeAll(lost map[string][]int32) (all []*partition) {
	for topic, partitions := range lost {
		for _, partition := range partitions {
			if p := c.remove(topicPartition{topic, partition}); p != nil {
				all = append(all, p)
			}
		}
	}
	return all
}

// drain ends partitions: their workers finish the batch that runs, but no longer than timeout, and their offsets are
// committed to Kafka. After it returned nothing of them commits to the store. It returns how many were cut off.
func (c *Consumer) drain(all []*partition, timeout time.Duration) (cut int) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, p := range all {
		p.end()
	}
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	over := make(chan struct{})
	stopTimer := make(chan struct{})
	go func() {
		defer close(over)
		select {
		case <-deadline.C:
		case <-stopTimer:
		}
	}()
	for _, p := range all {
		wg.Go(func() {
			if !p.finish(over, timeout) {
				mu.Lock()
				cut++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	close(stopTimer)
	<-over
	if timeout > 0 {
		c.commit(context.Background(), all) // an error is logged there
	}
	return cut
}
