package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
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

var errRefused = errors.New("refused")

// deposit adds one to the balance and answers with it.
func deposit(tx *engine.Tx, w http.ResponseWriter) error {
	old, _, err := tx.Get([]byte("balance"))
	if err != nil {
		return err
	}
	n, _ := strconv.Atoi(string(old))
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "balance %d", n+1)
	return tx.Put([]byte("balance"), strconv.AppendInt(nil, int64(n+1), 10))
}

// updating returns a handler that runs fn in Update, and answers 500 with the error if that fails.
func updating(fn func(*engine.Tx, http.ResponseWriter) error, options ...engine.UpdateOptions) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := idempotency.Update(r.Context(), fn, options...); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
}

// apart is the handler that Update replaces: the work commits separately, and the middleware stores
// the response.
func apart(e **engine.Engine) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := (*e).Update(r.Context(), func(tx *engine.Tx) error { return deposit(tx, w) }); err != nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}
}

func balance(t *testing.T, e *engine.Engine) string {
	t.Helper()
	var value []byte
	err := e.Update(t.Context(), func(tx *engine.Tx) (err error) {
		value, _, err = tx.Get([]byte("balance"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(value)
}

// crashes simulates a power failure before each write and each sync of a request, with the unsynced
// batches lost or kept, lets the lease expire, and retries. It returns how often the work was done
// twice.
func crashes(t *testing.T, handler func(e **engine.Engine) http.HandlerFunc) (twice int) {
	cuts := 0
	for _, op := range []storetest.Op{storetest.OpApply, storetest.OpWait} {
		for kept := range 2 {
			for call := 1; call <= 4; call++ {
				synctest.Test(t, func(t *testing.T) {
					m := storetest.NewMem(storage.Identity{})
					e := openEngine(t, m, nil)
					h := protect(t, e, idempotency.Options{}, handler(&e))
					var after *storetest.Mem
					begun := m.Calls(op)
					m.Before(op, func(n int) error {
						if n == begun+call {
							after = m.CrashClone(kept)
						}
						return nil
					})
					want(t, do(h, post("k", "")), 201, false)
					m.Before(op, nil)
					if after == nil {
						return // the request writes less often
					}
					cuts++
					time.Sleep(idempotency.DefaultLease)
					e = openEngine(t, after, nil)
					h = protect(t, e, idempotency.Options{}, handler(&e))
					w := do(h, post("k", ""))
					if w.Code != 201 {
						t.Fatalf("%s %d, %d kept: status %d, %s", op, call, kept, w.Code, w.Body)
					}
					if b := balance(t, e); b != "1" || w.Body.String() != "balance 1" {
						twice++
					}
				})
			}
		}
	}
	if cuts < 8 {
		t.Errorf("the power failed only %d times", cuts)
	}
	return twice
}

func TestUpdateIsDoneOnceWheneverThePowerFails(t *testing.T) {
	if n := crashes(t, func(**engine.Engine) http.HandlerFunc { return updating(deposit) }); n > 0 {
		t.Errorf("the work was done twice after %d power failures", n)
	}
	if crashes(t, apart) == 0 {
		t.Error("the control, whose work commits separately, was never done twice: the power fails at the wrong moments")
	}
}

func TestThousandRacersUpdateOnce(t *testing.T) {
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := open(t)
				var runs atomic.Int64
				e := openEngine(t, store, nil)
				h := protect(t, e, idempotency.Options{}, updating(func(tx *engine.Tx, w http.ResponseWriter) error {
					time.Sleep(25 * time.Second) // longer than the lease
					w.WriteHeader(http.StatusCreated)
					fmt.Fprintf(w, "run %d", runs.Add(1))
					return tx.Put([]byte("balance"), []byte("1"))
				}))
				race(t, h, 1000)
				if b := balance(t, e); b != "1" || runs.Load() != 1 {
					t.Errorf("balance %s after %d runs", b, runs.Load())
				}
			})
		})
	}
}

// Requests with different keys add to one balance, and each of them is sent three times.
func TestUpdatesOfDifferentKeysConflictAndRunAgain(t *testing.T) {
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			e := openEngine(t, open(t), nil)
			h := protect(t, e, idempotency.Options{}, updating(func(tx *engine.Tx, w http.ResponseWriter) error {
				w.Header().Add("X-Run", "one")
				return deposit(tx, w)
			}, engine.Retries(1000)))
			var clients sync.WaitGroup
			for i := range 20 {
				clients.Go(func() {
					first := do(h, post(strconv.Itoa(i), ""))
					for range 2 {
						again := do(h, post(strconv.Itoa(i), ""))
						if first.Code != 201 || again.Code != 201 || again.Body.String() != first.Body.String() || len(again.Header()["X-Run"]) != 1 {
							t.Errorf("%d %s, then %d %s, %v", first.Code, first.Body, again.Code, again.Body, again.Header())
						}
					}
				})
			}
			clients.Wait()
			if b := balance(t, e); b != "20" {
				t.Errorf("balance %s", b)
			}
		})
	}
}

func TestUpdateThatFailsChangesNothing(t *testing.T) {
	e := inMemory(t)
	runs, status := 0, http.StatusUnprocessableEntity
	h := protect(t, e, idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
		runs++
		err := idempotency.Update(r.Context(), func(tx *engine.Tx, w http.ResponseWriter) error {
			w.Header().Set("X-Undone", "yes")
			if err := deposit(tx, w); err != nil {
				return err
			}
			return errRefused
		})
		if !errors.Is(err, errRefused) {
			t.Error(err)
		}
		w.WriteHeader(status)
		io.WriteString(w, "refused")
	})
	for _, replayed := range []bool{false, true} { // the rejection is the result of its key
		w := do(h, post("k", ""))
		want(t, w, 422, replayed)
		if w.Body.String() != "refused" || w.Header().Get("X-Undone") != "" {
			t.Errorf("%q %v", w.Body, w.Header())
		}
	}
	status = http.StatusInternalServerError
	want(t, do(h, post("l", "")), 500, false)
	want(t, do(h, post("l", "")), 500, false) // a failure releases its key
	if b := balance(t, e); b != "" || runs != 3 {
		t.Errorf("balance %q after %d runs", b, runs)
	}
}

func TestResponseOfUpdate(t *testing.T) {
	h := protect(t, inMemory(t), idempotency.Options{MaxResponseBytes: 100}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Outer", "kept")
		update := func() error {
			return idempotency.Update(r.Context(), func(_ *engine.Tx, w http.ResponseWriter) error {
				w.Header().Set("X-Inner", "kept")
				w.WriteHeader(http.StatusBadGateway)
				_, err := w.Write(make([]byte, len(r.URL.Fragment)))
				return err
			})
		}
		if err := update(); err != nil {
			t.Error(err)
		}
		w.Header().Set("X-Late", "dropped")
		w.WriteHeader(http.StatusTeapot)
		if _, err := io.WriteString(w, "dropped"); !errors.Is(err, idempotency.ErrAnswered) {
			t.Error(err)
		}
		if err := update(); !errors.Is(err, idempotency.ErrAnswered) {
			t.Error(err)
		}
	})
	for _, replayed := range []bool{false, true} {
		w := do(h, post("k", ""))
		want(t, w, 502, replayed) // a committed response is stored, whatever its status
		if w.Header().Get("X-Outer") != "kept" || w.Header().Get("X-Inner") != "kept" || w.Header().Get("X-Late") != "" || w.Body.Len() > 0 {
			t.Errorf("%v %q", w.Header(), w.Body)
		}
	}
	large := func() *http.Request {
		r := post("large", "")
		r.URL.Fragment = strings.Repeat("x", 101)
		return r
	}
	if w := do(h, large()); w.Code != 502 || w.Body.Len() != 101 {
		t.Errorf("a large response: status %d, %d bytes", w.Code, w.Body.Len())
	}
	want(t, do(h, large()), 409, true)
}

func TestUpdateAfterTheResponseHasBegun(t *testing.T) {
	e := inMemory(t)
	h := protect(t, e, idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		if err := idempotency.Update(r.Context(), deposit); !errors.Is(err, idempotency.ErrAnswered) {
			t.Error(err)
		}
	})
	want(t, do(h, post("k", "")), 202, false)
	if b := balance(t, e); b != "" {
		t.Errorf("balance %s", b)
	}
}

func TestPanicsAroundUpdate(t *testing.T) {
	for name, c := range map[string]struct {
		inside   bool
		balance  string
		replayed bool
	}{
		"in the transaction": {true, "", false},
		"after it":           {false, "1", true},
	} {
		t.Run(name, func(t *testing.T) {
			e := inMemory(t)
			runs := 0
			h := protect(t, e, idempotency.Options{}, func(_ http.ResponseWriter, r *http.Request) {
				runs++
				err := idempotency.Update(r.Context(), func(tx *engine.Tx, w http.ResponseWriter) error {
					if err := deposit(tx, w); err != nil {
						return err
					}
					if c.inside && runs == 1 {
						panic("inside")
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
				if runs == 1 {
					panic("after it")
				}
			})
			func() {
				defer func() {
					if recover() == nil {
						t.Error("the panic does not reach the server")
					}
				}()
				do(h, post("k", ""))
			}()
			if b := balance(t, e); b != c.balance {
				t.Errorf("balance %q", b)
			}
			want(t, do(h, post("k", "")), 201, c.replayed)
			if b := balance(t, e); b != "1" {
				t.Errorf("balance %q", b)
			}
		})
	}
}

func TestLostLeaseRollsUpdateBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		clock := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		e := openEngine(t, storetest.NewMem(storage.Identity{}), clock)
		var h http.Handler
		runs := 0
		h = protect(t, e, idempotency.Options{Clock: clock}, func(w http.ResponseWriter, r *http.Request) {
			runs++
			paused := runs == 1
			err := idempotency.Update(r.Context(), func(tx *engine.Tx, w http.ResponseWriter) error {
				if runs == 1 { // for longer than the lease, while another run does the work
					ahead.Store(int64(idempotency.DefaultLease))
					want(t, do(h, post("k", "")), 201, false)
				}
				return deposit(tx, w)
			}, engine.Retries(10))
			if errors.Is(err, engine.ErrLeaseLost) != paused {
				t.Error(err)
			}
		})
		want(t, do(h, post("k", "")), 409, false)
		if b := balance(t, e); b != "1" || runs != 2 {
			t.Errorf("balance %s after %d runs", b, runs)
		}
		want(t, do(h, post("k", "")), 201, true)
	})
}

// The handler continues for longer than its lease after the commit. A renewal would find the key
// finished.
func TestHandlerContinuesAfterUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := idempotency.Options{OnError: func(_ *http.Request, err error) { t.Error(err) }}
		h := protect(t, inMemory(t), o, func(w http.ResponseWriter, r *http.Request) {
			updating(deposit)(w, r)
			time.Sleep(2 * idempotency.DefaultLease)
			if err := r.Context().Err(); err != nil {
				t.Error(context.Cause(r.Context()))
			}
		})
		want(t, do(h, post("k", "")), 201, false)
		want(t, do(h, post("k", "")), 201, true)
	})
}

// The commit takes as long as the lease. A renewal during it would find the key finished.
func TestNoRenewalDuringTheCommitOfUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := storetest.NewMem(storage.Identity{})
		o := idempotency.Options{OnError: func(_ *http.Request, err error) { t.Error(err) }}
		h := protect(t, openEngine(t, m, nil), o, func(w http.ResponseWriter, r *http.Request) {
			updating(func(tx *engine.Tx, w http.ResponseWriter) error {
				m.Before(storetest.OpWait, func(int) error { time.Sleep(idempotency.DefaultLease); return nil })
				return deposit(tx, w)
			})(w, r)
			m.Before(storetest.OpWait, nil)
			if r.Context().Err() != nil {
				t.Error(context.Cause(r.Context()))
			}
		})
		want(t, do(h, post("k", "")), 201, false)
	})
}

func TestUpdateWithoutAKey(t *testing.T) {
	e := inMemory(t)
	h := protect(t, e, idempotency.Options{Optional: true}, updating(deposit))
	for i := range 2 {
		w := do(h, post("", ""))
		want(t, w, 201, false)
		if w.Body.String() != fmt.Sprintf("balance %d", i+1) {
			t.Errorf("%q", w.Body)
		}
	}
	h = protect(t, e, idempotency.Options{Optional: true}, updating(func(tx *engine.Tx, w http.ResponseWriter) error {
		return errors.Join(deposit(tx, w), errRefused)
	}))
	want(t, do(h, post("", "")), 500, false)
	if b := balance(t, e); b != "2" {
		t.Errorf("balance %s", b)
	}
	if err := idempotency.Update(t.Context(), deposit); !errors.Is(err, idempotency.ErrNoMiddleware) {
		t.Error(err)
	}
}

func TestUpdateWithoutAKeySendsEachCookieOnce(t *testing.T) {
	h := protect(t, inMemory(t), idempotency.Options{Optional: true}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Set-Cookie", "a=1")
		if err := idempotency.Update(r.Context(), func(_ *engine.Tx, w http.ResponseWriter) error {
			w.Header().Add("Set-Cookie", "b=1")
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
	if got := do(h, post("", "b")).Header().Values("Set-Cookie"); !slices.Equal(got, []string{"a=1", "b=1"}) {
		t.Errorf("%q", got)
	}
}

func TestStoreFailsInUpdate(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	h := protect(t, openEngine(t, m, nil), idempotency.Options{}, updating(func(tx *engine.Tx, w http.ResponseWriter) error {
		m.Crash()
		return deposit(tx, w)
	}))
	want(t, do(h, post("k", "")), 503, false)
}

// A handler that returns without a response after Update has failed has not succeeded: none of its
// work is stored.
func TestNoResponseAfterUpdateFailed(t *testing.T) {
	for keep, status := range map[bool]int{false: 201, true: 500} {
		e := inMemory(t)
		runs := 0
		h := protect(t, e, idempotency.Options{Keep: always(keep)}, func(_ http.ResponseWriter, r *http.Request) {
			_ = idempotency.Update(r.Context(), func(tx *engine.Tx, w http.ResponseWriter) error {
				if runs++; runs == 1 {
					return errRefused
				}
				return deposit(tx, w)
			})
		})
		want(t, do(h, post("k", "")), 500, false)
		want(t, do(h, post("k", "")), status, keep)
		if b := balance(t, e); (b == "1") == keep {
			t.Errorf("kept: %v: balance %q after %d runs", keep, b, runs)
		}
	}
}
