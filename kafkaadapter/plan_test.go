package kafkaadapter

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
)

func TestOutcomeDecidesTheNextBatch(t *testing.T) {
	for _, tt := range []struct {
		err           error
		transactional bool
		want          outcome
	}{
		{nil, true, batchCommitted},
		{fmt.Errorf("wrapped: %w", &batchFailure{errHandler, -1}), true, handlerFailed},
		{&batchFailure{engine.ErrConflict, 3}, true, handlerFailed}, // its cause says nothing about the transaction
		{fmt.Errorf("wrapped: %w", &engine.AddError{}), true, sumFailed},
		{&engine.AddError{}, false, batchFailed},
		{fmt.Errorf("wrapped: %w", engine.ErrConflict), true, inConflict},
		{engine.ErrWeekDropped, false, inConflict},
		{fmt.Errorf("wrapped: %w", engine.ErrLimit), true, tooMuch},
		{&storage.DamageError{}, false, tooMuch},
		{engine.ErrStopped, true, batchFailed},
		{errors.New("unknown"), true, batchFailed},
	} {
		if got := outcomeOf(tt.err, tt.transactional); got != tt.want {
			t.Errorf("%v: %d, want %d", tt.err, got, tt.want)
		}
	}
}

func TestPlanOfBatches(t *testing.T) {
	var p plan
	size := func(what string, left int, single bool, want int) {
		t.Helper()
		if got := p.size(left, single); got != want {
			t.Errorf("%s: %d records of %d, want %d", what, got, left, want)
		}
	}
	p.take(100)
	size("all", 100, false, 100)
	size("after an unclean stop", 100, true, 1)
	if n := p.conflicted(100); n != 1 {
		t.Errorf("%d conflicts", n)
	}
	size("after a conflict", 100, false, 50)
	p.committed()
	size("after a commit", 50, false, 50)
	for range 20 {
		p.committed()
	}
	size("no more than the limit", 2*MaxBatchLimit, false, MaxBatchLimit)
	p.suspects = 50
	size("half of the suspects", 50, false, 25)
	p.done(25) // none of them is the one
	size("half of the others", 25, false, 12)
	p.suspects = 1
	size("the one", 25, false, 1)
	p.suspects, p.alone = 0, 3
	size("one by one", 25, false, 1)
	p.done(2)
	size("one by one until all are done", 23, false, 1)
	p.done(1)
	size("together again", 22, false, 22)
	p.conflicted(1)
	size("at least one", 22, false, 1)
	if p.take(7); p.conflicts != 0 {
		t.Error("conflicts of other records count")
	}
	size("other records", 7, false, 7)
	p.resting = time.Second
	if first, second := p.rest(), p.rest(); first != time.Second || second != 0 {
		t.Errorf("rests of %v and %v", first, second)
	}
}
