package kafkaadapter

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// A worker is what the goroutine needs to handle records.
type worker struct {
	taken      []*kgo.Record // from the queue, and not done yet
	buf        []*kgo.Record // the memory of taken
	next       int64         // the store's offset
	epoch      int32
	last       error // why the last attempt failed, if it was in this assignment
	alone      int   // records to commit one by one, because a batch of them failed and one of them is to blame
	suspects   int   // records among which is the one that made HandleBatch fail
	blame      *blame
	size       batchSize
	survey     survey // of the log, for gaps between offsets
	pause      *pause
	waitsSince time.Time           // for an answer of the broker
	resting    time.Duration       // before the next batch
	pending    *deadletter.Pending // dead letters to publish, nil if they are still to be read from the store
	lookout
}

// run handles records until the state changes.
func (p *partition) run() state {
	for {
		if len(p.taken) == 0 {
			if next := p.take(); next != running {
				return next
			}
		}
		if next := p.work(); next != running {
			return next
		}
	}
}

// reading is the state in which records are handled.
func (p *partition) reading() state {
	if p.open.Load() {
		return unprotected
	}
	return running
}

// take waits for records.
func (p *partition) take() state {
	for !p.isEnding() {
		switch {
		case p.isPaused():
			return paused
		case p.isOutdated():
			return lookingUp
		}
		recs, resume, fault := p.queue.pop(p.buf[:0], min(p.size.n, int(p.fence.width)), p.all.limits())
		if p.buf = recs; resume {
			p.all.resume(p)
		}
		switch {
		case len(recs) > 0:
			if err := p.explainGaps(recs); err != nil {
				return p.missing(err)
			}
			p.taken, p.pause, p.waitsSince = recs, p.newPause(), time.Time{}
			p.isRead()
			return p.reading()
		case fault != nil:
			return p.faulted(fault)
		}
		p.idle()
		switch {
		case p.isSilent():
			return silent
		case p.waitsSince.IsZero():
			p.isRead()
		}
		select {
		case <-p.ending.Done():
		case <-p.queue.wake:
		}
	}
	return ended
}

// idle is called when there is nothing to do.
func (p *partition) idle() {
	if p.open.Load() {
		return
	}
	if err := p.moveIdleHold(); err != nil && !isEnd(err) && !p.c.goesOn(p.link.Load(), err) {
		p.c.throttled(p.log.Warn, "moving the hold of a partition failed; it is tried again", p.tp(), "error", err)
	}
}

// isPositionError reports whether a fetch failed because of where it reads: the partition is looked
// up again.
func isPositionError(err error) bool {
	return errors.As(err, new(*kgo.ErrDataLoss)) || errors.Is(err, kerr.OffsetOutOfRange) ||
		errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, kerr.InconsistentTopicID) || errors.Is(err, ErrRecreated)
}

// faulted says what follows an error of the client that stopped fetching the partition.
func (p *partition) faulted(err error) state {
	p.queue.close()
	p.cause = err
	switch {
	case errors.As(err, new(*kgo.ErrDataLoss)):
		p.cause = errors.Join(ErrLogDiverged, err)
		return lookingUp
	case isPositionError(err), errors.Is(err, errCommitChanged):
		return lookingUp
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return p.stopForNow("unauthorized", err, lookingUp)
	case errors.As(err, new(*kerr.Error)):
		return p.stopForNow("fetch_error", err, lookingUp)
	}
	return p.stopForNow("unreadable", err, lookingUp)
}

// work makes batches of the records that were taken, until all are done or the state changes.
func (p *partition) work() state {
	most, conflicts := len(p.taken), 0
	for len(p.taken) > 0 {
		if next := p.beforeBatch(); next != running {
			return next
		}
		n := p.nextBatch(most)
		if p.fence.careful > 0 {
			if err := p.mark(p.taken[0]); err != nil {
				return p.failed(err)
			}
		}
		b, err := p.commitBatch(n)
		failure := (*batchFailure)(nil)
		switch {
		case errors.As(err, &failure):
			p.batchFailed(n, failure)
			continue
		case errors.As(err, new(*engine.AddError)) && p.route.transactional():
			if p.refuse(n, err); n > 1 {
				p.log.Warn("a sum of a batch cannot be made; its records are handled one by one", "offset", p.taken[0].Offset, "records", n, "error", err)
			}
			continue
		case errors.Is(err, engine.ErrConflict), errors.Is(err, engine.ErrWeekDropped):
			most = max(1, n/2) // a shorter batch reads less, for a shorter time
			if conflicts++; conflicts == 20 {
				p.log.Warn("a batch is in conflict again and again; it is retried", "offset", p.taken[0].Offset, "error", err,
					"hint", "does the handler write outside tx what it has read through tx?")
			}
			if !p.wait(p.pause.inFlight()) {
				return ended
			}
			continue
		case errors.Is(err, engine.ErrLimit) && n > 1: // the adapter's own writes have to fit into it too
			most = n / 2
			continue
		case errors.Is(err, engine.ErrLimit) && p.route.transactional() && p.blame == nil: // its handler has left too little room
			p.refuse(n, err)
			continue
		case err != nil:
			return p.failed(err)
		}
		most, conflicts = min(2*most, MaxBatchLimit), 0
		if next := p.after(b, n); next != running {
			return next
		}
	}
	return running
}

// beforeBatch makes the pause that is due, and returns the state to go to if no batch is to be
// made.
func (p *partition) beforeBatch() state {
	d := p.resting
	p.resting = 0
	switch {
	case p.isEnding() || d > 0 && !p.wait(d):
		return ended
	case p.isPaused():
		return paused
	}
	return running
}

// nextBatch is how many of the records that were taken the next batch has: one by one after an
// unclean stop or with a record that failed, and half of those among which the one that failed is
// looked for.
func (p *partition) nextBatch(most int) int {
	n := min(len(p.taken), most)
	switch {
	case p.alone > 0 || p.fence.careful > 0:
		return 1
	case p.suspects > 0:
		return max(1, min(n, p.suspects/2))
	}
	return n
}

// after does what follows a batch of n records that has committed.
func (p *partition) after(b *batch, n int) state {
	if b.done > 0 {
		p.pause.reset()
		p.retries.Reset()
	}
	p.taken = p.taken[b.done:]
	if b.late && !p.handleClaimed(b) { // before the letter: what is claimed must not wait for the broker
		return ended
	}
	p.size.took(n, b.handling)
	p.resting = p.restAfter(b)
	if b.pending != nil {
		p.pending = b.pending
		return publishing
	}
	if b.transient != nil && b.done == 0 {
		return p.stopForNow("transient", b.transient, publishing)
	}
	return running
}

// restAfter is the pause before the records that a batch has left are judged again. A batch that
// was cut short by an event in flight has taken its time to commit, if it had anything to commit:
// the next one is made at once.
func (p *partition) restAfter(b *batch) time.Duration {
	switch {
	case p.isTriedAgain(b):
		return p.pause.attempt(p.fence.tries.n)
	case b.inFlight && b.done == 0:
		return p.pause.inFlight()
	}
	return 0
}

// isTriedAgain reports whether the record after the batch has failed and is handled once more. If
// not, there is nothing to wait for before it becomes a dead letter.
func (p *partition) isTriedAgain(b *batch) bool {
	return b.failed != nil && uint64(p.fence.tries.n) < p.attemptLimit()
}

// failed says what follows an error of the store, or of a batch, that no further try will fix.
func (p *partition) failed(err error) state {
	switch {
	case p.ctx.Err() != nil:
	case errors.Is(err, ErrFenced):
		p.c.m.fenced.WithLabelValues(p.pos.Topic).Inc()
		p.log.Warn("a batch was dropped: the partition has another owner by now")
		return p.fencedOff(err)
	case isEnd(err):
	case errors.Is(err, identify.ErrNoTopicID):
		return p.stopBefore("undecodable", err)
	case errors.Is(err, deadletter.ErrTooLarge):
		return p.stopBefore("dead_letter", err)
	case p.c.goesOn(p.link.Load(), err):
		return failingOpen
	default:
		p.c.fail(err)
	}
	return ended
}

// fencedOff says what follows when another consumer has become the owner in the store. Of two
// members of a group one has lost the partition and may not know it yet, and it may have come last
// to the store. It knows after a heartbeat: the other one takes the partition over again then.
// Between two that are pinned to the partition there is no arbiter, and the later one keeps it.
func (p *partition) fencedOff(err error) state {
	switch {
	case p.isEnding() || !p.all.isAssigned(p):
		return ended
	case p.c.opt.Membership.isPinned():
		p.report("fenced", err, time.Time{})
		return ended
	}
	p.all.whileAssigned(p, func() { p.c.client.PauseFetchPartitions(p.only()) })
	p.queue.close()
	p.taken, p.pending, p.fence.marked = nil, nil, false // the other owner may have changed what is in the store
	heartbeat, _ := p.c.client.OptValue(kgo.HeartbeatInterval).(time.Duration)
	p.retry, p.retryIn = lookingUp, max(heartbeat, p.retries.NextBackOff())
	p.report("fenced", err, time.Now().Add(p.retryIn))
	return stopped
}

// stopBefore stops the partition for the assignment before a record that it cannot pass.
func (p *partition) stopBefore(reason string, err error) state {
	p.c.client.PauseFetchPartitions(p.only())
	p.queue.close()
	return p.stop(reason, err)
}

func isEnd(err error) bool { return errors.Is(err, context.Canceled) || errors.Is(err, ErrFenced) }

// commitBatch commits as many of the first n records that were taken as it can in one batch of the
// store.
func (p *partition) commitBatch(n int) (*batch, error) {
	recs := p.taken
	var peek *kgo.Record
	if n < len(recs) {
		peek = recs[n]
	}
	var b *batch
	p.lookEarly(recs[:n])
	began := time.Now()
	defer p.under(began)()
	f := &p.fence
	err := p.engine().Update(p.ctx, func(tx *engine.Tx) error {
		b = &batch{p: p, tx: tx, next: p.next, epoch: p.epoch, tries: f.tries, marked: f.marked, began: time.Now(), low: math.MaxInt64}
		return b.judge(recs[:n], peek)
	}, engine.Retries(8), engine.DurableAtCommit(), engine.InLane(p.lane))
	if err != nil {
		if errors.Is(err, engine.ErrOutcomeUnknown) {
			p.uncertain = b.next // it may have ended before the last of the records
			p.doubt(b.next)
		}
		return nil, err
	}
	took := time.Since(began)
	p.c.m.batch(p.pos.Topic, b, took)
	if !b.late {
		p.c.m.tally(p.pos.Topic, &b.tally)
	}
	p.next, p.epoch, p.last = b.next, b.epoch, b.failed
	f.tries, f.marked = b.tries, b.marked
	f.width = max(f.width, b.width)
	f.careful = max(0, f.careful-b.done)
	p.alone, p.suspects, p.blame = max(0, p.alone-b.done), max(0, p.suspects-b.done), nil
	if !b.holdAt.IsZero() {
		p.setHold(b.holdAt)
	}
	p.offsets.moved(b.unbegun(0))
	p.tell(b)
	return b, nil
}

// refuse notes that a batch of n records cannot commit because of what one of them adds: they are
// handled one by one. A record whose batch of one cannot commit is the one to blame.
func (p *partition) refuse(n int, err error) {
	if n > 1 {
		p.alone = n
		return
	}
	p.blame = &blame{p.taken[0].Offset, err}
}

// mark stores an attempt before its handler runs.
func (p *partition) mark(rec *kgo.Record) error {
	if !p.route.transactional() || isControl(rec) {
		return nil
	}
	return p.fence.mark(p.ctx, rec, p.attemptLimit())
}

// attemptLimit is the number of attempts that a record gets.
func (p *partition) attemptLimit() uint64 {
	if m, ok := p.route.Mode.(Transactional); ok {
		return uint64(m.MaxAttempts)
	}
	return math.MaxUint64
}

// A batchSize finds the number of records of a batch whose handlers take about as long as aimed at,
// but at least enough for handlers that run in parallel. The time to commit does not count: where
// it is long, smaller batches would only need more of it.
type batchSize struct {
	n, least, most int
	aim            time.Duration
}

// took notes how long the handlers of a batch of n records took.
func (s *batchSize) took(n int, d time.Duration) {
	switch {
	case d > s.aim:
		s.n = max(1, s.least, min(s.n, n)/2)
	case n >= s.n && d < s.aim/2:
		s.n = min(2*s.n, s.most)
	}
}

// A pause makes the times between attempts: bounded, exponential, jittered.
type pause struct {
	first, longest time.Duration
	flight         *backoff.ExponentialBackOff
}

func (p *partition) newPause() *pause {
	s := &pause{first: p.c.opt.Backoff.Min, longest: p.c.opt.Backoff.Max, flight: backoff.NewExponentialBackOff()}
	s.flight.InitialInterval, s.flight.MaxInterval = 2*time.Millisecond, time.Second
	return s
}

// attempt is the pause after the n-th failed attempt. It depends on n alone, so that it survives a
// restart.
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
