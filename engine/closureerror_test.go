package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

// A nilError is used as a nil pointer, whose methods panic.
type nilError struct{ code int }

func (e *nilError) Error() string         { return [...]string{"bad"}[e.code] }
func (e *nilError) Is(target error) bool  { return e.code == 0 && target == context.Canceled }
func (e *nilError) Unwrap() (inner error) { return [...]error{nil}[e.code] }

// TestMethodsOfAClosuresErrorMayPanic: the transaction ends like any that has failed, and Update
// returns the error.
func TestMethodsOfAClosuresErrorMayPanic(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	ev := event("a")
	bad := (*nilError)(nil)
	err := e.Update(t.Context(), func(tx *engine.Tx) error {
		if res, err := tx.TryClaim(ev); err != nil || res.Verdict != engine.Claimed {
			t.Error(res.Verdict, err)
		}
		return bad
	}, engine.Retries(3))
	if got, ok := err.(*nilError); !ok || got != bad { //nolint:errorlint // its methods panic
		t.Errorf("Update returned an error of type %T", err)
	}
	if res, err := e.TryClaim(t.Context(), ev); err != nil || res.Verdict != engine.Claimed {
		t.Errorf("after the transaction, the event is %v (%v)", res.Verdict, err)
	}
	closed := make(chan error, 1)
	go func() { closed <- e.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("Close still waits for the transaction")
	}
}

// TestConflictInAClosuresErrorIsRetried: what the check of the error's methods must not break.
func TestConflictInAClosuresErrorIsRetried(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	runs := 0
	err := e.Update(t.Context(), func(*engine.Tx) error {
		if runs++; runs < 3 {
			return errors.Join(errors.New("mine"), engine.ErrConflict)
		}
		return nil
	}, engine.Retries(3))
	if err != nil || runs != 3 {
		t.Errorf("%d runs, %v", runs, err)
	}
}
