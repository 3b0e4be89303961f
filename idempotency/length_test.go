package idempotency_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/idempotency"
)

// A response that ends before its Content-Length, such as that of a proxy whose server has died, is
// not one that a retry can use.
func TestResponseShorterThanItsLengthIsAFailure(t *testing.T) {
	for _, keep := range []bool{false, true} {
		runs := new(atomic.Int64)
		h := protect(t, inMemory(t), idempotency.Options{Keep: always(keep)}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			io.WriteString(w, "hello"[:min(runs.Add(1)+2, 5)])
		})
		want(t, do(h, post("k", "b")), http.StatusInternalServerError, false)
		if keep {
			want(t, do(h, post("k", "b")), http.StatusInternalServerError, true)
			continue
		}
		want(t, do(h, post("k", "b")), http.StatusInternalServerError, false)
		w := do(h, post("k", "b"))
		want(t, w, http.StatusOK, false)
		want(t, do(h, post("k", "b")), http.StatusOK, true)
		if w.Body.String() != "hello" || runs.Load() != 3 {
			t.Errorf("%q after %d runs", w.Body, runs.Load())
		}
	}
}

func TestResponseWithoutABodyMayHaveALength(t *testing.T) {
	handler := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		w.WriteHeader(http.StatusNotModified)
	}
	h := protect(t, inMemory(t), idempotency.Options{}, handler)
	want(t, do(h, post("k", "b")), http.StatusNotModified, false)
	want(t, do(h, post("k", "b")), http.StatusNotModified, true)
	h = protect(t, inMemory(t), idempotency.Options{Methods: []string{http.MethodHead}}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
	})
	head := post("k", "")
	head.Method = http.MethodHead
	want(t, do(h, head), http.StatusOK, false)
	want(t, do(h, head), http.StatusOK, true)
}

// As without the middleware, what exceeds the Content-Length is refused, and the rest is sent.
func TestWriteBeyondTheLengthIsRefused(t *testing.T) {
	server := httptest.NewServer(protect(t, inMemory(t), idempotency.Options{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		io.WriteString(w, "hello")
		if _, err := io.WriteString(w, "!"); !errors.Is(err, http.ErrContentLength) {
			t.Error(err)
		}
	}))
	defer server.Close()
	client := &http.Client{Transport: &idempotency.Transport{}}
	for range 2 {
		r, err := http.NewRequestWithContext(idempotency.WithKey(t.Context(), "k"), http.MethodPost, server.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(b) != "hello" {
			t.Errorf("%q, %v", b, err)
		}
	}
}

// The work of such a response rolls back.
func TestUpdateWithAShortResponseRollsBack(t *testing.T) {
	e, runs := inMemory(t), 0
	var short error
	h := protect(t, e, idempotency.Options{}, func(_ http.ResponseWriter, r *http.Request) {
		err := idempotency.Update(r.Context(), func(tx *engine.Tx, w http.ResponseWriter) error {
			runs++
			w.Header().Set("Content-Length", "5")
			io.WriteString(w, "hello"[:min(runs+3, 5)])
			return tx.Put([]byte("balance"), []byte{byte(runs)})
		})
		if runs == 1 {
			short = err
		}
	})
	want(t, do(h, post("k", "b")), http.StatusInternalServerError, false)
	if _, found, err := e.Get(t.Context(), []byte("balance")); short == nil || found || err != nil {
		t.Errorf("Update returned %v; the key is there: %v, %v", short, found, err)
	}
	want(t, do(h, post("k", "b")), http.StatusOK, false)
	want(t, do(h, post("k", "b")), http.StatusOK, true)
}
