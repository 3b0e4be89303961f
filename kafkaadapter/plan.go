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
	most      int           // maximum number of records, so that a batch is neither too large nor in conflict
	conflicts int           // in a row
	alone     int           // number of records to commit one by one, because one of them made a batch fail
	suspects  int           // number of records of which one made HandleBatch fail; batches are halved until it is found
	resting   time.Duration // before the next batch
}

// take starts with n new records.
func (p *plan) take(n int) { p.most, p.conflicts = n, 0 }

// size returns how many of n records the next batch contains: one after an unclean stop or if the
// record has failed, half of the suspects during the search for the failed record.
func (p *plan) size(n int, single bool) int {
	n = min(n, p.most)
	switch {
	case p.alone > 0 || single:
		return 1
	case p.suspects > 0:
		return max(1, min(n, p.suspects/2))
	}
	return n
}

// rest returns the pause before the next batch, and clears it.
func (p *plan) rest() (d time.Duration) {
	d, p.resting = p.resting, 0
	return d
}

// committed allows a larger next batch.
func (p *plan) committed() { p.most, p.conflicts = min(2*p.most, MaxBatchLimit), 0 }

// conflicted makes the next batch smaller, so that it reads fewer keys for a shorter time. It
// returns the number of consecutive conflicts.
func (p *plan) conflicted(n int) int {
	p.most = max(1, n/2)
	p.conflicts++
	return p.conflicts
}

// done records that n records are done.
func (p *plan) done(n int) { p.alone, p.suspects = max(0, p.alone-n), max(0, p.suspects-n) }

// An outcome is the outcome of an attempt to commit a batch.
type outcome uint8

const (
	batchCommitted outcome = iota
	handlerFailed          // HandleBatch
	sumFailed              // the sum of a record's Add is impossible
	inConflict             // another transaction committed first
	tooMuch                // too large for the engine, or an event cannot be judged together with others
	batchFailed            // another error, not caused by a record
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

// isOverLimit reports whether a batch is too large for the engine, or has an event that cannot be
// judged together with others.
func isOverLimit(err error) bool { return errors.Is(err, engine.ErrLimit) || isDamage(err) }

// delays computes the times between attempts: bounded, exponential, jittered.
type delays struct {
	first, longest time.Duration
	flight         *backoff.ExponentialBackOff
}

func newDelays(b pauseBounds) *delays {
	s := &delays{first: b.Min, longest: b.Max, flight: backoff.NewExponentialBackOff()}
	s.flight.InitialInterval, s.flight.MaxInterval = 2*time.Millisecond, time.Second
	return s
}

// attempt returns the delay after the n-th failed attempt. It depends only on n, so that a restart
// does not change it.
func (s *delays) attempt(n uint32) time.Duration {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier = s.first, s.longest, 2
	var d time.Duration
	for range min(max(n, 1), 64) {
		d = b.NextBackOff()
	}
	return min(d, s.longest)
}

// inFlight returns the delay before a record is judged again whose event another transaction holds.
func (s *delays) inFlight() time.Duration { return s.flight.NextBackOff() }

func (s *delays) reset() { s.flight.Reset() }
