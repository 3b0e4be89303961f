package listener_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/listener"
)

func withFailOpen(failOpen bool) func(*listener.Options[message]) {
	return func(o *listener.Options[message]) { o.FailOpen = failOpen }
}

func TestAStoreErrorIsReturnedToTheQueueByDefault(t *testing.T) {
	r := newRig(t)
	var h counting
	f := r.wrap(h.handle, nil)
	r.mem.Crash()
	if err := f(ctx, message{"a"}); !errors.Is(err, storetest.ErrPowerCut) {
		t.Errorf("the delivery returns %v", err)
	}
	h.want(t, 0)
	r.wantCount("store_error", 1)
}

func TestFailOpenHandlesMessagesWithoutAClaim(t *testing.T) {
	r := newRig(t)
	var h counting
	f := r.wrap(h.handle, withFailOpen(true))
	wantNil(t, f(ctx, message{"a"}))
	r.mem.Crash()
	for range 2 {
		wantNil(t, f(ctx, message{"b"}))
	}
	h.want(t, 3)
	h.err = errHandler
	if err := f(ctx, message{"c"}); !errors.Is(err, errHandler) {
		t.Errorf("the handler's error is %v", err)
	}
	r.wantCount("fail_open", 3)
	lines := r.log.lines(t)
	if len(lines) != 3 || lines[0]["level"] != "WARN" || lines[0]["correlation_id"] != "b" || lines[0]["error"] == "" {
		t.Errorf("the log is %v", lines)
	}
	stopping, stop := context.WithCancel(ctx)
	stop()
	if err := f(stopping, message{"d"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a delivery after the shutdown returns %v", err)
	}
	h.want(t, 4)
}

func TestAStoreThatFailsWhileTheHandlerRuns(t *testing.T) {
	for _, failOpen := range []bool{false, true} {
		r := newRig(t)
		var h counting
		f := r.wrap(func(ctx context.Context, m message) error {
			r.mem.Crash()
			return h.handle(ctx, m)
		}, withFailOpen(failOpen))
		err := f(ctx, message{"a"})
		if failOpen {
			wantNil(t, err)
			r.wantCount("fail_open", 1)
		} else if !errors.Is(err, engine.ErrStopped) {
			t.Errorf("the delivery returns %v", err)
		} else {
			r.wantCount("store_error", 1)
		}
		h.want(t, 1)
	}
}

func TestAHandlerErrorIsReturnedWithTheErrorOfTheRelease(t *testing.T) {
	r := newRig(t)
	f := r.wrap(func(context.Context, message) error {
		r.mem.Crash()
		return errHandler
	}, withFailOpen(true))
	if err := f(ctx, message{"a"}); !errors.Is(err, errHandler) || !errors.Is(err, engine.ErrStopped) {
		t.Errorf("the delivery returns %v", err)
	}
	r.wantCount("failed", 1)
}

// The engine cannot keep a claim for longer than its retention: that is found before the first
// message.
func TestAWindowBeyondTheRetentionIsRefused(t *testing.T) {
	r := newRig(t)
	var h counting
	_, err := listener.Wrap(r.eng, h.handle, listener.Options[message]{ID: idOf, Window: 40 * 24 * time.Hour, FailOpen: true})
	if bad, ok := errors.AsType[*engine.EventError](err); !ok || bad.Field != "window" {
		t.Error(err)
	}
	if _, err := listener.Wrap(r.eng, h.handle, listener.Options[message]{ID: idOf}); err != nil {
		t.Error(err)
	}
	s, err := r.eng.Stats()
	wantNil(t, err)
	for verdict, n := range s.Verdicts {
		if n > 0 {
			t.Errorf("the checks are counted as %d events that are %v", n, verdict)
		}
	}
}

func TestAnEngineOfShortIDsHasListeners(t *testing.T) {
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{MaxIDBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()
	var h counting
	f, err := listener.Wrap(eng, h.handle, listener.Options[message]{ID: idOf})
	if err != nil {
		t.Fatal(err)
	}
	wantNil(t, f(ctx, message{"a"}))
	h.want(t, 1)
}

// A store that stalls neither fails nor answers.
func TestFailOpenHandlesMessagesWhileTheStoreStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var h counting
		f := r.wrap(h.handle, withFailOpen(true))
		r.mem.HoldSyncs()
		began := time.Now()
		wantNil(t, f(ctx, message{"a"}))
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("handled after %v", took)
		}
		began = time.Now()
		short, cancel := context.WithTimeout(ctx, 3*time.Second) // a bound of the caller
		defer cancel()
		wantNil(t, f(short, message{"b"}))
		if took := time.Since(began); took != 1500*time.Millisecond {
			t.Errorf("handled after %v", took)
		}
		h.want(t, 2)
		r.wantCount("fail_open", 2)
		r.mem.ReleaseSyncs()
		synctest.Wait()
		wantNil(t, f(ctx, message{"a"})) // its claim was withdrawn
		h.want(t, 3)
		r.wantCount("handled", 1)
		r.eng.Close()
	})
}

// Otherwise the context of the delivery ends the wait, and the next delivery is handled.
func TestTheContextEndsTheWaitForAStoreThatStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var h counting
		f := r.wrap(h.handle, nil)
		r.mem.HoldSyncs()
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := f(short, message{"a"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the delivery returns %v", err)
		}
		h.want(t, 0)
		r.mem.ReleaseSyncs()
		synctest.Wait()
		wantNil(t, f(ctx, message{"a"}))
		h.want(t, 1)
		r.eng.Close()
	})
}

func TestTheEndOfAClaimWaitsForAStallNoLongerThanALease(t *testing.T) {
	for name, c := range map[string]struct {
		failOpen bool
		err      error // of the handler
		wait     time.Duration
	}{
		"handled":               {false, nil, listener.DefaultLease},
		"handled, failing open": {true, nil, 5 * time.Second},
		"failed":                {false, errHandler, listener.DefaultLease},
		"failed, failing open":  {true, errHandler, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				f := r.wrap(func(context.Context, message) error {
					r.mem.HoldSyncs()
					time.Sleep(listener.DefaultLease/3 + time.Second) // a renewal stalls
					return c.err
				}, withFailOpen(c.failOpen))
				began := time.Now()
				err := f(ctx, message{"a"})
				if took := time.Since(began) - listener.DefaultLease/3 - time.Second; took != c.wait {
					t.Errorf("returns after %v, want %v", took, c.wait)
				}
				switch {
				case c.failOpen && c.err == nil:
					wantNil(t, err)
				case c.err != nil && !errors.Is(err, c.err), !errors.Is(err, engine.ErrOutcomeUnknown):
					t.Errorf("the delivery returns %v", err)
				}
				r.mem.ReleaseSyncs()
				r.eng.Close()
			})
		})
	}
}

func TestAGroupHasNoMoreMessagesThanItsLimit(t *testing.T) {
	r := newRig(t)
	var h counting
	f := r.wrap(h.handle, func(o *listener.Options[message]) {
		o.MaxPerGroup, o.Group = 2, func(m message) string { return m.id[:1] }
	})
	for _, id := range []string{"a1", "a2", "b1"} {
		wantNil(t, f(ctx, message{id}))
	}
	if err := f(ctx, message{"a3"}); !errors.Is(err, listener.ErrTooMany) {
		t.Errorf("the delivery returns %v", err)
	}
	wantNil(t, f(ctx, message{"a1"})) // a duplicate
	h.want(t, 3)
	for name, o := range map[string]listener.Options[message]{
		"no group": {ID: idOf, MaxPerGroup: 1}, "no limit": {ID: idOf, Group: idOf}, "negative": {ID: idOf, Group: idOf, MaxPerGroup: -1},
		"at most once": {ID: idOf, Group: idOf, MaxPerGroup: 1, AtMostOnce: true},
	} {
		if _, err := listener.Wrap(r.eng, h.handle, o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
