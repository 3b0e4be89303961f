package kafkaadapter

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// The files unprotected*.go are for a consumer whose store is unavailable, if Options.ReopenStore is
// set. This one has the steps of a partition meanwhile. Its offset is then in Kafka, with a mark (see
// resume.OpenMark). When the store is open again, reading continues at the later one of the two
// offsets: records below Kafka's were handled without claims, and records below the store's with
// claims. See resume.ErrRanOpen.

// failOpen decides without the store where to read: at this assignment's offset, or at Kafka's
// commit. The offset is committed to Kafka with the mark before anything is handled.
func (f *finder) failOpen() state {
	f.partition.all.pause(f.partition)
	f.partition.queue.Close()
	f.state.taken, f.state.pending = nil, nil
	f.partition.before.Store(nil) // an earlier assignment has its fence in a store that accepts no more writes
	f.endAdoption(ErrUnprotected).finish(ErrUnprotected)
	if err := f.state.settle(); err != nil {
		return f.state.failed(err)
	}
	if f.state.mayClaim() {
		return lookingUp
	}
	v, err := f.lookAt(nil)
	switch {
	case f.partition.isEnding():
		return ended
	case err != nil:
		return f.state.stopForNow(reasonOf(err), err, lookingUp)
	case f.readsAnotherTopic(v):
		f.state.ask.forget(f.partition)
		if !f.partition.wait(f.state.retries.NextBackOff()) {
			return ended
		}
		return lookingUp
	}
	if f.state.uncertain = min(f.state.uncertain, v.End); f.state.mayClaim() { // the log was cut
		return lookingUp
	}
	if f.partition.route.Start == Latest && v.Store == nil && v.Committed == nil {
		if f.state.latest == nil {
			f.state.latest = &v.End
		}
		return f.state.stopForNow("store", fmt.Errorf("%w: only the store knows whether the group has read the partition", ErrUnprotected), lookingUp)
	}
	b, err := f.decide(v, v.BeginOpen)
	if err != nil && !f.partition.links.areAway() {
		// the offset in the mark cannot be read: the store decides alone
		if !errors.Is(err, ErrBelowLog) || v.Start >= f.state.uncertain {
			f.state.uncertain = 0
			return lookingUp
		}
		f.partition.log.Warn("records that the store has claims of, and that were not handled, were removed from the log; those that are left are handled", "offset", v.Start, "error", err)
		b, err = resume.Beginning{Offset: v.Start, Epoch: -1}, nil
	}
	if err != nil {
		// the store may have a later offset
		return f.state.stopForNow("position", fmt.Errorf("%w: %w", ErrUnprotected, err), lookingUp)
	}
	f.state.topicID, f.state.next, f.state.epoch, f.state.cause = v.Topic.ID, b.Offset, b.Epoch, nil
	f.partition.fence.Widen(f.partition.c.opt.MaxBatch) // it is stored anew before the next claim
	f.partition.open.Store(true)
	f.partition.offsets.begin(b, f.state.epoch, v.Self.OpenMark(f.state.uncertain))
	f.state.opened = true
	f.state.ask.openings.ask(f.partition, opening{b.Offset, v.Topic.ID})
	if next := f.sign(); next != publishing {
		return next
	}
	return unprotected
}

// runOpen handles records without claims until the store is open again.
func (w *worker) runOpen() state {
	for {
		if len(w.state.taken) == 0 {
			if next := w.take(); next != unprotected {
				return next
			}
		}
		switch {
		case w.partition.isEnding():
			return ended
		case w.partition.IsPaused():
			return paused
		case w.state.isOutdated():
			return lookingUp
		}
		if next := w.workOpen(); next != unprotected {
			return next
		}
	}
}

// workOpen handles some of the taken records. Kafka's offset follows the handlers.
func (w *worker) workOpen() state {
	n := min(len(w.state.taken), w.state.size.n)
	b, err := w.unclaimed(n)
	w.state.taken = w.state.taken[b.result.done:]
	if b.result.done > 0 {
		w.state.retries.Reset()
		w.state.isRead()
	}
	if len(b.result.claimed) > 0 && !w.partition.handleClaimed(b) {
		return ended
	}
	if b.result.done > 0 {
		w.state.size.took(n, b.handling)
	}
	switch {
	case err == nil:
		return unprotected
	case b.result.done > 0:
		return unprotected // it is the first of the next records again
	case errors.Is(err, identify.ErrNoTopicID):
		return w.state.stop("undecodable", err)
	case IsTransient(err):
		return w.state.stopForNow("transient", fmt.Errorf("offset %d: %w", w.state.taken[0].Offset, err), lookingUp)
	}
	return w.state.stopForNow("store", fmt.Errorf("%w: a dead letter has to wait for it: %w", ErrUnprotected, err), lookingUp)
}

// unclaimed makes a batch of the first n taken records, to be handled without claims. The batch
// ends before a record that cannot be completed without the store.
func (w *worker) unclaimed(n int) (*batch, error) {
	b := &batch{p: w.state, result: w.state.newResult(), began: time.Now(), low: math.MaxInt64}
	var stop error
	for _, rec := range w.state.taken[:n] {
		if rec.Offset >= w.state.uncertain && !w.partition.links.areAway() { // the store is available: the rest is claimed
			b.result.next = max(b.result.next, w.state.uncertain)
			break
		}
		if rec.Offset >= b.result.next && !isControl(rec) {
			s := w.state.sight(rec)
			cannotPass := errors.Is(s.err, identify.ErrNoTopicID) || IsTransient(s.err)
			switch {
			case !cannotPass && s.err != nil && w.partition.route.Policies[Undecodable] != Reject && rec.Offset < w.state.inStore: // its dead letter is there
			case cannotPass, s.err != nil && w.partition.route.Policies[Undecodable] != Reject:
				stop = s.err
			case s.err != nil:
				b.reject(s.delivery, deadletter.Undecodable, s.err)
			default:
				s.delivery.Verdict = engine.Failed
				b.keep(s.delivery)
				b.result.tally.handled(s.delivery)
				b.result.tally.unclaimed++
				b.result.tally.unprotected++
			}
			if stop != nil {
				break
			}
			b.identified(&s)
		}
		b.result.done++
		b.result.next, b.result.epoch = max(b.result.next, rec.Offset+1), rec.LeaderEpoch
	}
	w.state.next, w.state.epoch = b.result.next, b.result.epoch
	w.partition.offsets.moved(b.result.unbegun(0))
	if len(b.result.claimed) == 0 {
		w.partition.c.m.tally(w.partition.pos.Topic, &b.result.tally)
	}
	logNotes(w.partition.ctx, w.partition.log, &w.partition.c.opt.Telemetry, b.notes)
	return b, stop
}
