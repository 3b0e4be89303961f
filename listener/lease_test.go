package listener_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/listener"
)

// These tests run in virtual time, which is the clock of the engine, too: it begins on Saturday,
// 2000-01-01 00:00 UTC.

func TestAMessageOfAProcessThatDiedIsTakenOverAfterItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		began := time.Now()
		dying := r.wrap(func(ctx context.Context, _ message) error {
			r.crash()
			return nil // writes after the crash have no effect
		}, nil)
		if err := dying(ctx, message{"a"}); err == nil {
			t.Fatal("a claim was finished by a process that is dead")
		}
		var h counting
		f := r.wrap(h.handle, nil)
		time.Sleep(listener.DefaultLease - time.Millisecond)
		wantInProgress(t, f(ctx, message{"a"}), began.Add(listener.DefaultLease))
		h.want(t, 0)
		time.Sleep(time.Millisecond)
		race(t, f)
		h.want(t, 1)
		wantNil(t, f(ctx, message{"a"}))
		h.want(t, 1)
	})
}

// race delivers message "a" from 100 goroutines at once, again while it is being handled.
func race(t *testing.T, f func(context.Context, message) error) {
	t.Helper()
	var racers sync.WaitGroup
	for range 100 {
		racers.Go(func() {
			err := f(ctx, message{"a"})
			for errors.Is(err, listener.ErrInProgress) {
				time.Sleep(time.Second)
				err = f(ctx, message{"a"})
			}
			wantNil(t, err)
		})
	}
	racers.Wait()
}

func TestALeaseIsRenewedWhileTheHandlerRuns(t *testing.T) {
	monday := time.Date(2000, 1, 3, 0, 0, 0, 0, time.UTC)
	for name, start := range map[string]time.Time{"midweek": monday.Add(60 * time.Hour), "sunday": monday.Add(-30 * time.Minute)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				time.Sleep(time.Until(start))
				var h counting
				slow := r.wrap(func(ctx context.Context, m message) error {
					time.Sleep(2*time.Hour + time.Second) // longer than the lease and the window
					return h.handle(ctx, m)
				}, nil)
				var handling sync.WaitGroup
				handling.Go(func() { wantNil(t, slow(ctx, message{"a"})) })
				time.Sleep(time.Second)
				for range 12 {
					renewed := time.Now().Truncate(10 * time.Second) // all renewals are at multiples of a third of the lease
					wantInProgress(t, slow(ctx, message{"a"}), renewed.Add(listener.DefaultLease))
					time.Sleep(10 * time.Minute)
				}
				handling.Wait()
				h.want(t, 1)
				r.wantCount("in_progress", 12)
				r.wantCount("handled", 1)
			})
		})
	}
}

func TestAHandlerThatLostItsLeaseIsCancelledAndNotAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var h counting
		other := r.wrap(h.handle, nil)
		f := r.wrap(func(ctx context.Context, _ message) error {
			_, err := r.eng.Admin().Forget(ctx, listener.DefaultScope, []byte("a"), time.Now()) // an operator's
			if err != nil {
				t.Error(err)
			}
			wantNil(t, other(ctx, message{"a"}))
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, engine.ErrLeaseLost) {
				t.Errorf("the cause is %v", cause)
			}
			return nil
		}, nil)
		if err := f(ctx, message{"a"}); !errors.Is(err, engine.ErrLeaseLost) {
			t.Errorf("a message that was taken over returns %v", err)
		}
		h.want(t, 1)
		r.wantCount("lease_lost", 1)
		r.wantCount("handled", 1)
	})
}

func TestAMessageIsHandledAgainOnceByOneOfTheRacersAfterItsWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var h counting
		f := r.wrap(h.handle, nil)
		wantNil(t, f(ctx, message{"a"}))
		time.Sleep(listener.DefaultWindow - time.Millisecond)
		wantNil(t, f(ctx, message{"a"}))
		h.want(t, 1)
		time.Sleep(time.Millisecond)
		race(t, f)
		h.want(t, 2)
	})
}

func TestAMessageDeliveredAgainAcrossMondayIsADuplicate(t *testing.T) {
	for name, crash := range map[string]bool{"the same process": false, "after a crash": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				var h counting
				monday := time.Date(2000, 1, 3, 0, 0, 0, 0, time.UTC)
				time.Sleep(time.Until(monday.Add(-10 * time.Minute)))
				wantNil(t, r.wrap(h.handle, nil)(ctx, message{"a"}))
				if crash {
					r.crash()
				}
				f := r.wrap(h.handle, nil)
				time.Sleep(time.Until(monday.Add(10 * time.Minute)))
				wantNil(t, f(ctx, message{"a"}))
				h.want(t, 1)
				time.Sleep(time.Until(monday.Add(50 * time.Minute))) // the window ends
				wantNil(t, f(ctx, message{"a"}))
				h.want(t, 2)
			})
		})
	}
}

// The listener is down between two copies for longer than the window.
func TestACopyThatWasSentWithinTheWindowIsADuplicateAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var h counting
		sent := time.Now()
		f := r.wrap(h.handle, func(o *listener.Options[message]) { o.Sent = func(message) time.Time { return sent } })
		wantNil(t, f(ctx, message{"a"}))
		time.Sleep(9 * 24 * time.Hour)
		sent = sent.Add(5 * time.Second)
		wantNil(t, f(ctx, message{"a"}))
		h.want(t, 1)
		sent = sent.Add(listener.DefaultWindow)
		wantNil(t, f(ctx, message{"a"}))
		h.want(t, 2)
	})
}

// The lease counts from before the claim is durable. A handler whose claim was late does not run beside another one.
func TestALateClaimIsRenewedBeforeItsHandler(t *testing.T) {
	for name, late := range map[string]time.Duration{"after the first renewal": 8 * time.Second, "after the lease": 25 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				running, most := 0, 0
				f := r.wrap(func(context.Context, message) error {
					running++
					most = max(most, running)
					time.Sleep(5 * time.Second)
					running--
					return nil
				}, func(o *listener.Options[message]) { o.Lease = 10 * time.Second })
				r.mem.HoldSyncs()
				first := make(chan error, 1)
				go func() { first <- f(ctx, message{"a"}) }()
				time.Sleep(late)
				r.mem.ReleaseSyncs()
				synctest.Wait()
				for range 10 { // they would take it over
					if err := f(ctx, message{"a"}); err == nil {
						break
					} else if !errors.Is(err, listener.ErrInProgress) {
						t.Error(err)
					}
					time.Sleep(time.Second)
				}
				wantNil(t, <-first)
				if most != 1 {
					t.Errorf("%d handlers ran at once", most)
				}
				r.eng.Close()
			})
		})
	}
}

// FailOpen handles a message although the count of its group cannot be read.
func TestFailOpenWhileTheStoreStallsAtTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var h counting
		stall := true
		f := r.wrap(h.handle, func(o *listener.Options[message]) {
			o.FailOpen, o.MaxPerGroup = true, 2
			o.Group = func(message) string {
				if stall {
					stall = false
					r.mem.HoldSyncs()
					go func() {
						if err := r.eng.Update(ctx, func(tx *engine.Tx) error { return tx.Put([]byte("k"), nil) }); err != nil {
							t.Error(err)
						}
					}()
					synctest.Wait()
				}
				return "all"
			}
		})
		began := time.Now()
		wantNil(t, f(ctx, message{"a"}))
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
		h.want(t, 1)
		r.wantCount("fail_open", 1)
		r.wantCount("failed", 0)
		r.mem.ReleaseSyncs()
		synctest.Wait()
		for _, id := range []string{"b", "c"} {
			wantNil(t, f(ctx, message{id}))
		}
		h.want(t, 3)
		r.eng.Close()
	})
}
