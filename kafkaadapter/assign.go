package kafkaadapter

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
)

// An assigner begins and ends assignments.
type assigner struct {
	shared   *shared
	parts    *assignments
	commits  *committer
	requests requests
	closing  atomic.Bool

	// Of a member of a group, by the client's callbacks, which the client serializes:
	awaited   map[topicPartition]bool            // assigned, and not yet adjusted
	committed map[topicPartition]*brokers.Commit // as fetched for the current rebalance
}

// offsetsFetched stores the group's commits. The client calls it right before adjust.
func (a *assigner) offsetsFetched(_ context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	a.committed = make(map[topicPartition]*brokers.Commit)
	keep := func(topic string, partition int32, offset int64, epoch int32, metadata *string, code int16) {
		if code == 0 && offset >= 0 {
			a.committed[topicPartition{topic, partition}] = brokers.NewCommit(offset, epoch, metadata)
		}
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			keep(t.Topic, p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode)
		}
	}
	for _, g := range resp.Groups {
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				keep(t.Topic, p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode)
			}
		}
	}
	return nil
}

// adjust replaces the group's committed offsets by the store's, and pauses the partitions. It sends
// no requests to brokers and does not block on a store that hangs: each partition's goroutine
// compares, seeks and resumes. The client leaves out partitions whose commits it could not fetch, and
// would not read them before they are assigned again: adjust adds them, and their goroutines look up
// the commits.
func (a *assigner) adjust(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	if a.closing.Load() {
		return nil, errors.New("hapax: the consumer is shutting down")
	}
	unknown := make(map[topicPartition]bool)
	for tp := range a.awaited {
		if _, found := offsets[tp.topic][tp.partition]; !found {
			if offsets[tp.topic] == nil {
				offsets[tp.topic] = make(map[int32]kgo.Offset)
			}
			offsets[tp.topic][tp.partition], unknown[tp] = kgo.NewOffset(), true
		}
	}
	clear(a.awaited)
	a.shared.health.awaited.Store(0)
	var all []topicPartition
	for topic, partitions := range offsets {
		for partition := range partitions {
			all = append(all, topicPartition{topic, partition})
		}
	}
	stored := a.stored(ctx, all)
	a.shared.brokers.client.PauseFetchPartitions(byTopic(all)) // once: each call copies what is paused
	for _, tp := range all {
		p := a.newWorker(tp, a.committed[tp], stored[tp])
		if p.state.refused = unknown[tp]; p.state.refused {
			p.partition.fetchAt = 0 // the commit may be below the store's offset, see newWorker
		}
		// No epoch is set: with one, the client would itself continue where the log diverged. See
		// resume.Facts.
		offsets[tp.topic][tp.partition] = kgo.NewOffset().At(p.partition.fetchAt).WithEpoch(-1)
		a.begin(p)
	}
	return offsets, nil
}

// storeTime bounds reads of the store while an assignment is made.
const storeTime = time.Second

// stored returns the store's offsets that could be read in time. The partitions' goroutines seek to
// the others.
func (a *assigner) stored(ctx context.Context, all []topicPartition) map[topicPartition]int64 {
	l, away := a.shared.links.get()
	if l == nil || away != nil {
		return nil
	}
	read := make(chan map[topicPartition]int64, 1)
	go func() {
		found := make(map[topicPartition]int64, len(all))
		for _, tp := range all {
			o, ok, err := l.eng.Admin().Offset(ctx, engine.OffsetKey{Group: a.shared.opt.Group, Topic: tp.topic, Partition: tp.partition})
			if err != nil {
				break // the goroutines get the same error
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

// newWorker returns the worker of an assignment. begin starts it.
func (a *assigner) newWorker(tp topicPartition, committed *brokers.Commit, at int64) *worker {
	return newWorker(newPartition(a.shared, a.parts, tp, committed, at), a.requests, committed)
}

// begin starts the goroutine of an assignment. An earlier assignment of the same partition that was
// not revoked is fenced: the session ended before a revocation. When Run has ended all assignments, no
// other begins.
func (a *assigner) begin(p *worker) {
	before, ok := a.parts.put(p.state.partition)
	if !ok {
		return
	}
	if before != nil {
		before.cancel(ErrFenced)
		before.store.revoke()
	}
	go p.live()
}

// await records partitions that the group has assigned, until adjust or noLonger.
func (a *assigner) await(added map[string][]int32) {
	for topic, partitions := range added {
		for _, partition := range partitions {
			if a.shared.opt.route(topic) != nil { // the leader of a group may be another client, which assigns any topic
				a.awaited[topicPartition{topic, partition}] = true
			}
		}
	}
	a.shared.health.awaited.Store(int64(len(a.awaited)))
}

// noLonger removes partitions that the group has taken away before they were adjusted.
func (a *assigner) noLonger(lost map[string][]int32) {
	for topic, partitions := range lost {
		for _, partition := range partitions {
			delete(a.awaited, topicPartition{topic, partition})
		}
	}
	a.shared.health.awaited.Store(int64(len(a.awaited)))
}

// assigned is called after each rebalance, before the new partitions are read.
func (a *assigner) assigned(added map[string][]int32) {
	a.shared.health.joined.Store(true)
	a.parts.noteLost(nil)
	if a.shared.opt.OnRebalance != nil {
		a.shared.opt.OnRebalance(Assigned, copied(added))
	}
}

// revoked ends assignments. A running batch has a bounded time to finish; after that, nothing of
// these assignments commits.
func (a *assigner) revoked(lost map[string][]int32) {
	if all := a.parts.take(lost); len(all) > 0 {
		a.drain(all, a.shared.opt.DrainTimeout)
	}
	if a.shared.opt.OnRebalance != nil && len(lost) > 0 {
		a.shared.opt.OnRebalance(Revoked, copied(lost))
	}
}

// copied returns partitions as a hook gets them: the client uses its own further.
func copied(partitions map[string][]int32) map[string][]int32 {
	c := make(map[string][]int32, len(partitions))
	for topic, all := range partitions {
		c[topic] = slices.Clone(all)
	}
	return c
}

// callRevoked calls OnRebalance for pinned partitions when Run ends. For members of a group, the
// client does this.
func (a *assigner) callRevoked(all []*partition) {
	if a.shared.opt.OnRebalance == nil || len(all) == 0 {
		return
	}
	revoked := make(map[string][]int32)
	for _, p := range all {
		revoked[p.pos.Topic] = append(revoked[p.pos.Topic], p.pos.Partition)
	}
	a.shared.opt.OnRebalance(Revoked, revoked)
}

// lost cancels the work on partitions that already belong to another member.
func (a *assigner) lost(lost map[string][]int32) {
	a.shared.health.joined.Store(false)
	if a.shared.opt.OnRebalance != nil && len(lost) > 0 {
		defer a.shared.opt.OnRebalance(Lost, copied(lost))
	}
	all := a.parts.take(lost)
	if len(all) == 0 {
		return
	}
	a.parts.noteLost(all)
	for _, p := range all {
		a.shared.m.stops.WithLabelValues(p.pos.Topic, "lost").Inc()
	}
	args := []any{"group", a.shared.opt.Group, "partitions", len(all)}
	if err := a.shared.disconnected(); err != nil {
		args = append(args, "error", err)
	} else {
		args = append(args, "hint", "the member was too slow to answer the group: check handler times, Options.DrainTimeout and the session timeout")
	}
	a.shared.opt.Telemetry.Logger.Warn("partitions were lost; their running batches are dropped", args...)
	a.drain(all, 0)
}

// drain ends revoked assignments: their goroutines finish the running batch, and their offsets are
// committed to Kafka, all within the timeout. After drain returns, nothing of these assignments
// commits to the store. It returns the number of assignments that were cut off.
func (a *assigner) drain(all []*partition, timeout time.Duration) int {
	began := time.Now()
	cut := a.finish(all, timeout)
	a.commitLast(these(all...), began, timeout)
	return cut
}

// drainAtEnd is drain for all partitions when Run ends. They stay assigned until they have ended:
// if the group revokes one meanwhile, the callback also waits for it.
func (a *assigner) drainAtEnd(timeout time.Duration) (all []*partition, cut int) {
	began := time.Now()
	all = a.parts.all()
	cut = a.finish(all, timeout)
	kept := func() []*partition {
		return slices.DeleteFunc(slices.Clone(all), func(p *partition) bool { return !a.parts.isAssigned(p) })
	}
	a.commitLast(kept, began, timeout)
	a.parts.remove(all)
	return all, cut
}

// finish is drain without the commit to Kafka. Calls for one partition may be concurrent.
func (a *assigner) finish(all []*partition, timeout time.Duration) int {
	var cut atomic.Int64
	var wg sync.WaitGroup
	for _, p := range all {
		p.end()
	}
	handlers := timeout - min(timeout/4, fenceTime) // rest: fence and commit
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
	wg.Wait()
	return int(cut.Load())
}

// commitLast commits the offsets of assignments that have ended to Kafka, within the remaining
// timeout.
func (a *assigner) commitLast(which func() []*partition, began time.Time, timeout time.Duration) {
	if timeout > 0 {
		_ = a.commits.commit(context.Background(), which, min(commitTime, max(timeout-time.Since(began), fenceTime))) // it logs its error
	}
}
