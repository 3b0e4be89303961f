package idempotency_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/idempotency"
)

// A store that stalls neither fails nor answers.
func TestStalledStore(t *testing.T) {
	const lease = idempotency.DefaultLease
	for name, c := range map[string]struct {
		inHandler, open bool
		deadline        time.Duration // of the request
		status          int
		runs            int64
		after           time.Duration
	}{
		"claim, closed":         {false, false, time.Minute, 503, 0, time.Minute},
		"claim, open":           {false, true, time.Minute, 201, 1, 5 * time.Second},
		"claim, open, deadline": {false, true, 4 * time.Second, 201, 1, 2 * time.Second},
		"finish, closed":        {true, false, time.Minute, 503, 1, lease},
		"finish, open":          {true, true, time.Minute, 201, 1, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := storetest.NewMem(storage.Identity{})
				handler, runs := counting()
				e := openEngine(t, m, nil)
				const work = lease/3 + time.Second // a renewal stalls
				h := protect(t, e, idempotency.Options{FailOpen: c.open}, func(w http.ResponseWriter, r *http.Request) {
					if c.inHandler {
						m.HoldSyncs()
						time.Sleep(work)
						c.after += work
					}
					handler(w, r)
				})
				if !c.inHandler {
					m.HoldSyncs()
				}
				ctx, cancel := context.WithTimeout(t.Context(), c.deadline)
				defer cancel()
				began := time.Now()
				w := do(h, post("k", "").WithContext(ctx))
				want(t, w, c.status, false)
				if took := time.Since(began); took != c.after || runs.Load() != c.runs {
					t.Errorf("answered after %v, want %v; %d runs", took, c.after, runs.Load())
				}
				m.ReleaseSyncs()
				synctest.Wait()
				retry := do(h, post("k", ""))
				if c.inHandler { // the result that was handed over is durable now
					want(t, retry, 201, true)
				} else {
					want(t, retry, 201, false)
				}
				e.Close()
			})
		})
	}
}

func TestUpdateEndsWithItsContextWhileTheStoreStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := storetest.NewMem(storage.Identity{})
		e := openEngine(t, m, nil)
		h := protect(t, e, idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
			m.HoldSyncs()
			time.Sleep(idempotency.DefaultLease/3 + time.Second) // a renewal stalls
			ctx, cancel := context.WithTimeout(r.Context(), time.Second)
			defer cancel()
			err := idempotency.Update(ctx, func(tx *engine.Tx, w http.ResponseWriter) error { return tx.Put([]byte("k"), []byte("v")) })
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			m.ReleaseSyncs()
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		want(t, do(h, post("k", "")), 503, false)
		e.Close()
	})
}

// The count of a tenant's keys is read from the store while nothing renews the lease.
func TestAStallAtTheCountOfKeysEndsWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := storetest.NewMem(storage.Identity{})
		e := openEngine(t, m, nil)
		handler, runs := counting()
		stall := true
		ask := limited(t, e, func() time.Time {
			if stall {
				stall = false
				m.HoldSyncs()
				go func() {
					if err := e.Update(context.WithoutCancel(t.Context()), func(tx *engine.Tx) error { return tx.Put([]byte("k"), nil) }); err != nil {
						t.Error(err)
					}
				}()
				synctest.Wait()
				time.AfterFunc(time.Hour, m.ReleaseSyncs)
			}
			return time.Now()
		}, handler)
		began := time.Now()
		w := ask("a", "k")
		if took := time.Since(began); took > 2*idempotency.DefaultLease || runs.Load() != 0 {
			t.Errorf("answered after %v, %d runs", took, runs.Load())
		}
		want(t, w, 503, false)
		time.Sleep(time.Hour)
		want(t, ask("a", "k"), 201, false)
		e.Close()
	})
}

// The lease counts from before the key is durable. A handler whose key was late does not run beside another one.
func TestALateClaimIsRenewedBeforeItsHandler(t *testing.T) {
	for name, late := range map[string]time.Duration{"after the first renewal": 8 * time.Second, "after the lease": 25 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := storetest.NewMem(storage.Identity{})
				e := openEngine(t, m, nil)
				running, most := 0, 0
				h := protect(t, e, idempotency.Options{}, func(w http.ResponseWriter, _ *http.Request) {
					running++
					most = max(most, running)
					time.Sleep(5 * time.Second)
					running--
					w.WriteHeader(http.StatusCreated)
				})
				m.HoldSyncs()
				first := make(chan int, 1)
				go func() { first <- do(h, post("k", "")).Code }()
				time.Sleep(late)
				m.ReleaseSyncs()
				synctest.Wait()
				for range 10 { // they would take it over
					if do(h, post("k", "")).Code == http.StatusCreated {
						break
					}
					time.Sleep(time.Second)
				}
				if code := <-first; code != http.StatusCreated || most != 1 {
					t.Errorf("status %d; %d handlers ran at once", code, most)
				}
				e.Close()
			})
		})
	}
}

// FailOpen runs the handler although the number of the tenant's keys cannot be read.
func TestFailOpenWhileTheStoreStallsAtTheCountOfKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := storetest.NewMem(storage.Identity{})
		e := openEngine(t, m, nil)
		handler, runs := counting()
		stall := true
		o := idempotency.Options{FailOpen: true, MaxKeysPerTenant: 2, Clock: func() time.Time {
			if stall {
				stall = false
				m.HoldSyncs()
				go func() {
					if err := e.Update(context.WithoutCancel(t.Context()), func(tx *engine.Tx) error { return tx.Put([]byte("k"), nil) }); err != nil {
						t.Error(err)
					}
				}()
				synctest.Wait()
			}
			return time.Now()
		}}
		h := protect(t, e, o, handler)
		began := time.Now()
		w := do(h, post("k", ""))
		want(t, w, 201, false)
		if took := time.Since(began); took > 11*time.Second || runs.Load() != 1 {
			t.Errorf("answered after %v, %d runs", took, runs.Load())
		}
		m.ReleaseSyncs()
		synctest.Wait()
		for _, key := range []string{"l", "m"} {
			want(t, do(h, post(key, "")), 201, false)
		}
		e.Close()
	})
}
