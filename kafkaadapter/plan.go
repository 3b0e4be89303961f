package kafkaadapter

import (
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/hapax-dev/hapax/engine"
)

// A plan says how many records the next batch of a partition has, and how long the partition rests before
// it.
type plan struct {
	most      int           // records, so that a batch is neither too much nor in conflict
	conflicts int           // in a row
	alone     int           // records to commit one by one, because a batch of them failed and one of them is the cause
	suspects  int           // records among which is the one that made HandleBatch fail: batches are halved until it is known
	resting   time.Duration // before the next batch
}

// take begins with n other records.
func (p *plan) take(n int) { p.most, p.conflicts = n, 0 }

// size returns how many of n records the next batch contains: one after an unclean stop or if the record has
// failed, and half of the suspects while the failed record is searched for.
func (p *plan) size(n int, careful bool) int {
	n = min(n, p.most)
	switch {
	case p.alone > 0 || careful:
		return 1
	case p.suspects > 0:
		return max(1, min(n, p.suspects/2))
	}
	return n
}

// rest returns the pause that is due, once.
func (p *plan) rest() (d time.Duration) {
	d, p.resting = p.resting, 0
	return d
}

// committed lets the next batch be longer.
func (p *plan) committed() { p.most, p.conflicts = min(2*p.most, MaxBatchLimit), 0 }

// conflicted makes the next batch shorter, so that it reads fewer keys for a shorter time. It returns the
// number of conflicts in a row.
func (p *plan) conflicted(n int) int {
	p.most = max(1, n/2)
	p.conflicts++
	return p.conflicts
}

// done records that n records are done.
func (p *plan) done(n int) { p.alone, p.suspects = max(0, p.alone-n), max(0, p.suspects-n) }

// An outcome is what an attempt to commit a batch came to.
type outcome uint8

const (
	batchCommitted outcome = iota
	handlerFailed          // HandleBatch
	sumFailed              // one of the records makes a sum that cannot be made
	inConflict             // another transaction was faster
	tooMuch                // for the engine, or an event cannot be judged among others
	batchFailed            // for another reason, which is not one of the records
)

func outcomeOf(err error, transactional bool) outcome {
	switch {
	case err == nil:
		return batchCommitted
	case errors.As(err, new(*batchFailure)):
		return handlerFailed
	case transactional && errors.As(err, new(*engine.AddError)):
		return sumFailed
	case errors.Is(err, engine.ErrConflict), errors.Is(err, engine.ErrWeekDropped):
		return inConflict
	case isOverLimit(err):
		return tooMuch
	}
	return batchFailed
}

// isOverLimit reports whether a batch is too much for the engine, or has an event that it cannot judge
// while it judges others.
func isOverLimit(err error) bool { return errors.Is(err, engine.ErrLimit) || isDamage(err) }

// delays are the times between attempts: bounded, exponential, jittered.
type delays struct {
	first, longest time.Duration
	flight         *backoff.ExponentialBackOff
}

func newDelays(b pauseBounds) *delays {
	s := &delays{first: b.Min, longest: b.Max, flight: backoff.NewExponentialBackOff()}
	s.flight.InitialInterval, s.flight.MaxInterval = 2*time.Millisecond, time.Second
	return s
}

// attempt is the delay after the n-th failed attempt. It depends on n alone, so that it survives a
// restart.
func (s *delays) attempt(n uint32) time.Duration {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier = s.first, s.longest, 2
	var d time.Duration
	for range min(max(n, 1), 64) {
		d = b.NextBackOff()
	}
	return min(d, s.longest)
}

// inFlight is the delay before a record whose event another transaction holds is judged again.
func (s *delays) inFlight() time.Duration { return s.flight.NextBackOff() }

func (s *delays) reset() { s.flight.Reset() }
