package kafkaadapter

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
)

// judge claims and handles records until all are done or the batch must end before one of them.
func (b *batch) judge(recs []*kgo.Record) error {
	if err := b.p.partition.fence.Check(ownerTx{b.tx, b.p.partition.pos}); err != nil {
		return err
	}
	if len(b.p.lookout.early.all) == 0 {
		b.p.lookout.touched += touch(recs)
	}
	if b.p.inParts(len(recs)) {
		return b.judgeInParts(recs)
	}
	return b.judgeInOrder(recs)
}

// judgeInOrder claims and handles records one after the other.
func (b *batch) judgeInOrder(recs []*kgo.Record) error {
	for i, rec := range recs {
		if i > 0 && (b.handling > b.p.partition.c.opt.batchTime || b.p.partition.isEnding()) {
			break
		}
		if i%lookAhead == 0 {
			took, err := b.p.look(b.tx, recs[i:min(i+lookAhead, len(recs))], b.result.next)
			if err != nil {
				return err
			}
			b.handling += took
		}
		if rec.Offset < b.result.next { // read again after a seek: already done
			b.result.done++
			continue
		}
		s := &b.p.lookout.ahead[i%lookAhead]
		var f fate
		var err error
		if !isControl(rec) {
			f, err = b.one(s, i == 0)
		}
		if f == left && err == nil || b.result.done > 0 && stops(err) {
			break
		}
		if err != nil {
			return err
		}
		b.result.done++
		b.result.next, b.result.epoch = rec.Offset+1, rec.LeaderEpoch
		b.identified(s)
		if b.result.letterBytes >= maxLetterBytes || b.retried {
			break
		}
	}
	return b.handleGroup()
}

// A partRun judges the records of a batch in parallel. Each record gets a part of the batch's
// transaction, and is judged in it like a batch of one record. Parts are joined in the order of
// offsets, so that the batch is the same as if the records were judged one after the other. It ends
// before a record that failed.
type partRun struct {
	pool  *pool
	b     *batch
	recs  []*kgo.Record
	tasks []partTask
}

// A partTask is one record of a partRun.
type partTask struct {
	sighting sighting
	skip     bool         // nothing to judge
	part     driver.SubTx // nil until it begins
	own      *batch       // what the record adds to the batch
	fate     fate         // of own.one
	err      error        // of own.one
}

// judgeInParts judges records in parallel until all are done, or the batch must end before one of
// them.
func (b *batch) judgeInParts(recs []*kgo.Record) error {
	r := &partRun{pool: newPool(b.p.partition.route, len(recs)), b: b, recs: recs, tasks: make([]partTask, len(recs))}
	defer func() {
		r.pool.drain() // handlers that still run use the transaction
		b.handling = time.Since(b.began)
		for i := range r.tasks {
			b.p.lookout.recycle(r.tasks[i].sighting.delivery)
		}
	}()
	for r.pool.settled < len(recs) {
		if r.pool.states[r.pool.settled] == taskFinished {
			if more, err := r.settle(); err != nil || !more {
				return err
			}
			continue
		}
		if err := r.beginSome(); err != nil {
			return err
		}
		switch {
		case r.pool.states[r.pool.settled] == taskFinished:
		case r.pool.running > 0:
			r.finish()
		default:
			return nil // the next record does not begin
		}
	}
	return nil
}

// beginSome begins the records that can begin now.
func (r *partRun) beginSome() error {
	r.pool.limit(r.b.p.partition, r.b.began)
	for r.pool.ordered < r.pool.reach() {
		r.identify(r.pool.ordered)
	}
	for {
		task, ok := r.pool.next()
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
	if isControl(r.recs[task]) || r.recs[task].Offset < r.b.result.next {
		t.skip = true
		r.pool.order(nil, nil)
		r.pool.states[task] = taskFinished
		return
	}
	r.sight(task)
	p.partition.order(r.pool, t.sighting.delivery)
}

func (r *partRun) sight(task int) {
	t := &r.tasks[task]
	if t.sighting = r.b.p.sight(r.recs[task]); t.sighting.err == nil {
		r.b.p.partition.handlers.hands.give(t.sighting.delivery) // its handler has another goroutine
	}
}

// start begins the part of a record, and judges it there in a goroutine.
func (r *partRun) start(task int) error {
	part, err := driver.BeginSubTx(r.b.tx)
	if err != nil {
		return err
	}
	t, p := &r.tasks[task], r.b.p
	t.part = part
	t.own = &batch{p: p, tx: part.Tx(), ours: r.b.ours, began: time.Now(), low: math.MaxInt64}
	r.pool.begin(task, func(slot int) {
		t.sighting.delivery.slot = slot
		t.fate, t.err = t.own.one(&t.sighting, true)
	})
	return nil
}

// finish waits for a record. No record after one that failed begins.
func (r *partRun) finish() {
	if task := r.pool.await(); !r.tasks[task].joins() {
		r.pool.end = min(r.pool.end, task+1)
	}
}

// joins reports whether the part of a record becomes part of the batch.
func (t *partTask) joins() bool { return t.fate == completed && t.err == nil }

// settle joins the part of the next record, or discards it if the record failed. It reports false
// if the batch ends.
func (r *partRun) settle() (more bool, err error) {
	b, task := r.b, r.pool.settled
	t, rec := &r.tasks[task], r.recs[task]
	switch {
	case r.pool.exited:
		return false, nil // drain ends the goroutine
	case t.skip, rec.Offset < b.result.next: // done, or nothing to do
		b.result.done++
		b.result.next, b.result.epoch = max(b.result.next, rec.Offset+1), rec.LeaderEpoch
		r.pool.settled++
		return true, nil
	}
	if t.joins() {
		err = t.part.Join()
	} else {
		err = t.part.Discard()
	}
	switch {
	case b.p.partition.ctx.Err() != nil:
		return false, context.Cause(b.p.partition.ctx)
	case errors.Is(err, driver.ErrPartOutdated):
		return r.again(task)
	case err != nil && isTooMuch(err):
		if b.result.done > 0 {
			// the records before it in the batch may be the cause: the record gets a batch of its
			// own
			return false, nil
		}
		_, _ = b.attempted(t.sighting.delivery, err)
		return false, nil
	case err != nil:
		return false, err
	case t.err != nil && b.result.done > 0 && stops(t.err):
		return false, nil
	case t.err != nil:
		return false, t.err
	case t.fate == left:
		b.add(t.own)
		return false, nil
	}
	b.add(t.own)
	b.result.done++
	b.result.next, b.result.epoch = rec.Offset+1, rec.LeaderEpoch
	b.identified(&t.sighting)
	r.pool.settled++
	return b.result.letterBytes < maxLetterBytes, nil
}

// again judges a record again whose reads were outdated by an earlier record. No other part is
// joined before it, so that one repetition suffices.
func (r *partRun) again(task int) (more bool, err error) {
	if r.pool.limit(r.b.p.partition, r.b.began); r.pool.end <= task {
		return false, nil
	}
	for len(r.pool.free) == 0 {
		r.finish()
	}
	r.sight(task)
	return true, r.start(task)
}

// add adds the results of a record's part to the batch.
func (b *batch) add(own *batch) {
	b.low = min(b.low, own.low)
	b.result.letters, b.result.letterAt = append(b.result.letters, own.result.letters...), append(b.result.letterAt, own.result.letterAt...)
	b.result.letterBytes += own.result.letterBytes
	b.notes = append(b.notes, own.notes...)
	b.result.tally.add(&own.result.tally)
	b.inFlight, b.transient = own.inFlight, own.transient
	if b.failed = own.failed; own.failed != nil {
		b.ours.Tries, b.ours.Marked = own.ours.Tries, false
	}
}

// isTooMuch reports whether the size of the batch so far may be the reason for an error of a part.
func isTooMuch(err error) bool {
	return errors.Is(err, engine.ErrLimit) || errors.As(err, new(*engine.AddError))
}
