package idempotency_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/idempotency"
)

// wantKept checks whether the result of a first run with that status is kept.
func wantKept(ctx context.Context, t *testing.T, o idempotency.Options, first http.HandlerFunc, status int, kept bool) {
	t.Helper()
	runs := 0
	h := protect(t, inMemory(t), o, func(w http.ResponseWriter, r *http.Request) {
		if runs++; runs == 1 {
			first(w, r)
		}
	})
	want(t, do(h, post("k", "").WithContext(ctx)), status, false)
	again := do(h, post("k", ""))
	if kept {
		want(t, again, status, true)
	} else {
		want(t, again, 200, false)
	}
}

func TestStatusesThatAreKept(t *testing.T) {
	for status := 200; status < 600; status++ {
		kept := status < 500
		switch status {
		case 307, 308, 401, 402, 403, 408, 409, 425, 429, 499:
			kept = false
		}
		first := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
		wantKept(t.Context(), t, idempotency.Options{}, first, status, kept)
	}
}

func TestKeepDecidesExceptFor2xxAnd499(t *testing.T) {
	for status := 200; status < 600; status++ {
		first := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
		wantKept(t.Context(), t, idempotency.Options{Keep: always(true)}, first, status, status != 499)
		wantKept(t.Context(), t, idempotency.Options{Keep: always(false)}, first, status, status < 300)
	}
}

// What a handler answers when it sees that its client has gone is no result, unless it has done the work.
func TestAnAnswerAfterTheContextHasEnded(t *testing.T) {
	for name, size := range map[string]int{"held back": 1, "too large to keep": 200} {
		for status, kept := range map[int]bool{200: true, 201: true, 204: true, 303: false, 400: false, 404: false, 422: false, 500: false} {
			t.Run(fmt.Sprint(status, " ", name), func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				o := idempotency.Options{Keep: always(true), MaxResponseBytes: 100}
				if size > o.MaxResponseBytes && kept {
					t.Skip("the answer of a retry is 409") // TestResponseAboveTheLimitIsSentAndNotRunAgain
				}
				wantKept(ctx, t, o, func(w http.ResponseWriter, _ *http.Request) {
					cancel()
					w.WriteHeader(status)
					_, _ = w.Write(make([]byte, size))
				}, status, kept)
			})
		}
	}
}

func TestAnAnswerBeforeTheContextEndsIsKept(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	wantKept(ctx, t, idempotency.Options{}, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		cancel()
	}, 404, true)
}

func TestNoAnswerAfterTheContextHasEndedIsNeverKept(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	wantKept(ctx, t, idempotency.Options{Keep: always(true)}, func(http.ResponseWriter, *http.Request) { cancel() }, 503, false)
}

// ServeMux redirects /payments to /payments/ with the same method, and the client sends its key again.
func TestARedirectInsideIsFollowedWithTheSameKey(t *testing.T) {
	handler, runs := counting()
	mux := http.NewServeMux()
	mux.Handle("/payments/", handler)
	server := httptest.NewServer(protect(t, inMemory(t), idempotency.Options{}, mux.ServeHTTP))
	defer server.Close()
	for range 2 {
		r, err := http.NewRequestWithContext(idempotency.WithKey(t.Context(), "k"), http.MethodPost, server.URL+"/payments", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: &idempotency.Transport{}}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusCreated || string(body) != "run 1" {
			t.Errorf("status %d, %q, %v", resp.StatusCode, body, err)
		}
	}
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}
