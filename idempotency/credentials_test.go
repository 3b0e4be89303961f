package idempotency_test

import (
	"net/http"
	"reflect"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/idempotency"
)

func TestCredentialsAreInTheFirstResponseOnlyUnlessTheyAreNamed(t *testing.T) {
	answer := func(w http.ResponseWriter) {
		w.Header().Set("Set-Cookie", "session=1")
		w.Header()["x-auth-token"] = []string{"2"}
		w.Header().Set("Location", "/payments/1")
		w.WriteHeader(http.StatusCreated)
		w.Header().Set(http.TrailerPrefix+"X-Api-Key", "3")
	}
	handlers := map[string]http.HandlerFunc{
		"handler": func(w http.ResponseWriter, _ *http.Request) { answer(w) },
		"Update": func(_ http.ResponseWriter, r *http.Request) {
			_ = idempotency.Update(r.Context(), func(_ *engine.Tx, w http.ResponseWriter) error { answer(w); return nil })
		},
	}
	all := http.Header{"Set-Cookie": {"session=1"}, "x-auth-token": {"2"}, "Location": {"/payments/1"}, "Trailer:X-Api-Key": {"3"}}
	for name, handler := range handlers {
		for _, named := range [][]string{nil, {"set-cookie", "X-Auth-Token", "X-Api-Key"}} {
			h := protect(t, inMemory(t), idempotency.Options{KeepCredentials: named}, handler)
			w := do(h, post("k", ""))
			want(t, w, 201, false)
			if !reflect.DeepEqual(w.Header(), all) {
				t.Errorf("%s, first: %v", name, w.Header())
			}
			w = do(h, post("k", ""))
			want(t, w, 201, true)
			w.Header().Del(idempotency.ReplayedHeader)
			expected := http.Header{"Location": {"/payments/1"}}
			if named != nil {
				expected = all
			}
			if !reflect.DeepEqual(w.Header(), expected) {
				t.Errorf("%s, named %q: %v, want %v", name, named, w.Header(), expected)
			}
		}
	}
}

func TestCookiesOfAnOuterMiddlewareRemain(t *testing.T) {
	inner := protect(t, inMemory(t), idempotency.Options{KeepCredentials: []string{"Set-Cookie"}}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Set-Cookie", "inner=1")
		w.Header().Add("Vary", "Accept")
		w.Header().Set("Cache-Control", "no-store")
	})
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Set-Cookie", "session=1")
		w.Header().Add("Vary", "Origin")
		w.Header().Set("Cache-Control", "private")
		inner.ServeHTTP(w, r)
	})
	for i := range 3 {
		w := do(outer, post("k", "b"))
		want(t, w, http.StatusOK, i > 0)
		w.Header().Del(idempotency.ReplayedHeader)
		if expected := (http.Header{
			"Set-Cookie": {"session=1", "inner=1"}, "Vary": {"Origin", "Accept"}, "Cache-Control": {"no-store"},
		}); !reflect.DeepEqual(w.Header(), expected) {
			t.Errorf("request %d: %v, want %v", i, w.Header(), expected)
		}
	}
}

// Without a tenant, one caller gets the response of another.
func TestNewNeedsATenantUnlessKeysAreShared(t *testing.T) {
	e := inMemory(t)
	tenant := func(*http.Request) (string, error) { return "", nil }
	for name, c := range map[string]struct {
		o  idempotency.Options
		ok bool
	}{
		"neither": {idempotency.Options{}, false},
		"both":    {idempotency.Options{Tenant: tenant, SharedKeys: true}, false},
		"tenant":  {idempotency.Options{Tenant: tenant}, true},
		"shared":  {idempotency.Options{SharedKeys: true}, true},
	} {
		if _, err := idempotency.New(e, c.o); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
