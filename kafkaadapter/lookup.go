package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/wait"
)

// A finder determines the offset at which a partition is read, and makes its assignment the owner.
type finder struct {
	partition *partition
	state     *partitionState
	view      *view // the last look-up
}

// lookUp requests the data that takeOver needs from the brokers. The partition is paused meanwhile,
// and its queue is closed.
func (f *finder) lookUp() state {
	f.partition.queue.close()
	f.state.taken, f.state.large = nil, nil
	if !f.state.mayClaim() {
		return failingOpen
	}
	l, _ := f.partition.c.links.get()
	f.state.attach(l)
	f.partition.open.Store(false)
	if before := f.partition.before.Load(); before != nil {
		if before.link.Load() == l { // with another link, its store has failed and commits nothing more
			if err := before.fence.release(); err != nil {
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
	f.view = v
	return takingOver
}

// readsAnotherTopic reports whether the client must forget the topic before the partition can be
// read. For a topic that was created again, the client keeps using the id of the old one.
func (f *finder) readsAnotherTopic(v *view) bool {
	follow := f.recovery()[ErrRecreated] != Stop
	return errors.Is(f.state.cause, kerr.UnknownTopicID) && (v.topicID == f.state.topicID || follow) ||
		f.state.opened && v.topicID != f.state.topicID && follow
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
// state of the store. It retries transient errors for a while, because leaders may be moving.
func (f *finder) lookAt(l *link) (v *view, err error) {
	ctx, cancel := context.WithTimeout(f.partition.ending, lookUpTime)
	defer cancel()
	for pause := 50 * time.Millisecond; ; pause *= 2 {
		v, err = f.lookOnce(ctx, l)
		gone := f.state.opened && errors.Is(err, kerr.UnknownTopicOrPartition) // the client has already retried
		if err == nil || gone || !kerr.IsRetriable(err) || pause > time.Second {
			return v, err
		}
		if wait.For(ctx, pause) != nil {
			return v, err
		}
	}
}

func (f *finder) lookOnce(ctx context.Context, l *link) (*view, error) {
	topic, partition := f.partition.pos.Topic, f.partition.pos.Partition
	if f.state.refused {
		if err := f.fetchCommit(ctx); err != nil {
			return nil, err
		}
	}
	v := &view{topic: topic, partition: partition, committed: f.partition.offsets.known(), epochEnd: -1, transactional: f.partition.route.transactional()}
	var o engine.Offset
	var found bool
	var err error
	if l != nil {
		v.id = l.id
		o, found, err = l.eng.Admin().Offset(ctx, f.partition.pos)
	} else {
		o, found = f.withoutStore(v)
	}
	if err != nil {
		return nil, err
	}
	if found {
		v.store = &o
	}
	if v.topicID, v.partitions, err = f.partition.c.brokers.topic(ctx, topic, f.state.opened); err != nil {
		return nil, err
	}
	began := time.Now()
	if v.start, err = f.partition.c.brokers.listOffset(ctx, topic, partition, logStart, readUncommitted); err != nil {
		return nil, err
	}
	if v.end, err = f.partition.c.brokers.listOffset(ctx, topic, partition, logEnd, readUncommitted); err != nil {
		return nil, err
	}
	stable, err := f.partition.c.brokers.listOffset(ctx, topic, partition, logEnd, readCommitted)
	if err != nil {
		return nil, err
	}
	f.partition.ends.report(began, v.end, stable)
	if found {
		f.partition.offsets.saw(o.Next)
	}
	if found && o.LeaderEpoch >= 0 {
		v.epochEnd, err = f.partition.c.brokers.epochEnd(ctx, topic, partition, o.LeaderEpoch)
	}
	return v, err
}

// fetchCommit looks up the group's commit, which could not be fetched at the assignment.
func (f *finder) fetchCommit(ctx context.Context) error {
	topicID, _, err := f.partition.c.brokers.topic(ctx, f.partition.pos.Topic, f.state.opened)
	if err != nil {
		return err
	}
	committed, err := f.partition.c.brokers.groupCommit(ctx, f.partition.pos, topicID)
	if err != nil {
		return err
	}
	f.partition.offsets.fetched(committed)
	f.state.heed(committed)
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
	for delays := newDelays(f.partition.c.opt.Timeouts.Backoff); !f.partition.offsets.isSigned(); {
		if err := f.state.ask.commits.commit(f.partition.ending, these(f.partition), commitTime); err != nil {
			// The client has the id of the topic before it was created again. For a moment it may
			// also be that the coordinator does not know the new topic yet.
			if errors.Is(err, kerr.UnknownTopicID) && time.Since(began) > topicTime {
				f.state.cause = err
				return lookingUp
			}
			if !f.partition.isEnding() && time.Since(began) > f.partition.c.opt.Timeouts.Silence {
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

// withoutStore completes a view without reading the store, from this assignment's state and the
// last known identity of the store: that of the consumer's last link, or the one in the group's
// commit.
func (f *finder) withoutStore(v *view) (engine.Offset, bool) {
	if l, _ := f.partition.c.links.get(); l != nil {
		v.id = l.id
	} else {
		by, ours := parseMetadata(v.metadata())
		if !ours {
			by = parseOpenMark(v.metadata()).by
		}
		v.id = storage.Identity{UUID: by.uuid, Incarnation: by.incarnation}
	}
	if at, owned := f.partition.offsets.inMemory(); owned {
		return engine.Offset{Next: at.Offset, LeaderEpoch: at.Epoch, TopicID: f.state.topicID}, true
	}
	return engine.Offset{}, false
}
