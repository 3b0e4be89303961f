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
	*reading
	view *view // the last look-up
}

// lookUp requests the data that takeOver needs from the brokers. The partition is paused meanwhile,
// and its queue is closed.
func (f *finder) lookUp() state {
	f.queue.close()
	f.taken, f.large = nil, nil
	if !f.mayClaim() {
		return failingOpen
	}
	l, _ := f.c.links.get()
	f.attach(l)
	f.open.Store(false)
	if before := f.before.Load(); before != nil {
		if before.link.Load() == l { // with another link, its store has failed and commits nothing more
			if err := before.fence.release(); err != nil {
				return f.failed(err)
			}
		}
		f.before.Store(nil)
	}
	v, err := f.lookAt(l)
	switch {
	case f.isEnding():
		return ended
	case errors.Is(err, engine.ErrStopped), errors.Is(err, engine.ErrClosed):
		return f.failed(err)
	case err != nil && f.cause != nil:
		return f.stopForNow(reasonOf(err), fmt.Errorf("%w; looking it up: %w", f.cause, err), lookingUp)
	case err != nil:
		return f.stopForNow(reasonOf(err), err, lookingUp)
	case f.readsAnotherTopic(v):
		f.ask.forget(f.partition)
		if !f.wait(f.retries.NextBackOff()) {
			return ended
		}
		return lookingUp
	case !f.mayClaim(): // the commit was not known before
		return failingOpen
	}
	f.view = v
	return takingOver
}

// readsAnotherTopic reports whether the client must forget the topic before the partition can be
// read. For a topic that was created again, the client keeps using the id of the old one.
func (f *finder) readsAnotherTopic(v *view) bool {
	follow := f.recovery().Recreated != Stop
	return errors.Is(f.cause, kerr.UnknownTopicID) && (v.topicID == f.topicID || follow) ||
		f.opened && v.topicID != f.topicID && follow
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
	ctx, cancel := context.WithTimeout(f.ending, lookUpTime)
	defer cancel()
	for pause := 50 * time.Millisecond; ; pause *= 2 {
		v, err = f.lookOnce(ctx, l)
		gone := f.opened && errors.Is(err, kerr.UnknownTopicOrPartition) // the client has already retried
		if err == nil || gone || !kerr.IsRetriable(err) || pause > time.Second {
			return v, err
		}
		if wait.For(ctx, pause) != nil {
			return v, err
		}
	}
}

func (f *finder) lookOnce(ctx context.Context, l *link) (*view, error) {
	topic, partition := f.pos.Topic, f.pos.Partition
	if f.refused {
		if err := f.fetchCommit(ctx); err != nil {
			return nil, err
		}
	}
	v := &view{topic: topic, partition: partition, committed: f.offsets.known(), epochEnd: -1, transactional: f.route.transactional()}
	var o engine.Offset
	var found bool
	var err error
	if l != nil {
		v.id = l.id
		o, found, err = l.eng.Offset(ctx, f.pos)
	} else {
		o, found = f.withoutStore(v)
	}
	if err != nil {
		return nil, err
	}
	if found {
		v.store = &o
	}
	if v.topicID, v.partitions, err = f.c.topic(ctx, topic, f.opened); err != nil {
		return nil, err
	}
	began := time.Now()
	if v.start, err = f.c.listOffset(ctx, topic, partition, logStart, readUncommitted); err != nil {
		return nil, err
	}
	if v.end, err = f.c.listOffset(ctx, topic, partition, logEnd, readUncommitted); err != nil {
		return nil, err
	}
	stable, err := f.c.listOffset(ctx, topic, partition, logEnd, readCommitted)
	if err != nil {
		return nil, err
	}
	f.ends.report(began, v.end, stable)
	if found {
		f.offsets.saw(o.Next)
	}
	if found && o.LeaderEpoch >= 0 {
		v.epochEnd, err = f.c.epochEnd(ctx, topic, partition, o.LeaderEpoch)
	}
	return v, err
}

// fetchCommit looks up the group's commit, which could not be fetched at the assignment.
func (f *finder) fetchCommit(ctx context.Context) error {
	topicID, _, err := f.c.topic(ctx, f.pos.Topic, f.opened)
	if err != nil {
		return err
	}
	committed, err := f.c.groupCommit(ctx, f.pos, topicID)
	if err != nil {
		return err
	}
	f.offsets.fetched(committed)
	f.heed(committed)
	f.refused = false
	return nil
}

// topicTime is how long brokers may take to learn that a topic was created.
const topicTime = time.Second

// sign commits the offset to Kafka with the store's identity before anything is handled, so that a
// later owner with a different store detects that it lacks the claims, even if this process dies at
// once.
func (f *finder) sign() state {
	began := time.Now()
	for delays := newDelays(f.c.opt.Timeouts.Backoff); !f.offsets.isSigned(); {
		if err := f.ask.commits.commit(f.ending, these(f.partition), commitTime); err != nil {
			// The client has the id of the topic before it was created again. For a moment it may
			// also be that the coordinator does not know the new topic yet.
			if errors.Is(err, kerr.UnknownTopicID) && time.Since(began) > topicTime {
				f.cause = err
				return lookingUp
			}
			if !f.isEnding() && time.Since(began) > f.c.opt.Timeouts.Silence {
				f.report("offset_commit", fmt.Errorf("%w: %w", ErrOffsetCommit, err), time.Time{})
			}
			if !f.wait(delays.inFlight()) {
				return ended
			}
		}
		if f.offsets.isChanged() {
			return lookingUp
		}
	}
	return publishing
}

// withoutStore completes a view without reading the store, from this assignment's state and the
// last known identity of the store: that of the consumer's last link, or the one in the group's
// commit.
func (f *finder) withoutStore(v *view) (engine.Offset, bool) {
	if l, _ := f.c.links.get(); l != nil {
		v.id = l.id
	} else {
		by, ours := parseMetadata(v.metadata())
		if !ours {
			by = parseOpenMark(v.metadata()).by
		}
		v.id = storage.Identity{UUID: by.uuid, Incarnation: by.incarnation}
	}
	if at, owned := f.offsets.inMemory(); owned {
		return engine.Offset{Next: at.Offset, LeaderEpoch: at.Epoch, TopicID: f.topicID}, true
	}
	return engine.Offset{}, false
}
