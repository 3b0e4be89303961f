package idempotency_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/bolt"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/idempotency"
)

// stores opens an empty store of each kind.
var stores = map[string]func(*testing.T) storage.Store{
	"memory": func(*testing.T) storage.Store { return storetest.NewMem(storage.Identity{}) },
	"bbolt": func(t *testing.T) storage.Store {
		s, err := bolt.Open(filepath.Join(t.TempDir(), "keys"), bolt.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	},
	"Pebble": func(t *testing.T) storage.Store {
		s, err := pebble.Open("keys", pebble.Options{FS: vfs.NewMem(), SmallTables: true})
		if err != nil {
			t.Fatal(err)
		}
		return s
	},
}

// A clock is set by its test. Goroutines of the engine read it.
type clock struct{ millis atomic.Int64 }

func newClock(at time.Time) *clock {
	c := &clock{}
	c.set(at)
	return c
}

func (c *clock) now() time.Time   { return time.UnixMilli(c.millis.Load()).UTC() }
func (c *clock) set(at time.Time) { c.millis.Store(at.UnixMilli()) }

func openEngine(t *testing.T, s storage.Store, clock func() time.Time) *engine.Engine {
	t.Helper()
	e, err := engine.Open(s, engine.Options{Clock: clock, ExpectedPerWeek: 1000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// protect wraps a handler; without a Tenant, all callers share their keys.
func protect(t *testing.T, e *engine.Engine, o idempotency.Options, h http.HandlerFunc) http.Handler {
	t.Helper()
	o.SharedKeys = o.Tenant == nil
	m, err := idempotency.New(e, o)
	if err != nil {
		t.Fatal(err)
	}
	return m(h)
}

// always returns an Options.Keep.
func always(keep bool) func(int) bool { return func(int) bool { return keep } }

// counting returns a handler that answers 201 with the number of its runs, and that number.
func counting() (http.HandlerFunc, *atomic.Int64) {
	runs := new(atomic.Int64)
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, "run "+strconv.FormatInt(runs.Add(1), 10))
	}, runs
}

func inMemory(t *testing.T) *engine.Engine {
	t.Helper()
	return openEngine(t, storetest.NewMem(storage.Identity{}), nil)
}

func post(key, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/payments?a=1", strings.NewReader(body))
	if key != "" {
		r.Header.Set(idempotency.KeyHeader, key)
	}
	return r
}

func do(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// want fails the test unless the answer has this status, and is or is not marked as a replay.
func want(t *testing.T, w *httptest.ResponseRecorder, status int, replayed bool) {
	t.Helper()
	if got := w.Header().Get(idempotency.ReplayedHeader) == "true"; w.Code != status || got != replayed {
		t.Fatalf("status %d, replayed %v: want %d, %v; %s", w.Code, got, status, replayed, w.Body)
	}
}
