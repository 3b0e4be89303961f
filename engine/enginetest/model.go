package enginetest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/weekbucket"
)

// RunModel compares an engine on the store that h opens with maps, over random sequences of
// everything that an application may do: claims, batches, transactions inside transactions,
// savepoints, dead letters and their replays, failing closures, forgetting, holds, drops, a clock
// that continues, clean and unclean ends. It takes a few seconds; with -rapid.checks it takes as
// long as these need, and -rapid.steps makes each longer. A failure prints its -rapid.seed, and
// reproducing it is never cut short.
func RunModel(t *testing.T, h storetest.Harness) {
	budget := 4 * time.Second
	if testing.Short() {
		budget = 2 * time.Second
	}
	limited := true
	flag.Visit(func(f *flag.Flag) { limited = limited && f.Name != "rapid.checks" })
	end := time.Now().Add(budget)
	failed, runs, root := false, 0, t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		if limited && time.Now().After(end) && !failed {
			return
		}
		runs++
		done := false
		dir := filepath.Join(root, fmt.Sprint("model-", runs))
		defer func() {
			failed = failed || !done
			_ = os.RemoveAll(dir)
		}()
		if err := os.Mkdir(dir, 0o700); err != nil {
			rt.Fatalf("%v", err)
		}
		m := newModel(rt, t, h, filepath.Join(dir, "store"))
		defer m.shut()
		rt.Repeat(m.actions())
		m.reopen()
		m.compare()
		done = true
	})
	t.Logf("%d runs", runs)
}

// A claimKey names an event as the model sees it.
type claimKey struct {
	scope string
	week  weekbucket.Week
	id    string
}

func (k claimKey) String() string { return fmt.Sprintf("%q %v %q", k.scope, k.week, k.id) }

// facts is what the model knows to be durable.
type facts struct {
	claims  map[claimKey]engine.Record
	host    map[string]string
	offsets map[int32]int64
	holds   map[string]weekbucket.Week
	oldest  weekbucket.Week
	floors  map[string]weekbucket.Week // oldest weeks of scopes
}

func (f *facts) clone() *facts {
	return &facts{maps.Clone(f.claims), maps.Clone(f.host), maps.Clone(f.offsets), maps.Clone(f.holds), f.oldest, maps.Clone(f.floors)}
}

// A model is an engine with what it must answer.
type model struct {
	*rapid.T
	test *testing.T
	h    storetest.Harness
	base string // directory for copies
	dir  string // of the store now

	gate  *gate
	e     *engine.Engine
	lane  *engine.LaneMember // of all transactions, nested ones included
	clock time.Time
	told  *facts
	held  map[claimKey]bool // by open transactions
	open  []*modelTx        // transactions, the outermost first
	n     int64             // of deliveries, for their offsets
	lent  []modelLease      // every lease that was given
	copy  int               // of backups

	retention map[string]int // weeks that the engine keeps of scopes
}

var modelStart = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func newModel(rt *rapid.T, t *testing.T, h storetest.Harness, dir string) *model {
	m := &model{T: rt, test: t, h: h, base: filepath.Dir(dir), dir: dir, clock: modelStart, held: map[claimKey]bool{}}
	m.told = &facts{
		claims: map[claimKey]engine.Record{}, host: map[string]string{}, offsets: map[int32]int64{}, holds: map[string]weekbucket.Week{},
		floors: map[string]weekbucket.Week{}, oldest: m.week() - engine.DefaultRetentionWeeks,
	}
	m.retention = rapid.SampledFrom(modelRetentions).Draw(rt, "retention of scopes")
	m.start()
	return m
}

func (m *model) week() weekbucket.Week {
	w, err := weekbucket.Of(m.clock)
	if err != nil {
		panic(err)
	}
	return w
}

func (m *model) start() {
	s, err := m.h.Open(m.test, m.dir)
	if err != nil {
		m.Fatalf("opening the store: %v", err)
	}
	m.gate = &gate{Store: s}
	m.gate.changed = sync.NewCond(&m.gate.mu)
	clock := m.clock
	m.e, err = engine.Open(m.gate, engine.Options{
		ScopeRetention: m.retention, RecentClaims: rapid.SampledFrom([]int{-1, 1, 1000}).Draw(m.T, "cache"), ExpectedPerWeek: 100, MaxFilterBytes: 1 << 12,
		Clock: func() time.Time { return clock },
	})
	if err != nil {
		m.gate = nil
		m.Fatalf("opening the engine: %v", errors.Join(err, s.Close()))
	}
	m.lane = m.e.JoinLane(time.Hour)
}

func (m *model) shut() {
	if m.e == nil {
		return
	}
	e := m.e
	m.e = nil
	if err := e.Close(); err != nil {
		m.Errorf("closing: %v", err)
	}
}

func (m *model) reopen() { m.shut(); m.start() }

func (m *model) actions() map[string]func(*rapid.T) {
	a := map[string]func(*rapid.T){
		"claim": m.claim, "claim2": m.claim, "batch": m.batch, "update": m.update, "update2": m.update, "update3": m.update,
		"lease": m.useLease, "lease2": m.useLease,
		"forget": m.forget, "hold": m.hold, "dropWeek": m.dropWeek, "dropExpired": m.dropExpired, "dropScope": m.dropScope,
		"clock":  func(t *rapid.T) { m.tick(t) },
		"reopen": func(*rapid.T) { m.reopen() },
		"backup": func(*rapid.T) { m.backup() },
		"":       func(*rapid.T) { m.compare() },
	}
	if m.h.CrashClone != nil {
		a["crash"] = m.crash
	}
	return a
}

func (m *model) tick(t *rapid.T) {
	m.clock = m.clock.Add(time.Duration(rapid.IntRange(-24, 24*9).Draw(t, "hours")) * time.Hour)
	m.reopen() // the clock of an engine does not move
}

func (m *model) hold(t *rapid.T) {
	name := rapid.SampledFrom([]string{"x", "y"}).Draw(t, "hold")
	week := m.week() + weekbucket.Week(rapid.IntRange(0, 8).Draw(t, "week")) - 6
	var err error
	if rapid.IntRange(0, 2).Draw(t, "place") == 0 {
		err = m.e.SetHold(context.Background(), name, week.Start())
		m.told.holds[name] = week
	} else {
		err = m.e.ReleaseHold(context.Background(), name)
		delete(m.told.holds, name)
	}
	if err != nil {
		m.Fatalf("hold %q: %v", name, err)
	}
}

// lowestHold is the first week that is held, weekbucket.Max if none is.
func (m *model) lowestHold() weekbucket.Week {
	low := weekbucket.Max
	for _, w := range m.told.holds {
		low = min(low, w)
	}
	return low
}

func (m *model) dropWeek(t *rapid.T) {
	week := m.told.oldest + weekbucket.Week(rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "week"))
	first := week
	for k := range m.told.claims {
		first = min(first, k.week)
	}
	some := slices.ContainsFunc(slices.Collect(maps.Keys(m.told.claims)), func(k claimKey) bool { return k.week == week })
	var want error
	switch {
	case week != m.told.oldest && (!some || first != week):
		want = engine.ErrNotOldestWeek
	case m.lowestHold() <= week:
		want = engine.ErrHeld
	}
	_, err := m.e.DropWeek(context.Background(), week)
	for errors.Is(err, engine.ErrRebuilding) {
		time.Sleep(time.Millisecond)
		_, err = m.e.DropWeek(context.Background(), week)
	}
	if !errors.Is(err, want) || want == nil && err != nil {
		m.Fatalf("dropping %v: %v, want %v", week, err, want)
	}
	if err == nil {
		m.raise(week + 1)
	}
}

// backup continues with a copy of the store.
func (m *model) backup() {
	m.copy++
	to := filepath.Join(m.base, fmt.Sprint("backup-", m.copy))
	if err := m.e.Backup(context.Background(), to); err != nil {
		m.Fatalf("backup: %v", err)
	}
	m.shut()
	m.dir = to
	m.start()
}

func modelPosition(partition int32) engine.Position {
	return engine.Position{Group: "g", Topic: "t", Partition: partition}
}

// compare reads everything that the engine shows.
func (m *model) compare() {
	if d := m.difference(m.told); d != "" {
		m.Fatalf("%s", d)
	}
	m.compareClaims()
	r, err := m.e.Verify(context.Background())
	if err != nil || r.Total != 0 || int(r.Claims) != len(m.told.claims) {
		m.Fatalf("Verify: %+v, %v; %d claims were made", r, err, len(m.told.claims))
	}
	weeks, err := m.e.Weeks(context.Background())
	if errors.Is(err, engine.ErrRebuilding) {
		return
	}
	n := map[storage.Bucket]uint64{}
	for k := range m.told.claims {
		n[storage.Bucket{Scope: k.scope, Week: k.week}]++
	}
	for _, w := range weeks {
		for _, s := range w.Scopes {
			b := storage.Bucket{Scope: s.Scope, Week: w.Week}
			if s.Claims != n[b] {
				m.Fatalf("Weeks: %d claims of %v, want %d", s.Claims, b, n[b])
			}
			delete(n, b)
		}
	}
	if err != nil || len(n) != 0 {
		m.Fatalf("Weeks misses %v, %v", n, err)
	}
}

// difference describes how the engine differs from f, "" if it does not.
func (m *model) difference(f *facts) (d string) {
	for k, want := range f.claims {
		r, found, err := m.e.Lookup(context.Background(), k.scope, []byte(k.id), k.week.Start())
		if err != nil || !found || r != want {
			return fmt.Sprintf("claim %v is %+v %v %v, want %+v", k, r, found, err, want)
		}
	}
	if got := m.e.OldestWeek(); got != f.oldest {
		return fmt.Sprintf("the oldest week is %v, want %v", got, f.oldest)
	}
	if holds := m.e.Holds(); len(holds) != len(f.holds) || slices.ContainsFunc(holds, func(h engine.Hold) bool { return !h.At.Equal(f.holds[h.Name].Start()) }) {
		return fmt.Sprintf("holds are %v, want %v", holds, f.holds)
	}
	err := m.e.Update(context.Background(), func(tx *engine.Tx) error {
		for _, k := range modelKeys {
			v, found, err := tx.Get([]byte(k))
			if want, there := f.host[k]; err != nil || found != there || string(v) != want {
				d = fmt.Sprintf("key %q is %q %v %v, want %q %v", k, v, found, err, want, there)
			}
		}
		for _, p := range []int32{0, 1, 9} {
			o, found, err := tx.Offset(modelPosition(p))
			if want, there := f.offsets[p]; err != nil || found != there || o.Next != want {
				d = fmt.Sprintf("offset of %d is %v %v %v, want %v %v", p, o, found, err, want, there)
			}
		}
		return nil
	})
	if err != nil && d == "" {
		d = err.Error()
	}
	if d == "" {
		d = m.iterations(f)
	}
	return d
}

// iterations describes how the keys and offsets that the engine iterates over differ from f.
func (m *model) iterations(f *facts) string {
	keys := map[string]string{}
	for kv, err := range m.e.Scan(context.Background(), engine.Range{}) {
		if err != nil {
			return err.Error()
		}
		keys[string(kv.Key)] = string(kv.Value)
	}
	if !maps.Equal(keys, f.host) {
		return fmt.Sprintf("keys are %q, want %q", keys, f.host)
	}
	for key, want := range f.host {
		if v, found, err := m.e.Get(context.Background(), []byte(key)); err != nil || !found || string(v) != want {
			return fmt.Sprintf("key %q is %q %v %v, want %q", key, v, found, err, want)
		}
	}
	offsets := map[int32]int64{}
	for o, err := range m.e.Offsets(context.Background(), "g") {
		if err != nil {
			return err.Error()
		}
		offsets[o.Position.Partition] = o.Offset.Next
	}
	if !maps.Equal(offsets, f.offsets) {
		return fmt.Sprintf("offsets are %v, want %v", offsets, f.offsets)
	}
	return ""
}

// compareClaims iterates over the claims of each bucket.
func (m *model) compareClaims() {
	got, buckets := map[claimKey]engine.Record{}, map[storage.Bucket]bool{}
	for k := range m.told.claims {
		buckets[storage.Bucket{Scope: k.scope, Week: k.week}] = true
	}
	for b := range buckets {
		for c, err := range m.e.Claims(context.Background(), b, nil) {
			if err != nil {
				m.Fatalf("claims of %v: %v", b, err)
			}
			got[claimKey{b.Scope, b.Week, string(c.ID)}] = c.Record
		}
	}
	if !maps.Equal(got, m.told.claims) {
		m.Fatalf("claims are %v, want %v", got, m.told.claims)
	}
}

var modelKeys = []string{"k", "l", "k\x00", "crash0", "crash1", "sum"}
