package kafkaadapter

import (
	"errors"
	"fmt"

	"github.com/hapax-dev/hapax/engine"
)

// takeOver decides where to read, and makes this assignment the owner of the partition: from then
// on no batch of an earlier owner commits. The client starts to fetch, so that records arrive
// during the next states.
func (f *finder) takeOver() state {
	v := f.view
	seen := v.store
	var b beginning
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
	case errors.Is(b.kind, errRanOpen):
		f.partition.log.Warn("records were handled without claims while the store was unavailable: reading continues after them", "offset", b.offset)
	case b.kind != nil:
		args := []any{"why", b.kind, "policy", b.way.String(), "offset", b.offset, "error", v.refuse(b.kind)}
		if f.state.adopting != nil {
			args = append(args, "adopted", f.state.adopting.reason)
		}
		f.partition.log.Warn("store and Kafka disagree on an offset; the recovery policy is applied", args...)
	}
	f.partition.fence.Taken()
	f.state.cause = nil
	f.partition.offsets.begin(b, f.state.epoch, f.partition.link.Load().self)
	f.state.opened = true
	f.state.ask.openings.ask(f.partition, opening{b.offset, v.topicID})
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
func (f *finder) own(tx *engine.Tx, v *view, seen *engine.Offset) (b beginning, err error) {
	o, found, err := tx.Offset(f.partition.pos)
	if err != nil {
		return b, err
	}
	moved := found && (seen == nil || *seen != o)
	if v.store = nil; found {
		v.store = &o
	}
	atEnd, err := f.startsAtEnd(tx, v)
	if err != nil {
		return b, err
	}
	if b, err = v.begin(f.recovery(), atEnd); err == nil {
		b, err = f.checkShape(tx, v, b)
	}
	switch {
	case moved && (err != nil || b.kind != nil):
		return b, errMoved
	case err != nil:
		return b, err
	}
	if atEnd && f.state.latest != nil { // the goroutine has waited for the store
		b.offset = max(v.start, min(b.offset, *f.state.latest))
	}
	if err := f.adopted(tx, v, b); err != nil {
		return b, err
	}
	return b, f.occupy(tx, v, b)
}

// occupy makes this assignment the owner at b. The stored attempts and the hold remain only if they
// are of the record at b.
func (f *finder) occupy(tx *engine.Tx, v *view, b beginning) error {
	continues := v.store != nil && v.store.Next == b.offset && v.store.TopicID == v.topicID
	f.state.topicID, f.state.next, f.state.epoch = v.topicID, b.offset, b.epoch
	if err := f.partition.fence.Take(ownerTx{tx, f.partition.pos}, min(firstWidth, f.partition.c.opt.Batching.MaxBatch), continues); err != nil {
		return err
	}
	if !continues || v.store.LeaderEpoch != b.epoch {
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
func (f *finder) startsAtEnd(tx *engine.Tx, v *view) (bool, error) {
	if f.partition.route.Start != Latest || v.store != nil || v.committed != nil {
		return false, nil
	}
	first, err := firstSight(tx, f.partition.pos.Group, f.partition.pos.Topic, shape{v.topicID, v.partitions})
	return first.topicID == v.topicID && uint32(f.partition.pos.Partition) < first.partitions, err
}

// firstSight returns the shape of a topic when the group was first assigned one of its partitions
// with Latest, or when a pinned consumer first saw the topic. If the store has none, it is the
// present one.
func firstSight(tx *engine.Tx, group, topic string, now shape) (shape, error) {
	key := partitionKey(keyFirst, engine.OffsetKey{Group: group, Topic: topic, Partition: -1})
	b, found, err := tx.Get(key)
	switch {
	case err != nil:
		return shape{}, err
	case !found:
		return now, own(tx).Put(key, now.encode())
	}
	return parseShape(b)
}

// checkShape completes where a partition is read: not at all if the topic of a pinned consumer has
// another number of partitions than before.
func (f *finder) checkShape(tx *engine.Tx, v *view, b beginning) (beginning, error) {
	if !f.partition.c.opt.Membership.dependsOnShape() {
		return b, nil
	}
	now := shape{v.topicID, v.partitions}
	before, err := lastShape(tx, f.partition.pos.Group, f.partition.pos.Topic, now)
	switch {
	case err != nil:
		return b, err
	case now.follows(before) && now.topicID == before.topicID:
		f.partition.shape.Store(&before)
		return b, nil
	case now.follows(before):
	case f.recovery()[ErrPartitionsChanged] != TrustStore:
		return b, fmt.Errorf("%w (topic %s had %d partitions and has %d)", v.refuse(ErrPartitionsChanged), f.partition.pos.Topic, before.partitions, now.partitions)
	case b.kind == nil:
		b.kind, b.way = ErrPartitionsChanged, TrustStore
	}
	f.partition.shape.Store(&now)
	return b, own(tx).Put(shapeKey(f.partition.pos.Group, f.partition.pos.Topic), now.encode())
}
