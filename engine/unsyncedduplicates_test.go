package engine_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storetest"
)

func TestAllowUnsyncedDuplicatesReturnsADuplicateAtOnceAndCommitsAfterIt(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	syncing, synced := make(chan struct{}, 10), make(chan struct{})
	m.Before(storetest.OpWait, func(int) error {
		syncing <- struct{}{}
		<-synced
		return nil
	})
	winner := make(chan error, 1)
	go func() {
		_, err := e.TryClaim(ctx, event("a"))
		winner <- err
	}()
	receive(t, syncing) // applied, and not durable yet

	told, committed := make(chan engine.Verdict, 1), make(chan error, 1)
	go func() {
		committed <- e.Update(ctx, func(tx *engine.Tx) error {
			r, err := tx.TryClaim(event("a"))
			told <- r.Verdict
			if err != nil {
				return err
			}
			return tx.Put([]byte("k"), []byte("v"))
		}, engine.UpdateOptions{AllowUnsyncedDuplicates: true})
	}()
	select {
	case v := <-told:
		if v != engine.Duplicate {
			t.Errorf("told %v", v)
		}
	case <-time.After(time.Minute):
		t.Error("the verdict waits for the winner's sync")
	}
	select {
	case err := <-committed:
		t.Errorf("Update returned %v before the claim of its verdict was durable", err)
	default:
	}
	if _, found, _ := m.CrashClone(0).State([]byte("hk")); found {
		t.Error("the write is durable before the sync")
	}
	close(synced)
	if err := receive(t, winner); err != nil {
		t.Error(err)
	}
	if err := receive(t, committed); err != nil {
		t.Error(err)
	}
}

// committing begins a transaction that claims a, and blocks it in the given operation of the store
// until goOn.
func committing(t *testing.T, m *storetest.Mem, e *engine.Engine, op storetest.Op) (goOn func()) {
	t.Helper()
	reached, held, ended := make(chan struct{}, 10), make(chan struct{}), make(chan error, 1)
	m.Before(op, func(int) error {
		reached <- struct{}{}
		<-held
		return nil
	})
	go func() {
		ended <- e.Update(ctx, func(tx *engine.Tx) error {
			_, err := tx.TryClaim(event("a"))
			return err
		})
	}()
	receive(t, reached)
	return func() {
		t.Helper()
		close(held)
		if err := receive(t, ended); err != nil {
			t.Error(err)
		}
	}
}

// errAgain ends a transaction that is to be retried.
var errAgain = errors.New("again")

// told begins a transaction that claims a, and returns its verdict and its result.
func told(e *engine.Engine, options ...engine.UpdateOptions) (verdict <-chan engine.Verdict, ended <-chan error) {
	v, end := make(chan engine.Verdict, 1), make(chan error, 1)
	go func() {
		end <- e.Update(ctx, func(tx *engine.Tx) error {
			r, err := tx.TryClaim(event("a"))
			v <- r.Verdict
			if r.Verdict == engine.InFlight {
				return errAgain
			}
			return err
		}, options...)
	}()
	return v, end
}

// soon receives from ch. If it receives nothing in time, it lets the other transaction end, and
// fails.
func soon[T any](t *testing.T, ch <-chan T, goOn func()) (x T) {
	t.Helper()
	select {
	case x = <-ch:
	case <-time.After(time.Minute):
		goOn()
		t.Fatal("no answer")
	}
	return x
}

func TestAClaimOfACommittingTransactionIsInFlightOrADuplicateAtCommit(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	goOn := committing(t, m, e, storetest.OpWait) // its claim is visible, and not durable
	v, ended := told(e)
	if got := soon(t, v, goOn); got != engine.InFlight {
		t.Errorf("got %v for a claim that is not durable", got)
	}
	if err := soon(t, ended, goOn); !errors.Is(err, errAgain) {
		t.Error(err)
	}
	v, ended = told(e, engine.UpdateOptions{AllowUnsyncedDuplicates: true})
	if got := soon(t, v, goOn); got != engine.Duplicate {
		t.Errorf("got %v, to be durable at commit", got)
	}
	if len(ended) > 0 {
		t.Error("Update returned before the claim of its verdict was durable")
	}
	goOn()
	if err := receive(t, ended); err != nil {
		t.Error(err)
	}
}

func TestAllowUnsyncedDuplicatesWaitsUntilACommitIsVisible(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	goOn := committing(t, m, e, storetest.OpApply) // it is decided, and not visible
	v, ended := told(e)
	if got := soon(t, v, goOn); got != engine.InFlight {
		t.Errorf("got %v for a claim that is not visible", got)
	}
	if err := soon(t, ended, goOn); !errors.Is(err, errAgain) {
		t.Error(err)
	}
	v, ended = told(e, engine.UpdateOptions{AllowUnsyncedDuplicates: true})
	time.Sleep(50 * time.Millisecond) // time for a caller that does not wait; it may also be late
	if len(v) > 0 {
		t.Error("a verdict before the commit is visible")
	}
	goOn()
	if got := receive(t, v); got != engine.Duplicate {
		t.Errorf("got %v after the commit is visible", got)
	}
	if err := receive(t, ended); err != nil {
		t.Error(err)
	}
}
