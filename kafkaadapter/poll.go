package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
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

// A poller hands fetched records to the partitions, and decides what the client fetches.
type poller struct {
	shared   *shared
	parts    *assignments
	openings *openings // requests to it
}

// pollLoop hands fetched records to the partitions until ctx ends. It does no I/O of its own, and
// lets the group rebalance between any two polls: the callbacks drain partitions. It returns an
// error if the client has ended.
func (l *poller) pollLoop(ctx context.Context) error {
	defer l.shared.brokers.client.AllowRebalance()
	woken := time.Now()
	for ctx.Err() == nil {
		l.waitForRoom(ctx)
		until, cancel := l.openings.until(ctx)
		fetches := l.shared.brokers.client.PollFetches(until)
		cancel()
		l.shared.decompressor.polled()
		if fetches.IsClientClosed() {
			return fmt.Errorf("hapax: the Kafka client has ended: is kgo.WithContext set in Options.Client? %w", kgo.ErrClientClosed)
		}
		for i := range fetches {
			for j := range fetches[i].Topics {
				t := &fetches[i].Topics[j]
				for k := range t.Partitions {
					l.deliver(ctx, t, &t.Partitions[k])
				}
			}
		}
		l.openPending()
		if now := time.Now(); now.Sub(woken) >= wakeEvery {
			woken = now
			l.shared.brokers.client.ResumeFetchPartitions(nil) // resumes none
		}
		l.shared.brokers.client.AllowRebalance()
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
	if f.Err != nil && !errors.Is(f.Err, errFull) {
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

// waitForRoom waits while a goroutine has enough records; a partition that stays full is paused.
func (l *poller) waitForRoom(ctx context.Context) {
	began := time.Now()
	// when no partition starved last, and when a partition that is not full last had records
	fed, busy := began, began
	for ctx.Err() == nil {
		limits := l.parts.limits()
		now := time.Now()
		r := crowded(l.parts.all(), limits)
		if len(r.full) == 0 {
			return
		}
		if !r.starving {
			fed = now
		}
		if !r.starving || r.busy {
			busy = now
		}
		late := now.Sub(began) > pauseAfter || l.openings.any()
		hurry := now.Sub(fed) > starveAfter || now.Sub(busy) > idleAfter
		for _, p := range r.full {
			if late || p.queue.isSlow() || p.isPaused() || hurry && !p.queue.room(capacity{math.MaxInt, limits.bytes}) {
				l.pause(p, limits)
			}
		}
		if hurry {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// A crowd is the state of the queues that the poll loop needs.
type crowd struct {
	full     []*partition
	starving bool // a partition has no records although the broker has some for it
	busy     bool // a partition that is not full has records
}

func crowded(all []*partition, limits capacity) (r crowd) {
	for _, p := range all {
		if !p.queue.room(limits) {
			r.full = append(r.full, p)
			continue
		}
		if !p.isPaused() {
			r.starving = r.starving || p.queue.starves(p.ends.stable.Load())
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
