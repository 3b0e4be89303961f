package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/hapax-dev/hapax/engine"
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
	v, err := p.lookAt(l)
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
		p.ask.forget(p)
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

// lookAt looks the partition up, in the store and at the brokers; without a link it takes what is
// known of the store. It asks again for a while if the error may pass soon: leaders may be moving.
func (p *partition) lookAt(l *link) (v *view, err error) {
	ctx, cancel := context.WithTimeout(p.ending, lookUpTime)
	defer cancel()
	for pause := 50 * time.Millisecond; ; pause *= 2 {
		v, err = p.lookOnce(ctx, l)
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

func (p *partition) lookOnce(ctx context.Context, l *link) (*view, error) {
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
