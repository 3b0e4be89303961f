package kafkaadapter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// A claimed is a record of AtMostOnce whose claim is durable, or that is handled without one,
// before its handler begins.
type claimed struct {
	*Record
	claim  engine.Record
	before tally // of the records of the batch before it
}

// A backlog holds the records of a committed batch whose handlers have not begun. Each record is
// taken from it once: to be handled, or to be taken back when the assignment ends.
type backlog struct {
	mu    sync.Mutex // guards the rest
	batch *batch     // nil if there is none
	begun int        // the number of its claimed records that were taken to be handled
}

func (l *backlog) fill(b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.batch, l.begun = b, 0
}

// next takes the next record to be handled, nil if there is none, and returns the offset that Kafka
// may have then.
func (l *backlog) next() (r *Record, offset int64, epoch int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.batch == nil || l.begun == len(l.batch.claimed) {
		return nil, 0, 0
	}
	r = l.batch.claimed[l.begun].Record
	l.begun++
	offset, epoch = l.batch.unbegun(l.begun)
	return r, offset, epoch
}

// rest takes the batch, and returns its records whose handlers have not begun. The caller counts
// its tally.
func (l *backlog) rest() (*batch, []claimed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.batch
	if l.batch = nil; b == nil {
		return nil, nil
	}
	return b, b.claimed[l.begun:]
}

// unbegun returns the offset of the first record whose handler has not begun, after that many have,
// and its epoch.
func (b *batch) unbegun(begun int) (int64, int32) {
	if begun < len(b.claimed) {
		return b.claimed[begun].Offset, b.claimed[begun].LeaderEpoch
	}
	return b.next, b.epoch
}

// handleClaimed runs the handlers of AtMostOnce for what a batch has claimed. Kafka gets the offset
// of a record only when the handler of the one before it has begun, so that it is not ahead of the
// store if the others are taken back.
func (p *partition) handleClaimed(b *batch) (goOn bool) {
	mode := p.route.Mode.(AtMostOnce)
	began := time.Now()
	defer p.under(began)()
	defer func() {
		b.handling = time.Since(began)
		p.c.m.handler.WithLabelValues(p.pos.Topic).Observe(b.handling.Seconds())
	}()
	p.backlog.fill(b)
	defer p.giveBack() // also if a handler ends the goroutine
	handle := p.handleInOrder
	if len(b.claimed) > 1 && p.route.Concurrency.Handlers > 1 {
		handle = p.handleSideBySide
	}
	return handle(mode, b)
}

// errExited is why an event is lost whose handler has ended its goroutine.
var errExited = errors.New("hapax: the handler ended its goroutine (runtime.Goexit, as t.FailNow does)")

// giveBack takes back what the batch has claimed and no handler has begun, or counts it as lost if
// the partition is another owner's by now.
func (p *partition) giveBack() {
	b, rest := p.backlog.rest()
	if cause := context.Cause(p.ctx); cause != nil && len(rest) > 0 && !p.open.Load() {
		p.lose(len(rest), rest[0].Record, cause)
		rest = nil
	}
	p.endBacklog(b, rest)
}

// endBacklog takes back what has not begun of a batch from the backlog, nil for none, and counts
// the rest. It is called by an assignment that is still the owner, or with nothing to take back.
func (p *partition) endBacklog(b *batch, rest []claimed) {
	if b == nil {
		return
	}
	stays := &b.tally
	if len(rest) > 0 && p.takeBack(b, rest) {
		stays = &rest[0].before
	}
	p.c.m.tally(p.pos.Topic, stays)
}

// takeBack gives up claims whose handlers have not begun, and sets the store's offset back to the
// first of them, in one batch. They are lost if that fails, but for a store that has failed with
// Options.FailOpen: then the group's commit shows them to the next owner.
func (p *partition) takeBack(b *batch, rest []claimed) (ok bool) {
	if p.open.Load() { // without claims Kafka's offset is enough: it is that of the first of them
		return true
	}
	err := p.engine().Update(context.Background(), func(tx *engine.Tx) error {
		if err := p.fence.check(tx); err != nil {
			return err
		}
		for i := range rest {
			if rest[i].Verdict != engine.Claimed {
				continue
			}
			if err := tx.Unclaim(rest[i].Event, rest[i].claim); err != nil && !errors.Is(err, engine.ErrNotClaimed) {
				return err
			}
		}
		return p.rewind(tx, b, rest)
	}, engine.Retries(100))
	switch {
	case err != nil && p.c.goesOn(p.link.Load(), err):
		p.doubt(b.next)
		p.log.Warn("claims of events that were not handled cannot be taken back, because the store has failed: the next owner handles them without claims",
			"events", len(rest), "offset", rest[0].Offset)
		return true
	case err != nil:
		p.lose(len(rest), rest[0].Record, err)
		return false
	}
	p.log.Info("claims of events that were not handled are taken back", "events", len(rest), "offset", rest[0].Offset)
	return true
}

// rewind sets the store back to the first of the records, as it was before them: the offset, the
// dead letters, and the hold.
func (p *partition) rewind(tx *engine.Tx, b *batch, rest []claimed) error {
	first := rest[0].Record
	at := engine.Offset{Next: first.Offset, LeaderEpoch: first.LeaderEpoch, TopicID: p.topicID}
	if err := tx.SetOffset(p.pos, at); err != nil {
		return err
	}
	if err := b.dropLetters(tx, first.Offset); err != nil {
		return err
	}
	low := p.heldAt()
	for i := range rest {
		if at := holdable(rest[i].Event.Time.Add(-p.route.AllowedLateness)); rest[i].Verdict == engine.Claimed && at.Before(low) {
			low = at
		}
	}
	if low.Equal(p.heldAt()) {
		return nil
	}
	return tx.SetHold(p.holdName(), low)
}

// dropLetters removes the batch's pending dead letters of records from the given offset on: these
// are judged again.
func (b *batch) dropLetters(tx *engine.Tx, from int64) error {
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
	_, err := deadletter.Put(tx, letterKey(b.p.pos), b.letters[:kept])
	return err
}

// handleInOrder handles the records of a batch one after the other, until all are done or the
// assignment ends.
func (p *partition) handleInOrder(mode AtMostOnce, _ *batch) (all bool) {
	var running *Record
	defer func() {
		if running != nil {
			p.lose(1, running, errExited)
		}
	}()
	for !p.isEnding() {
		r, offset, epoch := p.backlog.next()
		if r == nil {
			return true
		}
		p.offsets.moved(offset, epoch)
		running = r
		err := p.call(traced(p.ctx, p.c.opt.Telemetry.Propagator, r.Record), r.Record, 0, func(ctx context.Context) error { return mode.Handle(ctx, r) })
		if running = nil; err != nil {
			p.lose(1, r, err)
		}
	}
	return false
}

// handleSideBySide handles the records of a batch in parallel, until all are done or the assignment
// ends. Handlers begin in the order of offsets, so that those that have not begun are the last of
// the batch.
func (p *partition) handleSideBySide(mode AtMostOnce, b *batch) (all bool) {
	w := newPool(p.route, len(b.claimed))
	defer w.drain()
	errs := make([]error, len(b.claimed))
	for w.settled < len(b.claimed) {
		for w.ordered < w.reach() {
			p.order(w, b.claimed[w.ordered].Record)
		}
		for task, ok := w.next(); ok && task == w.begun && !w.exited && !p.isEnding(); task, ok = w.next() {
			r, offset, epoch := p.backlog.next()
			if r == nil { // the rest was taken back
				w.end = 0
				break
			}
			p.offsets.moved(offset, epoch)
			errs[task] = errExited
			w.begin(task, func(slot int) {
				ctx := traced(p.ctx, p.c.opt.Telemetry.Propagator, r.Record)
				errs[task] = p.call(ctx, r.Record, slot, func(ctx context.Context) error { return mode.Handle(ctx, r) })
			})
		}
		if w.running == 0 {
			return false
		}
		if task := w.await(); errs[task] != nil {
			p.lose(1, b.claimed[task].Record, errs[task])
		}
		w.settle()
	}
	return true
}

// lose counts and logs events that were claimed and not handled.
func (p *partition) lose(n int, r *Record, err error) {
	p.c.m.lost.WithLabelValues(p.pos.Topic).Add(float64(n))
	what := "claimed"
	if r.Verdict != engine.Claimed {
		what = "taken without a claim"
	}
	p.log.Error("events were "+what+" and not handled: they are lost", "events", n, "offset", r.Offset, "id", idText(r.Event.ID), "error", err)
}
