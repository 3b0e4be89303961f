package kafkaadapter

import (
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/owner"
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
	if err := b.keepLetters(); err != nil {
		return err
	}
	b.countTries(recs, peek)
	b.ours.Width = p.wider(b.result.done)
	if err := p.partition.fence.Write(ownerTx{b.tx, p.partition.pos}, b.ours); err != nil {
		return err
	}
	return b.moveHold()
}

// wider returns the maximum size of the next batches.
func (r *partitionState) wider(done int) uint32 {
	width, most := r.partition.fence.Width(), r.partition.c.opt.MaxBatch
	if done >= width && r.size.n >= width && width < most {
		width = min(2*width, most)
	}
	return uint32(width)
}

// countTries sets the attempts at the next record, and removes those at a record that is done.
func (b *batch) countTries(recs []*kgo.Record, peek *kgo.Record) {
	p := b.p
	switch {
	case !p.partition.route.transactional(), b.failed != nil: // counted by attempted
	case peek != nil && p.partition.fence.SingleStep() > b.result.done && b.result.done == len(recs) && len(b.result.letters) == 0 && !isControl(peek):
		b.ours.Tries, b.ours.Marked = owner.Attempts{Offset: peek.Offset, N: 1}, true
	case b.result.done > 0:
		b.ours.Tries, b.ours.Marked = owner.Attempts{}, false
	}
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
