package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// A finder determines the offset at which a partition is read, and makes its assignment the owner.
type finder struct {
	partition *partition
	state     *partitionState
	facts     *resume.Facts // the last look-up
}

// lookUp requests the data that takeOver needs from the brokers. The partition is paused meanwhile,
// and its queue is closed.
func (f *finder) lookUp() state {
	f.partition.queue.Close()
	f.state.taken, f.state.large = nil, nil
	if !f.state.mayClaim() {
		return failingOpen
	}
	l, _ := f.partition.links.get()
	f.state.attach(l)
	f.partition.open.Store(false)
	if before := f.partition.before.Load(); before != nil {
		if before.link.Load() == l { // with another link, its store has failed and commits nothing more
			if err := before.fence.Release(); err != nil {
				return f.state.failed(err)
			}
		}
		f.partition.before.Store(nil)
	}
	v, err := f.lookAt(l)
	switch {
	case f.partition.isEnding():
		return ended
	case errors.Is(err, engine.ErrStopped), errors.Is(err, engine.ErrClosed):
		return f.state.failed(err)
	case err != nil && f.state.cause != nil:
		return f.state.stopForNow(reasonOf(err), fmt.Errorf("%w; looking it up: %w", f.state.cause, err), lookingUp)
	case err != nil:
		return f.state.stopForNow(reasonOf(err), err, lookingUp)
	case f.readsAnotherTopic(v):
		f.state.ask.forget(f.partition)
		if !f.partition.wait(f.state.retries.NextBackOff()) {
			return ended
		}
		return lookingUp
	case !f.state.mayClaim(): // the commit was not known before
		return failingOpen
	}
	f.facts = v
	return takingOver
}

// readsAnotherTopic reports whether the client must forget the topic before the partition can be
// read. For a topic that was created again, the client keeps using the id of the old one.
func (f *finder) readsAnotherTopic(v *resume.Facts) bool {
	follow := f.policies()[ErrRecreated] != resume.Stop
	return errors.Is(f.state.cause, kerr.UnknownTopicID) && (v.Topic.ID == f.state.topicID || follow) ||
		f.state.opened && v.Topic.ID != f.state.topicID && follow
}

// reasonOf returns the reason for which a partition cannot be looked up.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return "topic_gone"
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return "unauthorized"
	}
	return "unreachable"
}

// lookAt looks up the partition in the store and at the brokers; without a link, it uses the known
// state of the store. It retries transient errors for a while.
func (f *finder) lookAt(l *link) (v *resume.Facts, err error) {
	gone := func(err error) bool { // the client has already retried
		return f.state.opened && errors.Is(err, kerr.UnknownTopicOrPartition)
	}
	err = brokers.Retry(f.partition.ending, func() (err error) {
		v, err = f.lookOnce(f.partition.ending, l)
		return err
	}, gone)
	return v, err
}

func (f *finder) lookOnce(ctx context.Context, l *link) (*resume.Facts, error) {
	ask, tp := f.partition.c.brokers.ask, f.partition.tp()
	if f.state.refused { // before the store's offset is read: the commit follows it
		if err := f.fetchCommit(ctx); err != nil {
			return nil, err
		}
	}
	v := &resume.Facts{Committed: (*resume.Commit)(f.partition.offsets.known()), Transactional: f.partition.route.transactional()}
	o, found, err := f.inStore(ctx, l, v)
	if err != nil {
		return nil, err
	}
	epoch := int32(-1)
	if found {
		v.Store, epoch = (*resume.Offset)(&o), o.LeaderEpoch
		f.partition.offsets.saw(o.Next)
	}
	topic, err := ask.Topic(ctx, tp.topic)
	if err != nil {
		return nil, err
	}
	log, err := ask.Log(ctx, topic, tp.asked(), epoch)
	if err != nil {
		return nil, err
	}
	v.Topic = resume.Topic{ID: topic.ID, Partitions: topic.Partitions}
	v.Start, v.End, v.EpochEnd = log.Start, log.End, log.EpochEnd
	f.partition.ends.report(log.AsOf, log.End, log.Stable)
	return v, nil
}

// inStore reads the store's offset and identity.
func (f *finder) inStore(ctx context.Context, l *link, v *resume.Facts) (o engine.Offset, found bool, err error) {
	if l == nil {
		o, found = f.withoutStore(v)
		return o, found, nil
	}
	v.Self = authorOf(l.id)
	ctx, cancel := context.WithTimeout(ctx, brokers.Limit)
	defer cancel()
	return l.eng.Admin().Offset(ctx, f.partition.pos)
}

// fetchCommit looks up the group's commit, which could not be fetched at the assignment.
func (f *finder) fetchCommit(ctx context.Context) error {
	ask, tp := f.partition.c.brokers.ask, f.partition.tp()
	topic, err := ask.Topic(ctx, tp.topic)
	if err != nil {
		return err
	}
	committed, err := ask.Commit(ctx, f.partition.pos.Group, tp.asked(), topic.ID)
	if err != nil {
		return err
	}
	f.partition.offsets.fetched(committed)
	f.state.takeMark(committed)
	f.state.refused = false
	return nil
}

// topicTime is how long brokers may take to learn that a topic was created.
const topicTime = time.Second

// sign commits the offset to Kafka with the store's identity before anything is handled, so that a
// later owner with a different store detects that it lacks the claims, even if this process dies at
// once.
func (f *finder) sign() state {
	began := time.Now()
	for delays := newDelays(f.partition.c.opt.backoff); !f.partition.offsets.isSigned(); {
		if err := f.state.ask.commits.sign(f.partition.ending, f.partition); err != nil {
			// The client has the id of the topic before it was created again. For a moment it may
			// also be that the coordinator does not know the new topic yet.
			if errors.Is(err, kerr.UnknownTopicID) && time.Since(began) > topicTime {
				f.state.cause = err
				return lookingUp
			}
			if !f.partition.isEnding() && time.Since(began) > f.partition.c.opt.SilenceTimeout {
				f.state.report("offset_commit", fmt.Errorf("%w: %w", ErrOffsetCommit, err), time.Time{})
			}
			if !f.partition.wait(delays.inFlight()) {
				return ended
			}
		}
		if f.partition.offsets.isChanged() {
			return lookingUp
		}
	}
	return publishing
}

// withoutStore completes the facts without reading the store, from this assignment's state and the
// last known identity of the store: that of the consumer's last link, or the one in the group's
// commit.
func (f *finder) withoutStore(v *resume.Facts) (engine.Offset, bool) {
	if l, _ := f.partition.links.get(); l != nil {
		v.Self = authorOf(l.id)
	} else if by, ours := resume.ParseMetadata(v.Metadata()); ours {
		v.Self = by
	} else {
		v.Self = resume.ParseOpenMark(v.Metadata()).By
	}
	if at, owned := f.partition.offsets.inMemory(); owned {
		return engine.Offset{Next: at.Offset, LeaderEpoch: at.Epoch, TopicID: f.state.topicID}, true
	}
	return engine.Offset{}, false
}
