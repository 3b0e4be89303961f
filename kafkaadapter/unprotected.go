package kafkaadapter

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// This file has the steps of a partition while the store is unavailable and Options.FailOpen is
// set. Its offset is then in Kafka, with a mark (see author.openMark). When the store is open
// again, reading continues at the later one of the two offsets: records below Kafka's were handled
// without claims, and records below the store's with claims. See errRanOpen.

// failOpen decides without the store where to read: at this assignment's offset, or at Kafka's
// commit. The offset is committed to Kafka with the mark before anything is handled.
func (f *finder) failOpen() state {
	f.all.pause(f.partition)
	f.queue.close()
	f.taken, f.pending = nil, nil
	f.before.Store(nil) // an earlier assignment has its fence in a store that accepts no more writes
	f.endAdoption(ErrUnprotected)
	if err := f.settle(); err != nil {
		return f.failed(err)
	}
	if f.mayClaim() {
		return lookingUp
	}
	v, err := f.lookAt(nil)
	switch {
	case f.isEnding():
		return ended
	case err != nil:
		return f.stopForNow(reasonOf(err), err, lookingUp)
	case f.readsAnotherTopic(v):
		f.ask.forget(f.partition)
		if !f.wait(f.retries.NextBackOff()) {
			return ended
		}
		return lookingUp
	}
	if f.uncertain = min(f.uncertain, v.end); f.mayClaim() { // the log was cut
		return lookingUp
	}
	if f.route.Start == Latest && v.store == nil && v.committed == nil {
		if f.latest == nil {
			f.latest = &v.end
		}
		return f.stopForNow("store", fmt.Errorf("%w: only the store knows whether the group has read the partition", ErrUnprotected), lookingUp)
	}
	b, err := v.beginOpen(f.recovery())
	if err != nil && !f.c.isAway() {
		// the offset in the mark cannot be read: the store decides alone
		if !errors.Is(err, ErrBelowLog) || v.start >= f.uncertain {
			f.uncertain = 0
			return lookingUp
		}
		f.log.Warn("records that the store has claims of, and that were not handled, were removed from the log; those that are left are handled", "offset", v.start, "error", err)
		b, err = beginning{offset: v.start, epoch: -1}, nil
	}
	if err != nil {
		// the store may have a later offset
		return f.stopForNow("position", fmt.Errorf("%w: %w", ErrUnprotected, err), lookingUp)
	}
	f.topicID, f.next, f.epoch, f.cause = v.topicID, b.offset, b.epoch, nil
	f.fence.width = uint32(f.c.opt.Batching.MaxBatch) // it is stored anew before the next claim
	f.open.Store(true)
	f.offsets.begin(b, f.epoch, authorOf(v.id).openMark(f.uncertain))
	f.opened = true
	f.ask.openings.ask(f.partition, opening{b.offset, v.topicID})
	if next := f.sign(); next != publishing {
		return next
	}
	return unprotected
}

// runOpen handles records without claims until the store is open again.
func (w *worker) runOpen() state {
	for {
		if len(w.taken) == 0 {
			if next := w.take(); next != unprotected {
				return next
			}
		}
		switch {
		case w.isEnding():
			return ended
		case w.isPaused():
			return paused
		case w.isOutdated():
			return lookingUp
		}
		if next := w.workOpen(); next != unprotected {
			return next
		}
	}
}

// workOpen handles some of the taken records. Kafka's offset follows the handlers.
func (w *worker) workOpen() state {
	n := min(len(w.taken), w.size.n)
	b, err := w.unclaimed(n)
	w.taken = w.taken[b.done:]
	if b.done > 0 {
		w.retries.Reset()
		w.isRead()
	}
	if len(b.claimed) > 0 && !w.handleClaimed(b) {
		return ended
	}
	if b.done > 0 {
		w.size.took(n, b.handling)
	}
	switch {
	case err == nil:
		return unprotected
	case b.done > 0:
		return unprotected // it is the first of the next records again
	case errors.Is(err, identify.ErrNoTopicID):
		return w.stopBefore("undecodable", err)
	case isTransient(err):
		return w.stopForNow("transient", err, lookingUp)
	}
	return w.stopForNow("store", fmt.Errorf("%w: a dead letter has to wait for it: %w", ErrUnprotected, err), lookingUp)
}

// unclaimed makes a batch of the first n taken records, to be handled without claims. The batch
// ends before a record that cannot be completed without the store.
func (w *worker) unclaimed(n int) (*batch, error) {
	b := &batch{p: w.reading, result: w.newResult(), began: time.Now(), low: math.MaxInt64}
	var stop error
	for _, rec := range w.taken[:n] {
		if rec.Offset >= w.uncertain && !w.c.isAway() { // the store is available: the rest is claimed
			b.next = max(b.next, w.uncertain)
			break
		}
		if rec.Offset >= b.next && !isControl(rec) {
			s := w.sight(rec)
			cannotPass := errors.Is(s.err, identify.ErrNoTopicID) || isTransient(s.err)
			switch {
			case !cannotPass && s.err != nil && w.route.Undecodable != Reject && rec.Offset < w.inStore: // its dead letter is there
			case cannotPass, s.err != nil && w.route.Undecodable != Reject:
				stop = s.err
			case s.err != nil:
				b.reject(s.delivery, deadletter.Undecodable, s.err)
			default:
				s.Verdict = engine.Failed
				b.keep(s.delivery)
				b.tally.handled(s.delivery)
				b.tally.unclaimed++
				b.tally.unprotected++
			}
			if stop != nil {
				break
			}
			b.identified(&s)
		}
		b.done++
		b.next, b.epoch = max(b.next, rec.Offset+1), rec.LeaderEpoch
	}
	w.next, w.epoch = b.next, b.epoch
	w.offsets.moved(b.unbegun(0))
	if len(b.claimed) == 0 {
		w.c.m.tally(w.pos.Topic, &b.tally)
	}
	logNotes(w.ctx, w.log, w.c.opt.Telemetry.DuplicateLevel.Level(), b.notes, b.next)
	return b, stop
}
