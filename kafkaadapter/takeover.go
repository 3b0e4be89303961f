package kafkaadapter

import (
	"errors"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// takeOver decides where to read, and makes this assignment the owner of the partition: from then
// on no batch of an earlier owner commits. The client starts to fetch, so that records arrive
// during the next states.
func (f *finder) takeOver() state {
	v := f.facts
	seen := v.Store
	var b resume.Beginning
	err := f.partition.engine().Update(f.partition.ctx, func(tx *engine.Tx) (err error) {
		if f.partition.ctx.Err() != nil {
			return ErrFenced
		}
		b, err = f.own(tx, v, seen)
		return err
	}, engine.Retries(100))
	switch {
	case errors.Is(err, errMoved):
		return lookingUp
	case errors.As(err, new(*PositionError)):
		a := f.endAdoption(err) // the next one is submitted after the stop is known
		s := f.state.stop("position", err)
		a.finish(err)
		return s
	case err != nil:
		return f.state.failed(err)
	}
	switch {
	case errors.Is(b.Kind, resume.ErrRanOpen):
		f.partition.log.Warn("records were handled without claims while the store was unavailable: reading continues after them", "offset", b.Offset)
	case b.Kind != nil:
		args := []any{"why", b.Kind, "policy", RecoveryPolicy(b.Way).String(), "offset", b.Offset, "error", f.refuse(v, b.Kind)}
		if f.state.adopting != nil {
			args = append(args, "adopted", f.state.adopting.reason)
		}
		f.partition.log.Warn("store and Kafka disagree on an offset; the recovery policy is applied", args...)
	}
	f.partition.fence.Taken()
	f.state.cause = nil
	f.partition.offsets.begin(b, f.state.epoch, f.partition.link.Load().self)
	f.state.opened = true
	f.state.ask.openings.ask(f.partition, opening{b.Offset, v.Topic.ID})
	if was := f.partition.status().stop; was != nil && kindOf(was) != nil {
		f.state.isRead() // nothing is left to adopt
	}
	f.endAdoption(nil).finish(nil)
	return signing
}

// errMoved means that an earlier owner has moved the store's offset since the look-up, and that the
// offset does not agree with what was looked up before.
var errMoved = errors.New("hapax: the store's offset was moved after the look-up")

// own does the work of takeOver inside a transaction. The look-up has seen the given offset in the
// store, nil if there was none.
func (f *finder) own(tx *engine.Tx, v *resume.Facts, seen *resume.Offset) (b resume.Beginning, err error) {
	o, found, err := tx.Offset(f.partition.pos)
	if err != nil {
		return b, err
	}
	moved := found && (seen == nil || *seen != resume.Offset(o))
	if v.Store = nil; found {
		v.Store = (*resume.Offset)(&o)
	}
	if err := f.completeTopic(tx, v); err != nil {
		return b, err
	}
	b, err = f.decide(v, v.Begin)
	switch {
	case moved && (err != nil || b.Kind != nil):
		return b, errMoved
	case err != nil:
		return b, err
	}
	if err := f.keepShape(tx, v); err != nil {
		return b, err
	}
	if err := f.adopted(tx, v, b); err != nil {
		return b, err
	}
	return b, f.occupy(tx, v, b)
}

// completeTopic adds what the store knows of the topic.
func (f *finder) completeTopic(tx *engine.Tx, v *resume.Facts) (err error) {
	if v.FromEnd, err = f.startsAtEnd(tx, v); err != nil {
		return err
	}
	v.EndBefore = f.state.latest // the goroutine has waited for the store
	if f.partition.c.opt.dependsOnShape() {
		before, err := lastShape(tx, f.partition.pos.Group, f.partition.pos.Topic, v.Topic)
		if err != nil {
			return err
		}
		v.Before = &before
	}
	return nil
}

// keepShape stores the number of partitions of the topic, if it matters and has changed.
func (f *finder) keepShape(tx *engine.Tx, v *resume.Facts) error {
	switch before := v.Before; {
	case before == nil:
		return nil
	case v.Topic.ID == before.ID && v.Topic.Follows(*before):
		f.partition.shape.Store(before)
		return nil
	}
	now := v.Topic
	f.partition.shape.Store(&now)
	return own(tx).Put(shapeKey(f.partition.pos.Group, f.partition.pos.Topic), encodeShape(now))
}

// occupy makes this assignment the owner at b. The stored attempts and the hold remain only if they
// are of the record at b.
func (f *finder) occupy(tx *engine.Tx, v *resume.Facts, b resume.Beginning) error {
	continues := v.Store != nil && v.Store.Next == b.Offset && v.Store.TopicID == v.Topic.ID
	f.state.topicID, f.state.next, f.state.epoch = v.Topic.ID, b.Offset, b.Epoch
	if err := f.partition.fence.Take(ownerTx{tx, f.partition.pos}, min(firstWidth, f.partition.c.opt.MaxBatch), continues); err != nil {
		return err
	}
	if !continues || v.Store.LeaderEpoch != b.Epoch {
		if err := f.putOffset(tx); err != nil {
			return err
		}
	}
	return f.partition.hold.begin(tx, f.partition.engine(), continues)
}

func (f *finder) putOffset(tx *engine.Tx) error {
	return as(tx).SetOffset(f.partition.pos, engine.Offset{Next: f.state.next, LeaderEpoch: f.state.epoch, TopicID: f.state.topicID})
}

// startsAtEnd reports whether a partition without an offset is read from its end. Latest applies to
// the records that existed when the group first consumed the topic: a partition that was added
// later, or one of a topic that was created again, is read from its beginning. The store keeps the
// number of partitions at that time.
func (f *finder) startsAtEnd(tx *engine.Tx, v *resume.Facts) (bool, error) {
	if f.partition.route.Start != Latest || v.Store != nil || v.Committed != nil {
		return false, nil
	}
	first, err := firstSight(tx, f.partition.pos.Group, f.partition.pos.Topic, v.Topic)
	return first.ID == v.Topic.ID && uint32(f.partition.pos.Partition) < first.Partitions, err
}

// firstSight returns the shape of a topic when the group was first assigned one of its partitions
// with Latest, or when a pinned consumer first saw the topic. If the store has none, it is the
// present one.
func firstSight(tx *engine.Tx, group, topic string, now resume.Topic) (resume.Topic, error) {
	key := partitionKey(keyFirst, engine.OffsetKey{Group: group, Topic: topic, Partition: -1})
	b, found, err := tx.Get(key)
	switch {
	case err != nil:
		return resume.Topic{}, err
	case !found:
		return now, own(tx).Put(key, encodeShape(now))
	}
	return parseShape(b)
}
