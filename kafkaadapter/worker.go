package kafkaadapter

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/feed"
)

// A worker is the goroutine of an assignment: it goes through the states, and handles the records
// in order.
type worker struct {
	partition *partition
	state     *partitionState
	finder    finder
	plan      plan        // of the next batch
	survey    feed.Survey // of the log, for gaps between offsets

	delays *delays
}

// newWorker returns the worker of an assignment that has not begun.
func newWorker(p *partition, ask requests, committed *brokers.Commit) *worker {
	r := newReading(p, ask)
	// failOpen begins there; the client may ignore a seek backwards before it has the partition
	if r.takeMark(committed); committed != nil && committed.Offset < r.uncertain {
		p.fetchAt = min(p.fetchAt, committed.Offset)
	}
	return &worker{partition: p, state: r, finder: finder{partition: p, state: r}}
}

// run handles records until the state changes.
func (w *worker) run() state {
	defer func() { w.state.lane.Leave() }() // no other partition waits for one that does not run
	next := running
	for next == running {
		if len(w.state.taken) == 0 {
			next = w.take()
		}
		if next == running {
			next = w.work()
		}
	}
	if next == ended { // the fence is left, or the attempt was cut off
		return ended
	}
	if err := w.partition.fence.Unmark(w.partition.ctx); err != nil {
		return w.state.failed(err)
	}
	return next
}

// rest waits before the next batch. The partition only waits: a process that dies meanwhile has made
// no attempt at the next record.
func (w *worker) rest(d time.Duration) state {
	if err := w.partition.fence.Unmark(w.partition.ctx); err != nil {
		return w.state.failed(err)
	}
	return waitMakingRoom(w.state, d, running)
}

// take waits for records.
func (w *worker) take() state {
	w.state.lookout.recycleAll()
	w.partition.handlers.hands.end()
	for !w.partition.isEnding() {
		switch {
		case w.partition.IsPaused():
			return paused
		case w.partition.store.err() != nil:
			return w.state.failed(w.partition.store.err())
		case w.state.isOutdated(), w.state.large != nil: // the client has stopped before the batch
			return lookingUp
		}
		recs, fault := w.partition.queue.Pop(w.state.buf[:0], min(w.state.size.n, w.partition.fence.Width()))
		if w.state.buf = recs; len(recs) > 0 {
			w.partition.handlers.hands.begin(w.partition.queue.PoppedBytes(), len(recs))
		}
		switch {
		case len(recs) > 0:
			if next := w.check(recs); next != running {
				return next
			}
			w.state.taken, w.delays = recs, newDelays(w.partition.c.opt.backoff)
			w.state.isRead()
			return w.state.readState()
		case fault != nil:
			return w.faulted(fault)
		}
		w.idle()
		if !w.partition.hasWork(w.state.next) {
			w.state.isRead()
		}
		select {
		case <-w.partition.ending.Done():
		case <-w.partition.queue.C:
		}
	}
	return ended
}

// idle is called when there are no records.
func (w *worker) idle() {
	clear(w.state.buf[:cap(w.state.buf)])
	w.state.lookout.trim()
	if w.partition.open.Load() {
		return
	}
	if err := w.moveIdleHold(); err != nil && !isEnd(err) && !w.partition.c.goesOn(w.partition.link.Load(), err) {
		w.partition.c.throttled(w.partition.log.Warn, "moving the hold of a partition failed; it is tried again", w.partition.tp(), "error", err)
	}
}

// faulted returns the state after an error of the client that stopped fetching the partition.
func (w *worker) faulted(err error) state {
	w.partition.queue.Close()
	w.state.cause = err
	large := (*kgo.ErrDecompressTooLarge)(nil)
	switch {
	case errors.As(err, &large):
		return passLarge(w, large)
	case errors.As(err, new(*kgo.ErrDataLoss)):
		w.state.cause = errors.Join(ErrLogDiverged, err)
		return lookingUp
	case isPositionError(err), errors.Is(err, errCommitChanged), errors.Is(err, errShapeChanged):
		return lookingUp
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return w.state.stopForNow("unauthorized", err, lookingUp)
	case errors.As(err, new(*kerr.Error)):
		return w.state.stopForNow("fetch_error", err, lookingUp)
	}
	return w.state.stopForNow("unreadable", err, lookingUp)
}

// isPositionError reports whether a fetch failed because of its offset, so that the partition must
// be looked up again.
func isPositionError(err error) bool {
	return errors.As(err, new(*kgo.ErrDataLoss)) || errors.Is(err, kerr.OffsetOutOfRange) ||
		errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, kerr.InconsistentTopicID) || errors.Is(err, ErrRecreated)
}

// work makes batches of the taken records, until all are done or the state changes.
func (w *worker) work() state {
	w.plan.take(len(w.state.taken))
	for len(w.state.taken) > 0 {
		if next := w.beforeBatch(); next != running {
			return next
		}
		n := w.plan.size(len(w.state.taken), w.partition.fence.SingleStep() > 0)
		if w.partition.fence.SingleStep() > 0 {
			if err := w.mark(w.state.taken[0]); err != nil {
				return w.state.failed(err)
			}
		}
		b, err := w.commitBatch(n)
		if next := w.replan(n, b, err); next != running {
			return next
		}
	}
	return running
}

// replan decides after an attempt to commit a batch of n records what the next batch is, or returns the
// state in which there is none.
func (w *worker) replan(n int, b *batch, err error) state {
	if w.partition.store.hasFailed(err) {
		return w.state.failed(err)
	}
	switch outcomeOf(err, w.partition.route.transactional()) {
	case batchCommitted:
		w.plan.committed()
		return w.after(b, n)
	case handlerFailed:
		w.batchFailed(n, err)
	case sumFailed:
		if w.refuse(n, err); n > 1 {
			w.partition.log.Warn("a sum of a batch cannot be made; its records are handled one by one", "offset", w.state.taken[0].Offset, "records", n, "error", err)
		}
	case inConflict:
		return conflicted(w, n, err)
	case tooMuch:
		if n == 1 {
			return w.overLimit(err)
		}
		w.plan.most = n / 2 // the adapter's own writes must also fit
	default:
		return w.state.failed(err)
	}
	return running
}

// conflicted returns the state after a batch of n records was in conflict. The partition keeps its turn after
// a few conflicts, so others wait for it; one that still conflicts stops, and lets them continue.
func conflicted(w *worker, n int, err error) state {
	w.state.hinder("conflict", fmt.Errorf("%w; %d times in a row", err, w.plan.conflicted(n)))
	if w.state.lane.LosesAlone() && errors.Is(err, engine.ErrConflict) {
		if n == 1 {
			return w.state.stopForNow("conflict", fmt.Errorf("%w: offset %d, key %s: %w", ErrSelfConflict, w.state.taken[0].Offset, keyOf(w.partition, err), err), publishing)
		}
		w.plan.alone = n // the records before the one that conflicts commit
	}
	return w.rest(w.delays.inFlight())
}

// keyOf returns the key of a conflict for messages.
func keyOf(p *partition, err error) string {
	e := (*engine.ConflictError)(nil)
	if !errors.As(err, &e) {
		return "unknown, none of the application's"
	}
	return p.c.opt.Telemetry.IDs.Text(string(e.Key))
}

// overLimit returns the state after a batch of one record has exceeded a limit: its handler has left
// too little room for the adapter's writes, or the store cannot claim its event. The claim may also be
// in a damaged part of the store.
func (w *worker) overLimit(err error) state {
	blamed := w.state.blames(w.state.taken[0])
	switch {
	case isDamage(err) && (w.partition.route.transactional() || blamed || w.partition.route.Policies[Failed] == StopBefore):
		return w.state.stopForNow("damaged", err, publishing)
	case blamed && w.partition.route.transactional():
		return w.state.failed(err)
	case !w.partition.route.transactional() && (blamed || w.partition.route.Policies[Failed] == StopBefore):
		return w.state.stopForNow("limit", err, publishing)
	}
	w.refuse(1, err)
	return running
}

// beforeBatch waits for the pause that is due, and returns the next state if no batch is to be
// made.
func (w *worker) beforeBatch() state {
	d := w.plan.rest()
	switch {
	case w.partition.isEnding():
		return ended
	case d > 0:
		if next := w.rest(d); next != running {
			return next
		}
	}
	if w.partition.IsPaused() {
		return paused
	}
	return running
}

// after completes a batch of n records that has committed.
func (w *worker) after(b *batch, n int) state {
	if b.result.done > 0 {
		w.delays.reset()
		w.state.retries.Reset()
		w.state.isRead() // a stop before its first record has ended
	}
	w.state.taken = w.state.taken[b.result.done:]
	if b.late && !w.partition.handleClaimed(b) { // before the letter: claimed records must not wait for the broker
		return ended
	}
	w.state.size.took(n, b.handling)
	w.plan.resting = w.restAfter(b)
	if b.result.pending != nil {
		w.state.pending = b.result.pending
		return publishing
	}
	if b.transient != nil && b.result.done == 0 {
		return w.state.stopForNow("transient", b.transient, publishing)
	}
	return running
}

// restAfter is the pause before the remaining records of a batch are judged again. A batch that an
// event in flight cut short has taken its time to commit, if it had anything to commit: the next
// one is made at once.
func (w *worker) restAfter(b *batch) time.Duration {
	switch {
	case w.isTriedAgain(b):
		w.state.hinder("failing", fmt.Errorf("its handler has failed %d times: %w", w.partition.fence.Tries().N, b.failed))
		return w.delays.attempt(w.partition.fence.Tries().N)
	case b.inFlight && b.result.done == 0:
		w.state.hinder("in_flight", errInFlight)
		return w.delays.inFlight()
	}
	return 0
}

// isTriedAgain reports whether the record after the batch has failed and is handled again. If not,
// it becomes a dead letter without a pause.
func (w *worker) isTriedAgain(b *batch) bool {
	return b.failed != nil && uint64(w.partition.fence.Tries().N) < w.partition.attemptLimit()
}

// commitBatch commits as many of the first n taken records as it can in one batch of the store.
func (w *worker) commitBatch(n int) (*batch, error) {
	recs := w.state.taken
	var peek *kgo.Record
	if n < len(recs) {
		peek = recs[n]
	}
	var b *batch
	began := time.Now()
	defer w.partition.handlers.under(began)()
	w.state.lookEarly(recs[:n])
	f := &w.partition.fence
	retries := 8
	if w.state.lane.LosesAlone() {
		retries = 0
	}
	err := driver.Update(w.partition.ctx, w.partition.engine(), func(tx *engine.Tx) error {
		b = &batch{p: w.state, tx: tx, result: w.state.newResult(), ours: f.State(), began: time.Now(), low: math.MaxInt64}
		if err := b.judge(recs[:n]); err != nil {
			return err
		}
		return b.writeState(recs[:n], peek)
	}, driver.UpdateOptions{Retries: retries, AllowUnsyncedDuplicates: true, Lane: w.state.lane, Expected: w.state.lookout.early.events,
		OnPrefetched: func(claimed []bool) { w.state.lookout.early.decode(w.partition, claimed) }})
	if err != nil {
		if errors.Is(err, engine.ErrOutcomeUnknown) {
			markUncertain(w, b.result.next) // it may have ended before the last of the records
		}
		return nil, err
	}
	took := time.Since(began)
	b.handling += w.state.lookout.early.handling
	w.partition.c.m.batch(w.partition.pos.Topic, b.result.done, b.failed != nil, b.handling, took)
	if !b.late {
		w.partition.c.m.tally(w.partition.pos.Topic, &b.result.tally)
	}
	w.state.next, w.state.epoch, w.state.last = b.result.next, b.result.epoch, b.failed
	f.Committed(b.ours, b.result.done)
	w.plan.done(b.result.done)
	w.state.blame = nil
	if !b.holdAt.IsZero() {
		w.partition.hold.set(b.holdAt)
	}
	w.partition.offsets.moved(b.result.unbegun(0))
	logNotes(w.partition.ctx, w.partition.log, &w.partition.c.opt.Telemetry, b.notes)
	if b.result.tally.idRules[identify.IDPosition] > 0 {
		notePositions(w.partition)
	}
	return b, nil
}

// refuse records that a batch of n records cannot commit because of one of them: they are handled
// one by one. A record whose batch of one cannot commit is the cause.
func (w *worker) refuse(n int, err error) {
	if n > 1 {
		w.plan.alone = n
		return
	}
	w.state.blame = &blame{w.state.taken[0].Offset, err}
}

// mark stores an attempt before its handler runs, when the partition has its turn: a process that dies
// while it waits for that has made no attempt, also if the batch before has stored it.
func (w *worker) mark(rec *kgo.Record) error {
	if !w.partition.route.transactional() || isControl(rec) {
		return nil
	}
	fence, ctx := &w.partition.fence, w.partition.ctx
	if err := w.state.lane.Await(ctx, w.partition.engine(), func() error { return fence.Unmark(ctx) }); err != nil {
		return err
	}
	return fence.Mark(ctx, rec.Offset, w.partition.attemptLimit())
}

// batchFailed records which records of a batch of n may be the cause of the failure of HandleBatch.
func (w *worker) batchFailed(n int, err error) {
	failure := (*batchFailure)(nil)
	if errors.As(err, &failure); failure.offset >= 0 {
		w.state.blame, w.plan.suspects = &blame{failure.offset, failure.err}, 0
		return
	}
	if w.plan.suspects == 0 {
		w.partition.log.Warn("a batch failed; it is halved until the record is found", "offset", w.state.taken[0].Offset, "records", n, "error", failure.err,
			"hint", "return kafkaadapter.FailedAt from HandleBatch to name the record")
	}
	w.plan.suspects = n
}

// moveIdleHold moves the hold of a partition that is caught up and idle.
func (w *worker) moveIdleHold() error {
	if w.partition.hold.isCurrent() {
		return nil
	}
	if !w.partition.ends.caughtUp(w.state.next) {
		return nil
	}
	var at time.Time
	err := w.partition.engine().Update(w.partition.ctx, func(tx *engine.Tx) (err error) {
		if err = w.partition.fence.Check(ownerTx{tx, w.partition.pos}); err == nil {
			at, err = w.partition.hold.move(tx, time.Now())
		}
		return err
	}, engine.Retries(10))
	if err == nil && !at.IsZero() {
		w.partition.hold.set(at)
	}
	return err
}
