package idempotency_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/idempotency"
)

// http.TimeoutHandler around the middleware: the response of a handler that outlives the timeout is
// kept for the retry.
func TestTimeoutAroundTheMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := inMemory(t)
		runs := new(atomic.Int64)
		h := http.TimeoutHandler(protect(t, e, idempotency.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			runs.Add(1)
			for range 3 {
				time.Sleep(time.Second)
				io.WriteString(w, "late")
			}
		}), time.Second+time.Millisecond, "")
		want(t, do(h, post("k", "b")), http.StatusServiceUnavailable, false)
		want(t, do(h, post("k", "b")), http.StatusConflict, false)
		time.Sleep(10 * time.Second)
		w := do(h, post("k", "b"))
		want(t, w, http.StatusOK, true)
		if runs.Load() != 1 || w.Body.String() != "latelatelate" {
			t.Errorf("%d runs, %q", runs.Load(), w.Body)
		}
		e.Close()
	})
}

// http.TimeoutHandler between the middleware and a handler that calls Update: the key is released at
// the timeout, and then the transaction of the abandoned handler does not commit.
func TestTimeoutInsideTheMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := inMemory(t)
		timedOut, left := make(chan struct{}), make(chan error, 1)
		h := protect(t, e, idempotency.Options{}, http.TimeoutHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			left <- idempotency.Update(context.WithoutCancel(r.Context()), func(tx *engine.Tx, w http.ResponseWriter) error {
				<-timedOut
				w.WriteHeader(http.StatusCreated)
				return tx.Put([]byte("k"), []byte("v"))
			})
		}), time.Second, "").ServeHTTP)
		want(t, do(h, post("k", "b")), http.StatusServiceUnavailable, false)
		close(timedOut)
		if err := <-left; !errors.Is(err, engine.ErrLeaseLost) {
			t.Errorf("the abandoned handler's Update: %v", err)
		}
		want(t, do(h, post("k", "b")), http.StatusCreated, false)
		want(t, do(h, post("k", "b")), http.StatusCreated, true)
		if err := <-left; err != nil {
			t.Errorf("the retry's Update: %v", err)
		}
		e.Close()
	})
}

// The timeout ends while Update commits. Whatever wins, the answer is that of a run that is kept or
// was not done.
func TestTimeoutWhileUpdateCommits(t *testing.T) {
	for _, keep := range []bool{false, true} {
		e := inMemory(t)
		left := make(chan error, 1)
		h := protect(t, e, idempotency.Options{Keep: always(keep)}, http.TimeoutHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			left <- idempotency.Update(context.WithoutCancel(r.Context()), func(_ *engine.Tx, w http.ResponseWriter) error {
				w.WriteHeader(http.StatusCreated)
				return nil
			})
		}), time.Millisecond, "").ServeHTTP)
		for i := range 200 {
			key := "key-" + strconv.Itoa(i)
			code := do(h, post(key, "b")).Code
			err := <-left
			switch {
			case err == nil && (code == http.StatusCreated || code == http.StatusConflict):
				want(t, do(h, post(key, "b")), http.StatusCreated, true)
			case (errors.Is(err, engine.ErrLeaseLost) || errors.Is(err, idempotency.ErrAnswered)) && code == http.StatusServiceUnavailable:
			default:
				t.Fatalf("the answer is %d, Update returned %v", code, err)
			}
		}
	}
}
