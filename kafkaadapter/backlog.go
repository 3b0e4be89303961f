package kafkaadapter

import (
	"context"
	"errors"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// A claimed is a record of AtMostOnce whose handler has not begun. Its claim is durable, or it is
// handled without a claim.
type claimed struct {
	delivery *delivery
	offset   int64 // copied from the record, which is no longer in the processor's caches when its handler begins
	epoch    int32
	traced   bool // it has a trace context
	claim    engine.ClaimRecord
	before   tally // tally of the earlier records of the batch
}

// A result is the outcome of a committed batch.
type result struct {
	topicID [16]byte
	done    int // number of records in the prefix that commits
	next    int64
	epoch   int32
	tally   tally
	claimed []claimed // AtMostOnce only

	letters     []*kgo.Record // dead letters of the prefix
	letterAt    []int64       // the offsets of these records
	letterBytes int
	pending     *deadletter.Pending // the same letters, once they are in the transaction; nil if there are none
}

// A backlog has the records of a committed batch whose handlers have not begun. Each record is
// taken from it once: to handle it, or to withdraw its claim when the assignment ends.
type backlog struct {
	spare []claimed // empty memory for the next batch; used only by the partition's goroutine

	mu    sync.Mutex // guards the rest
	batch *result    // nil if there is none
	begun int        // number of its claimed records that next has returned
	taken bool       // cut has removed the batch
}

func (l *backlog) fill(b *result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.batch, l.begun, l.spare = b, 0, nil
}

// recycle keeps the memory of a batch for the next one. All handlers of the batch have begun, and
// nothing else uses it.
func (l *backlog) recycle(b *result) {
	clear(b.claimed)
	l.spare, b.claimed = b.claimed[:0], nil
}

// next takes the next record to handle, nil if there is none, and returns the offset that may then
// be committed to Kafka.
func (l *backlog) next() (c *claimed, offset int64, epoch int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.batch == nil || l.begun == len(l.batch.claimed) {
		return nil, 0, 0
	}
	c = &l.batch.claimed[l.begun]
	l.begun++
	offset, epoch = l.batch.unbegun(l.begun)
	return c, offset, epoch
}

// rest removes the batch and returns its records whose handlers have not begun. The caller must
// count their tally.
func (l *backlog) rest() (*result, []claimed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.batch
	if l.batch = nil; b == nil {
		return nil, nil
	}
	return b, b.claimed[l.begun:]
}

// cut is rest for another goroutine. After it, the partition's goroutine begins no batch and does
// not touch the memory of the records.
func (l *backlog) cut() (*result, []claimed) {
	l.mu.Lock()
	l.taken = l.batch != nil
	l.mu.Unlock()
	return l.rest()
}

func (l *backlog) isCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.taken
}

// unbegun returns the offset and epoch of the first record whose handler has not begun. begun is
// the number of handlers that have begun.
func (b *result) unbegun(begun int) (int64, int32) {
	if begun < len(b.claimed) {
		return b.claimed[begun].offset, b.claimed[begun].epoch
	}
	return b.next, b.epoch
}

// endBacklog withdraws the claims of rest, whose handlers have not begun, and counts the other
// records of b, which may be nil. Unless rest is empty, the assignment must still be the owner.
func (p *partition) endBacklog(b *result, rest []claimed) {
	if b == nil {
		return
	}
	stays := &b.tally
	if len(rest) > 0 && p.takeBack(b, rest) {
		stays = &rest[0].before
	}
	p.c.m.tally(p.pos.Topic, stays)
}

// takeBack withdraws claims whose handlers have not begun, and sets the store's offset back to the
// first of them, in one batch. If that fails, the events are lost, unless the store has failed and
// Options.ReopenStore is set: then the group's commit shows them to the next owner.
func (p *partition) takeBack(b *result, rest []claimed) (ok bool) {
	if p.open.Load() { // without claims, Kafka's offset suffices, because it is that of the first record
		return true
	}
	err := p.engine().Update(context.Background(), func(tx *engine.Tx) error {
		if err := p.fence.Check(ownerTx{tx, p.pos}); err != nil {
			return err
		}
		for i := range rest {
			if rest[i].delivery.Verdict != engine.Claimed {
				continue
			}
			if err := driver.Unclaim(tx, judged(rest[i].delivery.Event, isClaimed(rest[i].delivery.replay)), rest[i].claim); err != nil && !errors.Is(err, engine.ErrNotClaimed) {
				return err
			}
		}
		return p.rewind(tx, b, rest)
	}, engine.Retries(100))
	switch {
	case err != nil && p.c.goesOn(p.link.Load(), err):
		p.markUncertain(b.next)
		p.log.Warn("claims of unhandled events cannot be withdrawn because the store has failed: the next owner handles the events without claims",
			"events", len(rest), "offset", rest[0].delivery.Record.Offset)
		return true
	case err != nil:
		p.lose(len(rest), rest[0].delivery, err)
		return false
	}
	p.log.Info("claims of unhandled events were withdrawn", "events", len(rest), "offset", rest[0].delivery.Record.Offset)
	return true
}

// rewind restores the offset, the dead letters and the hold in the store to their state before the
// first of the records.
func (p *partition) rewind(tx *engine.Tx, b *result, rest []claimed) error {
	first := rest[0].delivery
	at := engine.Offset{Next: first.Record.Offset, LeaderEpoch: first.Record.LeaderEpoch, TopicID: b.topicID}
	if err := as(tx).SetOffset(p.pos, at); err != nil {
		return err
	}
	if err := b.dropLetters(tx, p.pos, first.Record.Offset); err != nil {
		return err
	}
	low := p.hold.get()
	for i := range rest {
		if at, ok := unread(&rest[i].delivery.Event); ok && rest[i].delivery.Verdict == engine.Claimed {
			low = earliest(low, holdable(at.Add(-p.hold.lateness)))
		}
	}
	if low.Equal(p.hold.get()) {
		return nil
	}
	return as(tx).SetHold(p.hold.name, low)
}

// dropLetters removes the batch's pending dead letters of records at or after the given offset,
// because these records are read again.
func (b *result) dropLetters(tx *engine.Tx, pos engine.OffsetKey, from int64) error {
	kept := 0
	for kept < len(b.letters) && b.letterAt[kept] < from {
		kept++
	}
	if kept == len(b.letters) {
		return nil
	}
	if err := b.pending.Delete(tx); err != nil || kept == 0 {
		return err
	}
	_, err := deadletter.Put(tx, letterKey(pos), b.letters[:kept])
	return err
}

// lose counts and logs events that were claimed but not handled.
func (p *partition) lose(n int, r *delivery, err error) {
	p.c.m.lost.WithLabelValues(p.pos.Topic).Add(float64(n))
	what := "claimed"
	if r.Verdict != engine.Claimed {
		what = "taken without a claim"
	}
	p.log.Error("events were "+what+" but not handled: they are lost", "events", n, "offset", r.Record.Offset, p.c.opt.Telemetry.IDs.Attr("id", string(r.Event.ID)), "error", err)
}
