package kafkaadapter

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
)

// A partRun judges the records of a batch in parallel. Each record gets a part of the batch's
// transaction, and is judged in it like a batch of one record. Parts are joined in the order of
// offsets, so that the batch is the same as if the records were judged one after the other. It ends
// before a record that failed.
type partRun struct {
	*pool
	b     *batch
	recs  []*kgo.Record
	tasks []partTask
}

// A partTask is one record of a partRun.
type partTask struct {
	sighting
	skip   bool         // nothing to judge
	part   *engine.Part // nil until it begins
	own    *batch       // what the record adds to the batch
	result error        // of own.one
}

// judgeInParts judges records in parallel until all are done, or the batch must end before one of
// them.
func (b *batch) judgeInParts(recs []*kgo.Record) error {
	r := &partRun{pool: newPool(b.p.route, len(recs)), b: b, recs: recs, tasks: make([]partTask, len(recs))}
	defer func() {
		r.drain() // handlers that still run use the transaction
		b.handling = time.Since(b.began)
		for i := range r.tasks {
			b.p.recycle(r.tasks[i].delivery)
		}
	}()
	for r.settled < len(recs) {
		if r.states[r.settled] == taskFinished {
			if more, err := r.settle(); err != nil || !more {
				return err
			}
			continue
		}
		if err := r.beginSome(); err != nil {
			return err
		}
		switch {
		case r.states[r.settled] == taskFinished:
		case r.running > 0:
			r.finish()
		default:
			return nil // the next record does not begin
		}
	}
	return nil
}

// beginSome begins the records that can begin now.
func (r *partRun) beginSome() error {
	r.limit(r.b.p.partition, r.b.began)
	for r.ordered < r.reach() {
		r.identify(r.ordered)
	}
	for {
		task, ok := r.next()
		if !ok {
			return nil
		}
		if err := r.start(task); err != nil {
			return err
		}
	}
}

// identify identifies the next record and adds it to the pool.
func (r *partRun) identify(task int) {
	t, p := &r.tasks[task], r.b.p
	if isControl(r.recs[task]) || r.recs[task].Offset < r.b.next {
		t.skip = true
		r.order(nil, nil)
		r.states[task] = taskFinished
		return
	}
	r.sight(task)
	p.order(r.pool, t.delivery)
}

func (r *partRun) sight(task int) {
	t := &r.tasks[task]
	if t.sighting = r.b.p.sight(r.recs[task]); t.err == nil {
		r.b.p.hands.give(t.delivery) // its handler has another goroutine
	}
}

// start begins the part of a record, and judges it there in a goroutine.
func (r *partRun) start(task int) error {
	part, err := r.b.tx.Part()
	if err != nil {
		return err
	}
	t, p := &r.tasks[task], r.b.p
	t.part = part
	t.own = &batch{p: p, tx: part.Tx(), tries: r.b.tries, began: time.Now(), low: math.MaxInt64}
	r.begin(task, func(slot int) {
		t.slot = slot
		t.result = t.own.one(&t.sighting, true)
	})
	return nil
}

// finish waits for a record. No record after one that failed begins.
func (r *partRun) finish() {
	if task := r.await(); r.tasks[task].result != nil {
		r.end = min(r.end, task+1)
	}
}

// settle joins the part of the next record, or discards it if the record failed. It reports false
// if the batch ends.
func (r *partRun) settle() (more bool, err error) {
	b, task := r.b, r.settled
	t, rec := &r.tasks[task], r.recs[task]
	switch {
	case r.exited:
		return false, nil // drain ends the goroutine
	case t.skip, rec.Offset < b.next: // done, or nothing to do
		b.done++
		b.next, b.epoch = max(b.next, rec.Offset+1), rec.LeaderEpoch
		r.settled++
		return true, nil
	}
	failed := t.result
	if failed == nil {
		err = t.part.Join()
	} else {
		err = t.part.Discard()
	}
	switch {
	case b.p.ctx.Err() != nil:
		return false, context.Cause(b.p.ctx)
	case errors.Is(err, engine.ErrPartOutdated):
		return r.again(task)
	case err != nil && isTooMuch(err):
		if b.done > 0 {
			// the records before it in the batch may be the cause: the record gets a batch of its
			// own
			return false, nil
		}
		_ = b.attempted(t.delivery, err)
		return false, nil
	case err != nil:
		return false, err
	case errors.Is(failed, errCut):
		b.add(t.own)
		return false, nil
	case failed != nil && b.done > 0 && stops(failed):
		return false, nil
	case failed != nil:
		return false, failed
	}
	b.add(t.own)
	b.done++
	b.next, b.epoch = rec.Offset+1, rec.LeaderEpoch
	b.identified(&t.sighting)
	r.settled++
	return b.letterBytes < maxLetterBytes, nil
}

// again judges a record again whose reads were outdated by an earlier record. No other part is
// joined before it, so that one repetition suffices.
func (r *partRun) again(task int) (more bool, err error) {
	if r.limit(r.b.p.partition, r.b.began); r.end <= task {
		return false, nil
	}
	for len(r.free) == 0 {
		r.finish()
	}
	r.sight(task)
	return true, r.start(task)
}

// add adds the results of a record's part to the batch.
func (b *batch) add(own *batch) {
	b.low = min(b.low, own.low)
	b.letters, b.letterAt = append(b.letters, own.letters...), append(b.letterAt, own.letterAt...)
	b.letterBytes += own.letterBytes
	b.notes = append(b.notes, own.notes...)
	b.tally.add(&own.tally)
	b.inFlight, b.transient = own.inFlight, own.transient
	if b.failed = own.failed; own.failed != nil {
		b.tries, b.marked = own.tries, false
	}
}

// isTooMuch reports whether the size of the batch so far may be the reason for an error of a part.
func isTooMuch(err error) bool {
	return errors.Is(err, engine.ErrLimit) || errors.As(err, new(*engine.AddError))
}
