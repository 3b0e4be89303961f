package kafkaadapter

import (
	"encoding/binary"
	"errors"

	"github.com/hapax-dev/hapax/engine"
)

// takeOver decides where to read, and makes this assignment the owner of the partition: from then
// on no batch of an earlier owner commits. The client starts to fetch, so that records come while
// the next states are passed.
func (p *partition) takeOver() state {
	v := p.view
	var b beginning
	err := p.engine().Update(p.ctx, func(tx *engine.Tx) (err error) {
		if p.ctx.Err() != nil {
			return ErrFenced
		}
		b, err = p.own(tx, v)
		return err
	}, engine.Retries(100))
	switch {
	case errors.As(err, new(*PositionError)):
		s := p.stop("position", err)
		p.endAdoption(err)
		return s
	case err != nil:
		return p.failed(err)
	}
	switch {
	case errors.Is(b.kind, errRanOpen):
		p.log.Warn("records were handled without claims while the store was unavailable: reading continues after them", "offset", b.offset)
	case b.kind != nil:
		args := []any{"why", b.kind, "policy", b.way.String(), "offset", b.offset, "error", v.refuse(b.kind)}
		if p.adopting != nil {
			args = append(args, "adopted", p.adopting.reason)
		}
		p.log.Warn("store and Kafka disagree on an offset; the recovery policy is applied", args...)
	}
	p.fence.taken, p.fence.marked, p.cause = true, false, nil
	p.offsets.begin(b, p.epoch, p.link.Load().self)
	p.opened = true
	p.ask.openings.ask(p, opening{b.offset, v.topicID})
	p.endAdoption(nil)
	return signing
}

// own does the work of takeOver inside a transaction.
func (p *partition) own(tx *engine.Tx, v *view) (b beginning, err error) {
	o, found, err := tx.Offset(p.pos)
	if err != nil {
		return b, err
	}
	if v.store = nil; found {
		v.store = &o
	}
	atEnd, err := p.startsAtEnd(tx, v)
	if err != nil {
		return b, err
	}
	if b, err = v.begin(p.recovery(), atEnd); err != nil {
		return b, err
	}
	if err := p.adopted(tx, v, b); err != nil {
		return b, err
	}
	return b, p.occupy(tx, v, b)
}

// occupy makes this assignment the owner at b.
func (p *partition) occupy(tx *engine.Tx, v *view, b beginning) (err error) {
	if err := p.fence.take(tx, min(firstWidth, p.c.opt.Batching.MaxBatch)); err != nil {
		return err
	}
	p.topicID, p.next, p.epoch = v.topicID, b.offset, b.epoch
	if v.store != nil && v.store.Next == b.offset && v.store.TopicID == v.topicID {
		if err := p.fence.readTries(tx); err != nil {
			return err
		}
		return p.holdAtStart(tx, true)
	}
	if err := tx.SetOffset(p.pos, engine.Offset{Next: b.offset, LeaderEpoch: b.epoch, TopicID: v.topicID}); err != nil {
		return err
	}
	p.fence.tries = attempts{} // they were at another record
	if err := p.fence.putTries(tx, p.fence.tries); err != nil {
		return err
	}
	return p.holdAtStart(tx, false)
}

// startsAtEnd reports whether a partition without an offset is read from its end. Latest is about
// the records that were there when the group first got the topic: a partition that was added later,
// or one of a topic that was created again, is read from its beginning. The store remembers how
// many partitions there were.
func (p *partition) startsAtEnd(tx *engine.Tx, v *view) (bool, error) {
	if p.route.Start != Latest || v.store != nil || v.committed != nil {
		return false, nil
	}
	key := partitionKey(keyFirst, engine.Position{Group: p.pos.Group, Topic: p.pos.Topic, Partition: -1})
	b, found, err := tx.Get(key)
	if err != nil {
		return false, err
	}
	if !found {
		return true, tx.Put(key, firstSeen{v.topicID, uint32(v.partitions)}.encode())
	}
	first, err := parseFirstSeen(b)
	return first.topicID == v.topicID && uint32(p.pos.Partition) < first.partitions, err
}

// firstSeen is a topic as it was when the group first got one of its partitions with Latest.
type firstSeen struct {
	topicID    [16]byte
	partitions uint32
}

// encode: version 1 | topic id 16 | partitions u32.
func (f firstSeen) encode() []byte {
	return binary.BigEndian.AppendUint32(append([]byte{1}, f.topicID[:]...), f.partitions)
}

func parseFirstSeen(b []byte) (f firstSeen, err error) {
	if len(b) != 21 || b[0] != 1 {
		return f, unknownForm("the first sight of a topic", b)
	}
	copy(f.topicID[:], b[1:])
	f.partitions = binary.BigEndian.Uint32(b[17:])
	return f, nil
}
