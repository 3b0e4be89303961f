package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
)

// run is the partition's worker.
func (p *partition) run() {
	defer close(p.done)
	defer p.unmark()
	returned := false
	defer func() {
		if !returned {
			p.c.fail(fmt.Errorf("hapax: %s: a handler ended its goroutine (runtime.Goexit, as t.FailNow does)", p.tp()))
		}
	}()
	p.judgeAll()
	returned = true
}

func (p *partition) judgeAll() {
	if !p.sign() || !p.publish() { // what an earlier owner could not publish any more
		return
	}
	for {
		recs := p.take(p.width1, p.idle)
		if len(recs) == 0 {
			return
		}
		if !p.work(recs) {
			return
		}
	}
}

// sign commits the position to Kafka with the store's identity before anything is handled, so that a later owner with
// another store sees that the claims are not in it, even if this process dies at once.
func (p *partition) sign() bool {
	pauses := p.newPause()
	for !p.signed {
		if p.c.commit(p.ending, []*partition{p}) {
			p.signed = true
		} else if !p.wait(pauses.inFlight()) {
			return false
		}
	}
	return true
}

// width1 is the number of records for the next batch.
func (p *partition) width1() int { return min(p.size.n, int(p.width)) }

// idle is called when there is nothing to do.
func (p *partition) idle() {
	if err := p.moveIdleHold(); err != nil && !isEnd(err) {
		p.log.Warn("moving the hold of a partition failed; it is tried again", "error", err)
	}
}

// work handles records until all of them are committed. It reports whether the worker goes on.
func (p *partition) work(recs []*kgo.Record) (goOn bool) {
	pause := p.newPause()
	most, conflicts := len(recs), 0
	for len(recs) > 0 {
		if p.isEnding() {
			return false
		}
		n := min(len(recs), most)
		if p.careful > 0 {
			n = 1
			if err := p.mark(recs[0]); err != nil {
				return p.failed(err)
			}
		}
		o, err := p.batch(recs, n)
		switch {
		case errors.Is(err, engine.ErrConflict), errors.Is(err, engine.ErrWeekDropped):
			most = max(1, n/2) // a shorter batch reads less, for a shorter time
			if conflicts++; conflicts == 20 {
				p.log.Warn("a batch is in conflict again and again; it is tried on", "offset", recs[0].Offset, "error", err,
					"hint", "does the handler write, beside tx, what it has read through tx?")
			}
			if !p.wait(pause.inFlight()) {
				return false
			}
			continue
		case errors.Is(err, engine.ErrLimit) && n > 1: // what the adapter writes itself has to fit into it too
			most = n / 2
			continue
		case err != nil:
			return p.failed(err)
		}
		most, conflicts = min(2*most, LimitBatch), 0
		if o.done > 0 {
			pause.reset()
		}
		recs = recs[o.done:]
		if o.late && !p.handleClaimed(o) { // before the letter: what is claimed must not wait for the broker
			return false
		}
		if o.letter && !p.publish() {
			return false
		}
		p.size.took(n, o.handling)
		if !p.rest(o, pause) {
			return false
		}
	}
	return true
}

// rest pauses before the records that a batch has left are judged again; false if the assignment ends. A batch that was
// cut short by an event in flight has taken its time to commit, if it had anything to commit: the next one is made at once.
func (p *partition) rest(o *outcome, s *pause) bool {
	switch {
	case p.isTriedAgain(o):
		return p.wait(s.attempt(p.tries.n))
	case o.inFlight && o.done == 0:
		return p.wait(s.inFlight())
	}
	return true
}

// isTriedAgain reports whether the record after the batch has failed and is handled once more. If not, there is nothing
// to wait for before it becomes a dead letter.
func (p *partition) isTriedAgain(o *outcome) bool { return o.failed != nil && !p.exhausted(p.tries.n) }

// failed ends the worker after an error that no further try will mend.
func (p *partition) failed(err error) (goOn bool) {
	switch {
	case p.ctx.Err() != nil:
	case errors.Is(err, ErrFenced):
		p.c.m.fenced.WithLabelValues(p.pos.Topic).Inc()
		p.log.Warn("a batch was dropped: the partition has another owner by now")
	case isEnd(err):
	case errors.Is(err, ErrUndecodable), errors.Is(err, ErrNoTopicID):
		p.c.halt(p.tp(), "undecodable", err)
	default:
		p.c.fail(err)
	}
	return false
}

func isEnd(err error) bool { return errors.Is(err, context.Canceled) || errors.Is(err, ErrFenced) }

func (p *partition) isEnding() bool { return p.ending.Err() != nil }

// wait pauses; it reports false if the assignment ends.
func (p *partition) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.ending.Done():
		return false
	case <-t.C:
		return true
	}
}

// batch commits as many of the first n records as it can in one batch of the store.
func (p *partition) batch(recs []*kgo.Record, n int) (*outcome, error) {
	var peek *kgo.Record
	if n < len(recs) {
		peek = recs[n]
	}
	var o *outcome
	began := time.Now()
	defer p.under(began)()
	err := p.c.eng.Update(p.ctx, func(tx *engine.Tx) error {
		o = &outcome{p: p, tx: tx, next: p.next, epoch: p.epoch, tries: p.tries, marked: p.marked, began: time.Now(), low: math.MaxInt64}
		return o.judge(recs[:n], peek)
	}, engine.Retries(8), engine.DurableAtCommit())
	if err != nil {
		return nil, err
	}
	took := time.Since(began)
	p.c.m.batch(p.pos.Topic, o, took)
	p.next, p.epoch, p.tries, p.last = o.next, o.epoch, o.tries, o.failed
	p.width = max(p.width, o.width)
	p.marked = o.marked
	p.careful = max(0, p.careful-o.done)
	if !o.holdAt.IsZero() {
		p.setHold(o.holdAt)
	}
	p.moved()
	p.tell(o)
	return o, nil
}

// mark stores that an attempt at the record begins, so that it counts even if the process does not survive it.
func (p *partition) mark(rec *kgo.Record) error {
	if p.marked || !p.c.withWork() || isControl(rec) {
		return nil
	}
	tries := p.tries
	if tries.offset != rec.Offset {
		tries = attempts{offset: rec.Offset}
	}
	if p.exhausted(tries.n) {
		return nil
	}
	tries.n++
	err := p.c.eng.Update(p.ctx, func(tx *engine.Tx) error {
		if err := p.own(tx); err != nil {
			return err
		}
		return tx.Put(partitionKey(keyAttempts, p.pos), tries.encode())
	}, engine.Retries(100))
	if err == nil {
		p.tries, p.marked = tries, true
	}
	return err
}

// unmark takes the mark back from an attempt that the worker's end left undone. An attempt that was cut off keeps it: by
// then nothing of this owner commits.
func (p *partition) unmark() {
	if !p.marked || p.ctx.Err() != nil {
		return
	}
	tries := attempts{offset: p.tries.offset, n: p.tries.n - 1}
	err := p.c.eng.Update(p.ctx, func(tx *engine.Tx) error {
		if err := p.own(tx); err != nil {
			return err
		}
		key := partitionKey(keyAttempts, p.pos)
		if tries.n == 0 {
			return tx.Delete(key)
		}
		return tx.Put(key, tries.encode())
	}, engine.Retries(100))
	if err != nil && !isEnd(err) {
		p.log.Warn("an attempt that did not begin stays counted", "offset", tries.offset, "error", err)
	}
}

// own fails if the partition has another owner by now. The read is part of the transaction: an owner that comes before
// the transaction commits is a conflict.
func (p *partition) own(tx *engine.Tx) error {
	o, err := readOwner(tx, p.pos)
	if err == nil && o.token != p.token {
		err = ErrFenced
	}
	return err
}

// exhausted reports whether n attempts are all that are allowed.
func (p *partition) exhausted(n uint32) bool {
	m, ok := p.c.mode.(WithWork)
	return ok && uint64(n) >= uint64(m.MaxAttempts)
}

// A pause makes the times between attempts: bounded, exponential, jittered.
type pause struct {
	first, longest time.Duration
	flight         *backoff.ExponentialBackOff
}

func (p *partition) newPause() *pause {
	s := &pause{first: p.c.opt.FirstBackoff, longest: p.c.opt.LongestBackoff, flight: backoff.NewExponentialBackOff()}
	s.flight.InitialInterval, s.flight.MaxInterval = 2*time.Millisecond, time.Second
	return s
}

// attempt is the pause after the n-th failed attempt. It depends on n alone, so that it survives a restart.
func (s *pause) attempt(n uint32) time.Duration {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier = s.first, s.longest, 2
	var d time.Duration
	for range min(max(n, 1), 64) {
		d = b.NextBackOff()
	}
	return min(d, s.longest)
}

// inFlight is the pause before a record is judged again that another transaction holds.
func (s *pause) inFlight() time.Duration { return s.flight.NextBackOff() }

func (s *pause) reset() { s.flight.Reset() }
