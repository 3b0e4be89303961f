package kafkaadapter

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// pinInterval is the time between checks for added partitions.
const pinInterval = 10 * time.Second

// A pinner assigns pinned partitions.
type pinner struct {
	assigner *assigner
	repin    chan struct{} // wakes pinLoop
	seeing   atomic.Bool   // seeTopics is using the store
}

// pinLoop assigns the consumer's part of the partitions, including those that are added later.
func (n *pinner) pinLoop(ctx context.Context) {
	pause := n.assigner.shared.opt.backoff.Min
	for {
		err := n.pin(ctx)
		if ctx.Err() != nil {
			return
		}
		wait := pinInterval
		if err != nil {
			n.assigner.shared.throttled(n.assigner.shared.opt.Telemetry.Logger.Warn, "the pinned partitions cannot be looked up; it is tried again", topicPartition{}, "group", n.assigner.shared.opt.Group, "error", err)
			wait, pause = pause, min(2*pause, n.assigner.shared.opt.backoff.Max)
		} else {
			pause = n.assigner.shared.opt.backoff.Min
		}
		select {
		case <-ctx.Done():
			return
		case <-n.repin:
		case <-time.After(wait):
		}
	}
}

// pin assigns the pinned partitions that are not assigned yet.
func (n *pinner) pin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, brokers.Limit)
	defer cancel()
	details, err := n.assigner.shared.brokers.admin.ListTopics(ctx, n.assigner.shared.opt.topics()...)
	if err != nil {
		return err
	}
	n.seeTopics(ctx, details)
	checkShapes(n.assigner.parts, details)
	var added []topicPartition
	hook := make(map[string][]int32)
	for _, d := range details {
		if d.Err != nil {
			n.assigner.shared.throttled(n.assigner.shared.opt.Telemetry.Logger.Error, "a topic cannot be consumed; it is tried again", topicPartition{d.Topic, -1}, "topic", d.Topic, "error", d.Err)
			continue
		}
		for _, p := range d.Partitions.Sorted() {
			tp := topicPartition{d.Topic, p.Partition}
			if n.assigner.shared.opt.Membership.pinned.has(p.Partition) && n.assigner.parts.get(tp) == nil {
				added = append(added, tp)
				hook[tp.topic] = append(hook[tp.topic], tp.partition)
			}
		}
	}
	if len(added) == 0 {
		n.assigner.shared.health.joined.Store(true)
		return nil
	}
	commits, err := n.assigner.shared.brokers.ask.Commits(ctx, n.assigner.shared.opt.Group)
	if err != nil {
		return err
	}
	stored := n.assigner.stored(ctx, added)
	if n.assigner.closing.Load() {
		return context.Canceled // of pinLoop: Run ends
	}
	n.assigner.assigned(hook)
	for _, tp := range added {
		n.assigner.begin(n.assigner.newWorker(tp, commits[tp.asked()], stored[tp]))
	}
	return nil
}

// seeTopics stores the numbers of partitions of the pinned topics, including topics without a
// partition of this consumer. With Latest, a partition that is added later is read from its
// beginning. seeTopics does not wait long for a store that hangs. It ignores errors, because the
// partitions also use the store.
func (n *pinner) seeTopics(ctx context.Context, details kadm.TopicDetails) {
	l, away := n.assigner.shared.links.get()
	if away != nil || n.seeing.Load() {
		return
	}
	n.seeing.Store(true)
	seen := make(chan struct{})
	go func() {
		defer close(seen)
		defer n.seeing.Store(false)
		err := l.eng.Update(ctx, func(tx *engine.Tx) (err error) {
			for _, d := range details {
				if d.Err == nil && err == nil {
					err = n.see(tx, d.Topic, shapeOf(d))
				}
			}
			return err
		}, engine.Retries(10))
		if err != nil && ctx.Err() == nil {
			n.assigner.shared.throttled(n.assigner.shared.opt.Telemetry.Logger.Warn, "the partitions of pinned topics cannot be stored; it is tried again", topicPartition{}, "group", n.assigner.shared.opt.Group, "error", err)
		}
	}()
	select {
	case <-seen:
	case <-time.After(storeTime):
	}
}

func (n *pinner) see(tx *engine.Tx, topic string, now resume.Topic) error {
	if n.assigner.shared.opt.route(topic).Start == Latest {
		if _, err := firstSight(tx, n.assigner.shared.opt.Group, topic, now); err != nil {
			return err
		}
	}
	if !n.assigner.shared.opt.dependsOnShape() {
		return nil
	}
	_, err := lastShape(tx, n.assigner.shared.opt.Group, topic, now)
	return err
}

// repinTopic forgets a topic that was created again, and assigns its partitions again.
func (n *pinner) repinTopic(topic string) {
	lost := make(map[string][]int32)
	for _, p := range n.assigner.parts.all() {
		if p.pos.Topic == topic {
			lost[topic] = append(lost[topic], p.pos.Partition)
		}
	}
	n.assigner.shared.brokers.client.PurgeTopicsFromConsuming(topic)
	n.assigner.revoked(lost)
	n.wake()
}

// wake makes pinLoop check the topics now.
func (n *pinner) wake() {
	select {
	case n.repin <- struct{}{}:
	default:
	}
}
