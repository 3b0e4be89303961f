package idempotency_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/idempotency"
)

// retrying sends the request again after each Retry-After, at most a hundred times.
func retrying(h http.Handler) (w *httptest.ResponseRecorder, waited int) {
	for ; ; waited++ {
		w = do(h, post("k", "body"))
		after, err := strconv.Atoi(w.Header().Get("Retry-After"))
		if err != nil || waited == 100 {
			return w, waited
		}
		time.Sleep(time.Duration(after) * time.Second)
	}
}

// race makes n clients retry until each has an answer. All answers but one are replays, and all are
// the same.
func race(t *testing.T, h http.Handler, n int) {
	t.Helper()
	var clients sync.WaitGroup
	var waits, replays atomic.Int64
	bodies := make([]string, n)
	for i := range n {
		clients.Go(func() {
			w, waited := retrying(h)
			waits.Add(int64(waited))
			if w.Header().Get(idempotency.ReplayedHeader) == "true" {
				replays.Add(1)
			}
			bodies[i] = strconv.Itoa(w.Code) + " " + w.Body.String()
		})
	}
	clients.Wait()
	for _, body := range bodies {
		if body != "201 run 1" {
			t.Fatalf("an answer is %q", body)
		}
	}
	if replays.Load() != int64(n-1) || waits.Load() < int64(n-1) {
		t.Errorf("%d replays, %d waits", replays.Load(), waits.Load())
	}
}

// The handler takes longer than its lease.
func TestThousandRacersRunOnce(t *testing.T) {
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := open(t)
				handler, runs := counting()
				h := protect(t, openEngine(t, store, nil), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
					time.Sleep(25 * time.Second)
					handler(w, r)
				})
				race(t, h, 1000)
				if runs.Load() != 1 {
					t.Errorf("%d runs", runs.Load())
				}
			})
		})
	}
}

func TestCrashBeforeTheResultIsTakenOverByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := storetest.NewMem(storage.Identity{})
		var after *storetest.Mem
		h := protect(t, openEngine(t, m, nil), idempotency.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			after = m.Crash() // the work is done, its result is not
			w.WriteHeader(http.StatusCreated)
		})
		want(t, do(h, post("k", "body")), 503, false)
		began := time.Now()
		handler, runs := counting()
		h = protect(t, openEngine(t, after, nil), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
			if time.Since(began) < idempotency.DefaultLease {
				t.Errorf("taken over %v after the crash", time.Since(began))
			}
			handler(w, r)
		})
		race(t, h, 50)
		if runs.Load() != 1 {
			t.Errorf("%d runs", runs.Load())
		}
	})
}

// A jump of the clock simulates a process that was paused for longer than its lease.
func TestLostLeaseCancelsTheHandlerAndDropsItsResponse(t *testing.T) {
	for _, size := range []int{0, 1, 200} {
		synctest.Test(t, func(t *testing.T) {
			var ahead atomic.Int64
			clock := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
			runs := 0
			var h http.Handler
			h = protect(t, openEngine(t, storetest.NewMem(storage.Identity{}), clock), idempotency.Options{Clock: clock, MaxResponseBytes: 100, FailOpen: true},
				func(w http.ResponseWriter, r *http.Request) {
					if runs++; runs > 1 {
						w.Write([]byte("second"))
						return
					}
					ahead.Store(int64(idempotency.DefaultLease))
					want(t, do(h, post("k", "")), 200, false)
					<-r.Context().Done()
					if err := context.Cause(r.Context()); !errors.Is(err, engine.ErrLeaseLost) {
						t.Errorf("the cause is %v", err)
					}
					if size > 0 {
						w.Write(make([]byte, size))
					}
				})
			w := do(h, post("k", ""))
			want(t, w, 409, false)
			if w.Header().Get("Retry-After") != "1" {
				t.Errorf("Retry-After %q", w.Header().Get("Retry-After"))
			}
			if w := do(h, post("k", "")); w.Body.String() != "second" || runs != 2 {
				t.Errorf("%q after %d runs", w.Body, runs)
			}
		})
	}
}

func TestCanceledHandlerWithoutAResponseHasFailed(t *testing.T) {
	handler, runs := counting()
	ctx, cancel := context.WithCancel(t.Context())
	h := protect(t, inMemory(t), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
		cancel()
		if r.Context().Err() == nil {
			handler(w, r)
		}
	})
	want(t, do(h, post("k", "").WithContext(ctx)), 503, false)
	want(t, do(h, post("k", "")), 201, false)
	want(t, do(h, post("k", "")), 201, true)
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

// A retry could otherwise run the handler a second time, although the store works.
func TestRequestThatHasEndedDoesNotFailOpen(t *testing.T) {
	handler, runs := counting()
	h := protect(t, inMemory(t), idempotency.Options{FailOpen: true}, handler)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	want(t, do(h, post("k", "").WithContext(ctx)), 503, false)
	want(t, do(h, post("k", "")), 201, false)
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

func TestResponseIsKeptEvenIfTheClientHasDisconnected(t *testing.T) {
	handler, _ := counting()
	ctx, cancel := context.WithCancel(t.Context())
	h := protect(t, inMemory(t), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
		cancel()
		handler(w, r)
	})
	do(h, post("k", "").WithContext(ctx))
	want(t, do(h, post("k", "")), 201, true)
}

func TestKeyEndsWithItsRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler, _ := counting()
		h := protect(t, inMemory(t), idempotency.Options{}, handler)
		want(t, do(h, post("k", "")), 201, false)
		time.Sleep(idempotency.DefaultRetention - time.Millisecond)
		want(t, do(h, post("k", "")), 201, true)
		time.Sleep(time.Millisecond)
		want(t, do(h, post("k", "")), 201, false)
	})
}

func TestRetryAfterIsTheRestOfTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h http.Handler
		h = protect(t, inMemory(t), idempotency.Options{}, func(http.ResponseWriter, *http.Request) {
			// 10 s, 7.5 s, and 8.4 s after it was renewed
			for _, after := range []string{"10", "8", "9"} {
				w := do(h, post("k", ""))
				want(t, w, 409, false)
				if w.Header().Get("Retry-After") != after {
					t.Errorf("%s s, want %s", w.Header().Get("Retry-After"), after)
				}
				time.Sleep(2500 * time.Millisecond)
			}
		})
		want(t, do(h, post("k", "")), 200, false)
	})
}

func TestRenewalsEndWithTheRun(t *testing.T) {
	for name, status := range map[string]int{"finished": 200, "released": 500} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := idempotency.Options{OnError: func(_ *http.Request, err error) { t.Error(err) }}
				h := protect(t, inMemory(t), o, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
				want(t, do(h, post("k", "")), status, false)
				time.Sleep(idempotency.DefaultLease)
			})
		})
	}
}
