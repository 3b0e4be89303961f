package idempotency_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/idempotency"
	"github.com/hapax-dev/hapax/internal/keyspace"
)

// limited lets each tenant keep two keys.
func limited(t *testing.T, e *engine.Engine, clock func() time.Time, h http.HandlerFunc) func(tenant, key string) *httptest.ResponseRecorder {
	t.Helper()
	o := idempotency.Options{MaxKeysPerTenant: 2, Clock: clock, Tenant: func(r *http.Request) (string, error) { return r.Header.Get("Tenant"), nil }}
	protected := protect(t, e, o, h)
	return func(tenant, key string) *httptest.ResponseRecorder {
		r := post(key, "")
		r.Header.Set("Tenant", tenant)
		return do(protected, r)
	}
}

func TestATenantKeepsNoMoreKeysThanItsLimit(t *testing.T) {
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			handler, runs := counting()
			ask := limited(t, openEngine(t, open(t), nil), time.Now, handler)
			for range 2 {
				for _, tenant := range []string{"a", "ab", ""} {
					for key := range 2 {
						if w := ask(tenant, strconv.Itoa(key)); w.Code != 201 {
							t.Errorf("tenant %q, key %d: status %d", tenant, key, w.Code)
						}
					}
					w := ask(tenant, "third")
					want(t, w, http.StatusTooManyRequests, false)
				}
			}
			if runs.Load() != 6 {
				t.Errorf("%d runs", runs.Load())
			}
		})
	}
}

func TestOnlyKeptKeysCount(t *testing.T) {
	status := 500
	ask := limited(t, inMemory(t), time.Now, func(w http.ResponseWriter, r *http.Request) {
		if status == 0 {
			_ = idempotency.Update(r.Context(), func(_ *engine.Tx, w http.ResponseWriter) error { w.WriteHeader(http.StatusAccepted); return nil })
			return
		}
		w.WriteHeader(status)
	})
	for i := range 5 {
		want(t, ask("a", fmt.Sprint("failed", i)), 500, false)
	}
	status = 0
	want(t, ask("a", "update"), 202, false)
	status = 201
	want(t, ask("a", "second"), 201, false)
	want(t, ask("a", "third"), 429, false)
	want(t, ask("a", "update"), 202, true)
}

// A key and its count are durable together.
func TestTheCountSurvivesAPowerFailure(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	handler, _ := counting()
	ask := limited(t, openEngine(t, m, nil), time.Now, handler)
	want(t, ask("a", "1"), 201, false)
	want(t, ask("a", "2"), 201, false)
	ask = limited(t, openEngine(t, m.CrashClone(0), nil), time.Now, handler)
	want(t, ask("a", "2"), 201, true)
	want(t, ask("a", "3"), 429, false)
}

func TestConcurrentRequestsKeepNoMoreThanTheLimit(t *testing.T) {
	var started, refused sync.WaitGroup
	started.Add(2)
	refused.Add(18)
	ask := limited(t, inMemory(t), time.Now, func(w http.ResponseWriter, _ *http.Request) {
		started.Done()
		refused.Wait() // the others are refused while these run
		w.WriteHeader(http.StatusCreated)
	})
	var clients sync.WaitGroup
	var kept atomic.Int64
	for i := range 20 {
		clients.Go(func() {
			if w := ask("a", strconv.Itoa(i)); w.Code == 201 {
				kept.Add(1)
			} else {
				refused.Done()
			}
		})
	}
	started.Wait()
	clients.Wait()
	if kept.Load() != 2 {
		t.Errorf("%d keys are kept", kept.Load())
	}
}

func TestKeysOfExpiredWeeksAreNotCountedAndTheirCountsAreRemoved(t *testing.T) {
	c := newClock(time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC))
	e := openEngine(t, storetest.NewMem(storage.Identity{}), c.now)
	handler, _ := counting()
	ask := limited(t, e, c.now, handler)
	for week := range 8 {
		for tenant := range 100 {
			if w := ask(strconv.Itoa(tenant), "week-"+strconv.Itoa(week)); (w.Code == 201) != (week < 2 || week >= 5 && week < 7) {
				t.Fatalf("week %d: status %d", week, w.Code)
			}
		}
		c.set(c.now().AddDate(0, 0, 7))
	}
	counts := 0
	for _, err := range driver.In(e, keyspace.New("idempotency")).Scan(t.Context(), engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		counts++
	}
	if counts != 200 {
		t.Errorf("%d counts remain", counts)
	}
}
