package kafkaadapter

import (
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// writeState writes the state of the partition after the batch.
func (b *batch) writeState(recs []*kgo.Record, peek *kgo.Record) error {
	p := b.p
	if b.failed != nil {
		b.result.next = recs[b.result.done].Offset
	}
	if err := b.setOffset(); err != nil {
		return err
	}
	if err := b.keepTries(recs, peek); err != nil {
		return err
	}
	if err := b.keepLetters(); err != nil {
		return err
	}
	if b.width = p.wider(b.result.done); b.width > 0 {
		if err := p.partition.fence.widen(b.tx, b.width); err != nil {
			return err
		}
	}
	return b.moveHold()
}

// wider returns the new maximum size of the next batches, 0 if it is unchanged. It is stored before
// they are made, so that after a crash it is known how many records may have been in progress.
func (r *partitionState) wider(done int) uint32 {
	if done < int(r.partition.fence.width) || r.size.n < int(r.partition.fence.width) || int(r.partition.fence.width) >= r.partition.c.opt.Batching.MaxBatch {
		return 0
	}
	return uint32(min(2*int(r.partition.fence.width), r.partition.c.opt.Batching.MaxBatch))
}

// keepTries stores the attempts at the next record, or deletes those at a record that is done.
func (b *batch) keepTries(recs []*kgo.Record, peek *kgo.Record) error {
	p := b.p
	switch {
	case !p.partition.route.transactional():
		return nil
	case b.failed != nil: // counted by attempted
	case peek != nil && p.partition.fence.careful > b.result.done && b.result.done == len(recs) && len(b.result.letters) == 0 && !isControl(peek):
		b.tries, b.marked = attempts{offset: peek.Offset, n: 1}, true
	case b.result.done > 0:
		b.tries, b.marked = attempts{}, false
	}
	if b.tries == p.partition.fence.tries {
		return nil
	}
	return p.partition.fence.putTries(b.tx, b.tries)
}

// setOffset writes the offset of a batch, which commits with the claims of its records.
func (b *batch) setOffset() error {
	p := b.p
	if b.result.next == p.next {
		return nil
	}
	return as(b.tx).SetOffset(p.partition.pos, engine.Offset{Next: b.result.next, LeaderEpoch: b.result.epoch, TopicID: p.topicID})
}

// keepLetters stores the batch's letters until they are published.
func (b *batch) keepLetters() (err error) {
	if len(b.result.letters) > 0 {
		b.result.pending, err = deadletter.Put(b.tx, letterKey(b.p.partition.pos), b.result.letters)
	}
	return err
}

// moveHold moves the hold with the batch: to the partition's low mark, the lowest event time of the
// batch, less the allowed lateness; if the partition is caught up, to now less the allowed
// lateness, which keeps nothing that would expire.
func (b *batch) moveHold() (err error) {
	mark := time.UnixMilli(b.low)
	switch {
	case b.p.partition.ends.caughtUp(b.result.next):
		mark = time.Now()
	case b.low == math.MaxInt64: // no event time in the batch counts
		return nil
	}
	b.holdAt, err = b.p.partition.hold.move(b.tx, mark)
	return err
}
