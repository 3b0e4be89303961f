package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/kafkaadapter/internal/feed"
)

// starveAfter is how long the poll loop waits for a full queue while another partition has no
// records although the broker has some for it. idleAfter is the same for the case that only the
// partitions with full queues have records. After that, queues may exceed their number of records,
// up to their limit in bytes.
const (
	starveAfter = 100 * time.Millisecond
	idleAfter   = 5 * time.Millisecond
)

// wakeEvery is how often the client's fetch loops are woken. A loop that is started while offsets
// are set twice can miss the second start, and would then wait until something else wakes it (kgo
// v1.22.2, source.loopFetch: hardFinish after incWorker).
const wakeEvery = time.Second

// fetches is the number of fetches that the client has in flight or buffered, each of at most
// maxFetchBytes. The poll loop asks for less while there is little memory.
const (
	fetches       = 16
	maxFetchBytes = 50 << 20
)

// A poller hands fetched records to the partitions, and decides what the client fetches.
type poller struct {
	shared   *shared
	parts    *assignments
	openings *openings // requests to it

	most        feed.Plan // as the client was made
	brokers     int
	holdingBack bool // no partition is fetched, because the memory is full
}

// pollLoop hands fetched records to the partitions until ctx ends. It does no I/O of its own, and
// lets the group rebalance between any two polls: the callbacks drain partitions. It returns an
// error if the client has ended.
func (l *poller) pollLoop(ctx context.Context) error {
	client := l.shared.brokers.client
	defer client.AllowRebalance()
	l.most.Fetch, _ = client.OptValue(kgo.FetchMaxBytes).(int32)
	l.most.Partition, _ = client.OptValue(kgo.FetchMaxPartitionBytes).(int32)
	var woken time.Time
	for ctx.Err() == nil {
		if now := time.Now(); now.Sub(woken) >= wakeEvery {
			woken = now
			l.brokers = min(fetches, len(client.DiscoveredBrokers()))
			client.ResumeFetchPartitions(nil) // resumes none
		}
		l.waitForRoom(ctx)
		until, cancel := l.openings.until(ctx, l.holdingBack)
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
			p.queue.push(f.Records)
		}
	}
	if f.Err != nil && !errors.Is(f.Err, feed.ErrFull) {
		l.fetchFailed(tp, f.Err)
	}
}

// fetchFailed handles an error of the client: one that the client handles itself is logged, one of
// the whole consumer ends Run, and any other is passed to the partition, which is paused.
func (l *poller) fetchFailed(tp topicPartition, err error) {
	l.shared.m.fetchErrors.WithLabelValues(tp.topic).Inc()
	log := l.shared.opt.Telemetry.Logger
	var known *kerr.Error
	switch {
	case errors.Is(err, kerr.FencedInstanceID):
		l.shared.fail(fmt.Errorf("hapax: another consumer runs with the same Options.Membership.InstanceID %q: %w", l.shared.opt.Membership.InstanceID, err))
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
// partition means all of the topic.
func (l *poller) interrupt(tp topicPartition, err error) {
	found := false
	for _, p := range l.parts.all() {
		if p.pos.Topic == tp.topic && (tp.partition < 0 || p.pos.Partition == tp.partition) {
			found = true
			l.shared.brokers.client.PauseFetchPartitions(p.only())
			p.queue.interrupt(err)
		}
	}
	if !found {
		l.shared.throttled(l.shared.opt.Telemetry.Logger.Error, "a topic cannot be consumed; the client tries again", tp, "topic", tp.topic, "error", err)
	}
}

// waitForRoom waits while a goroutine has enough records, or while the memory is full; a partition
// that stays full is paused. It plans the fetches that follow.
func (l *poller) waitForRoom(ctx context.Context) {
	began := time.Now()
	// when no partition starved last, and when a partition that is not full last had records
	fed, busy := began, began
	for ctx.Err() == nil {
		all := l.parts.all()
		limits := l.parts.limits()
		now := time.Now()
		r := crowded(all, limits)
		l.plan(r.wanting)
		late := now.Sub(began) > pauseAfter || l.openings.any()
		full := l.isFull(all, late)
		if len(r.full) == 0 && !full {
			return
		}
		if !r.starving {
			fed = now
		}
		if !r.starving || r.busy {
			busy = now
		}
		hurry := now.Sub(fed) > starveAfter || now.Sub(busy) > idleAfter
		for _, p := range r.full {
			if late || p.queue.isSlow() || p.isPaused() || hurry && !p.queue.room(capacity{math.MaxInt, limits.bytes}) {
				l.pause(p, limits)
			}
		}
		if hurry && !full || full && l.holdingBack && late {
			return
		}
		if l.holdingBack {
			time.Sleep(9 * time.Millisecond)
		}
		time.Sleep(time.Millisecond)
	}
}

// plan tells the client how much it may fetch, if a number of partitions want records.
func (l *poller) plan(wanting int) {
	p := l.shared.memory.Plan(wanting, l.brokers, l.most)
	l.shared.brokers.client.UpdateFetchMaxBytes(p.Fetch, p.Partition)
}

// isFull reports whether the memory is full, so that the client must not be polled: it would fetch
// the next records. If that lasts, all partitions are held back, and the client may be polled for all
// else.
func (l *poller) isFull(all []*partition, late bool) bool {
	memory := l.shared.memory
	switch {
	case l.holdingBack && memory.HasRoom():
		for _, p := range all {
			l.parts.whileAssigned(p, func() {
				if p.queue.letGo() {
					l.shared.brokers.client.ResumeFetchPartitions(p.only())
				}
			})
		}
		l.holdingBack = false
	case l.holdingBack, memory.IsFull() && late:
		for _, p := range all { // also those that were assigned since
			l.parts.whileAssigned(p, func() {
				if p.queue.holdBack() {
					l.shared.brokers.client.PauseFetchPartitions(p.only())
				}
			})
		}
		l.holdingBack = true
	}
	return l.holdingBack || memory.IsFull()
}

// A crowd is the state of the queues that the poll loop needs.
type crowd struct {
	full     []*partition
	starving bool // a partition has no records although the broker has some for it
	busy     bool // a partition that is not full has records
	wanting  int  // partitions that have records, or starve
}

func crowded(all []*partition, limits capacity) (r crowd) {
	for _, p := range all {
		starves := p.queue.starves(p.ends.stable.Load())
		if starves || p.queue.holds() {
			r.wanting++
		}
		if !p.queue.room(limits) {
			r.full = append(r.full, p)
			continue
		}
		if !p.isPaused() {
			r.starving = r.starving || starves
			r.busy = r.busy || p.queue.isBusy()
		}
	}
	return r
}

// pause stops fetching a partition while its queue is full.
func (l *poller) pause(p *partition, limits capacity) {
	l.parts.whileAssigned(p, func() {
		if p.queue.pause(limits) {
			l.shared.brokers.client.PauseFetchPartitions(p.only())
			l.shared.m.paused.WithLabelValues(p.pos.Topic).Inc()
		}
	})
}
