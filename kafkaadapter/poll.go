package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/kafkaadapter/internal/feed"
)

// fetches is the number of fetches that the client has in flight or buffered, each of at most
// maxFetchBytes. While there is little memory, the poll loop asks for less.
const (
	fetches       = 16
	maxFetchBytes = 50 << 20
)

// A poller hands fetched records to the partitions, and decides what the client fetches.
type poller struct {
	shared   *shared
	parts    *assignments
	openings *openings // requests to it

	flow *feed.Flow
}

// pollLoop hands fetched records to the partitions until ctx ends. It does no other I/O, and lets
// the group rebalance between any two polls, when callbacks drain partitions. It returns an error
// if the client has ended.
func (l *poller) pollLoop(ctx context.Context) error {
	client := l.shared.brokers.client
	defer client.AllowRebalance()
	l.flow = feed.NewFlow(l.shared.memory, fetchLimits(client), flowClient{l.shared, l.parts})
	var woken time.Time
	for ctx.Err() == nil {
		if now := time.Now(); now.Sub(woken) >= wakeEvery {
			woken = now
			l.flow.Brokers = min(fetches, len(client.DiscoveredBrokers()))
			client.ResumeFetchPartitions(nil) // resumes none
		}
		holding := l.flow.Wait(ctx, l.openings.any)
		until, cancel := l.openings.until(ctx, holding)
		fetched := client.PollFetches(until)
		cancel()
		l.shared.memory.Polled()
		if fetched.IsClientClosed() {
			return fmt.Errorf("hapax: the Kafka client has ended: is kgo.WithContext set in Options.Client? %w", kgo.ErrClientClosed)
		}
		for i := range fetched {
			for j := range fetched[i].Topics {
				t := &fetched[i].Topics[j]
				for k := range t.Partitions {
					l.deliver(ctx, t, &t.Partitions[k])
				}
			}
		}
		l.openPending()
		client.AllowRebalance()
	}
	return nil
}

// fetchLimits has the sizes of fetches with which the client was created.
func fetchLimits(client *kgo.Client) (most feed.Plan) {
	most.Fetch, _ = client.OptValue(kgo.FetchMaxBytes).(int32)
	most.Partition, _ = client.OptValue(kgo.FetchMaxPartitionBytes).(int32)
	return most
}

func (l *poller) deliver(ctx context.Context, t *kgo.FetchTopic, f *kgo.FetchPartition) {
	tp := topicPartition{t.Topic, f.Partition}
	p := l.parts.get(tp)
	if f.Err != nil && (ctx.Err() != nil || errors.Is(f.Err, context.Canceled) || t.Topic == "" && errors.Is(f.Err, context.DeadlineExceeded)) {
		return // the poll was cut short
	}
	if p != nil {
		switch {
		case t.TopicID != [16]byte{} && p.fetchID != [16]byte{} && t.TopicID != p.fetchID:
			l.interrupt(tp, fmt.Errorf("records of another topic of that name: %w", ErrRecreated))
			return
		// the client does not return those before an error again
		case len(f.Records) > 0 || f.Err == nil:
			p.ends.report(time.Time{}, f.HighWatermark, f.LastStableOffset)
			p.queue.Push(f.Records)
		}
	}
	if f.Err != nil && !errors.Is(f.Err, feed.ErrFull) {
		l.fetchFailed(tp, f.Err)
	}
}

// fetchFailed handles an error of the client: it logs one that the client handles itself, ends Run
// for one of the whole consumer, and passes any other to the partition, which it pauses.
func (l *poller) fetchFailed(tp topicPartition, err error) {
	l.shared.m.fetchErrors.WithLabelValues(tp.topic).Inc()
	log := l.shared.opt.Telemetry.Logger
	var known *kerr.Error
	switch {
	case errors.Is(err, kerr.FencedInstanceID):
		l.shared.fail(fmt.Errorf("hapax: another consumer runs with the same Options.Membership, Static(%q): %w", l.shared.opt.Membership.instanceID, err))
	case errors.Is(err, kerr.GroupAuthorizationFailed), errors.Is(err, kerr.UnsupportedVersion):
		l.shared.fail(fmt.Errorf("hapax: the broker refuses this consumer: %w", err))
	case errors.As(err, new(*kgo.ErrGroupSession)):
		l.shared.throttled(log.Warn, "the group session ended and is begun again", topicPartition{}, "group", l.shared.opt.Group, "error", err)
	case tp.topic == "", errors.As(err, &known) && known.Retriable && !isPositionError(err):
		l.shared.throttled(log.Warn, "fetching failed; the client tries again", tp, "topic", tp.topic, "partition", tp.partition, "error", err)
	default:
		l.interrupt(tp, err)
	}
}

// interrupt pauses partitions because of an error; their goroutines do the rest. A negative
// partition means all partitions of the topic.
func (l *poller) interrupt(tp topicPartition, err error) {
	all := l.parts.of(tp)
	if len(all) == 0 {
		l.shared.throttled(l.shared.opt.Telemetry.Logger.Error, "a topic cannot be consumed; the client tries again", tp, "topic", tp.topic, "error", err)
		return
	}
	tps := make([]topicPartition, len(all))
	for i, p := range all {
		tps[i] = p.tp()
	}
	l.shared.brokers.client.PauseFetchPartitions(byTopic(tps)) // once: each call copies what is paused
	for _, p := range all {
		p.queue.Interrupt(err)
	}
}

// openPending opens the partitions that have requested it. The client gets an assignment shortly
// after adjust returns, so requests for partitions that it does not have yet are repeated.
func (l *poller) openPending() {
	asked := l.openings.take()
	if len(asked) == 0 {
		return
	}
	if l.shared.opt.Membership.isPinned() {
		maps.DeleteFunc(asked, func(p *partition, _ opening) bool { return !l.parts.isAssigned(p) })
		l.openPinned(asked)
		l.opened(asked)
		return
	}
	seek, aside := make(map[string]map[int32]kgo.EpochOffset), make(map[string]map[int32]kgo.EpochOffset)
	for p, at := range asked {
		if !l.parts.isAssigned(p) {
			delete(asked, p)
		} else if p.fetched || p.fetchAt != at.offset {
			put(seek, p, at.offset)
			put(aside, p, at.offset+1)
		}
	}
	var set map[string]map[int32]kgo.EpochOffset
	if len(seek) > 0 {
		l.shared.brokers.client.SetOffsets(aside) // the client would ignore the offset after the last record that it has returned
		l.shared.brokers.client.SetOffsets(seek)
		set = l.shared.brokers.client.CommittedOffsets()
	}
	for p, at := range asked {
		if _, ok := seek[p.pos.Topic][p.pos.Partition]; ok {
			if got, ok := set[p.pos.Topic][p.pos.Partition]; !ok || got.Offset != at.offset {
				l.openings.ask(p, at)
				delete(asked, p)
			}
		}
	}
	l.opened(asked)
}

// opened opens the queues of partitions that the client fetches from the right offsets.
func (l *poller) opened(asked map[*partition]opening) {
	all := make([]topicPartition, 0, len(asked))
	for p, at := range asked {
		p.fetched, p.fetchID = true, at.topicID
		p.queue.Start(at.offset)
		all = append(all, p.tp())
	}
	if len(all) > 0 {
		l.shared.brokers.client.ResumeFetchPartitions(byTopic(all))
	}
}

func put(offsets map[string]map[int32]kgo.EpochOffset, p *partition, offset int64) {
	if offsets[p.pos.Topic] == nil {
		offsets[p.pos.Topic] = make(map[int32]kgo.EpochOffset)
	}
	offsets[p.pos.Topic][p.pos.Partition] = kgo.EpochOffset{Epoch: -1, Offset: offset}
}

// openPinned lets the client fetch pinned partitions from the offsets.
func (l *poller) openPinned(asked map[*partition]opening) {
	all, offsets := make([]topicPartition, 0, len(asked)), make(map[string]map[int32]kgo.Offset)
	for p, at := range asked {
		all = append(all, p.tp())
		if offsets[p.pos.Topic] == nil {
			offsets[p.pos.Topic] = make(map[int32]kgo.Offset)
		}
		offsets[p.pos.Topic][p.pos.Partition] = kgo.NewOffset().At(at.offset).WithEpoch(-1)
	}
	l.shared.brokers.client.RemoveConsumePartitions(byTopic(all))
	l.shared.brokers.client.AddConsumePartitions(offsets)
}
