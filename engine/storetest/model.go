package storetest

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
	"github.com/hapax-dev/hapax/weekbucket"
)

// RunModel compares an engine on the store that h opens with maps, over random sequences of everything that a host may
// do: claims, batches, transactions inside transactions, savepoints, dead letters and their replays, failing closures, forgetting, holds, drops, a clock
// that goes on, clean and unclean ends. It takes a few seconds; with -rapid.checks it takes as long as these need, and
// -rapid.steps makes each longer. A failure prints its -rapid.seed, and reproducing it is never cut short.
func RunModel(t *testing.T, h Harness) {
	h = h.withDefaults()
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
}

func (f *facts) clone() *facts {
	return &facts{maps.Clone(f.claims), maps.Clone(f.host), maps.Clone(f.offsets), maps.Clone(f.holds), f.oldest}
}

// A model is an engine beside what it was told.
type model struct {
	*rapid.T
	test *testing.T
	h    Harness
	base string // directory for copies
	dir  string // of the store now

	gate  *gate
	e     *engine.Engine
	clock time.Time
	told  *facts
	held  map[claimKey]bool // by open transactions
	open  []*modelTx        // transactions, the outermost first
	n     int64             // of deliveries, for their offsets
	copy  int               // of backups
}

var modelStart = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func newModel(rt *rapid.T, t *testing.T, h Harness, dir string) *model {
	m := &model{T: rt, test: t, h: h, base: filepath.Dir(dir), dir: dir, clock: modelStart, held: map[claimKey]bool{}}
	m.told = &facts{
		claims: map[claimKey]engine.Record{}, host: map[string]string{}, offsets: map[int32]int64{}, holds: map[string]weekbucket.Week{},
		oldest: m.week() - engine.DefaultRetentionWeeks,
	}
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
		RecentClaims: rapid.SampledFrom([]int{-1, 1, 1000}).Draw(m.T, "cache"), ExpectedPerWeek: 100, MaxFilterBytes: 1 << 12,
		Clock: func() time.Time { return clock },
	})
	if err != nil {
		m.gate = nil
		m.Fatalf("opening the engine: %v", errors.Join(err, s.Close()))
	}
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
		"forget": m.forget, "hold": m.hold, "dropWeek": m.dropWeek, "dropExpired": m.dropExpired,
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
	m.clock = m.clock.Add(time.Duration(rapid.IntRange(1, 24*9).Draw(t, "hours")) * time.Hour)
	m.reopen() // the clock of an engine stands still
}

func (m *model) event(t *rapid.T) (engine.Event, claimKey) {
	week := m.week() + weekbucket.Week(rapid.IntRange(0, 7).Draw(t, "week")) - 5
	m.n++
	ev := engine.Event{
		Scope:   rapid.SampledFrom([]string{"a", "ab", "a\x00"}).Draw(t, "scope"),
		ID:      []byte(rapid.SampledFrom([]string{"1", "2", "3", "\x00", "00112233445566778899aabbccddeeff", "00112233-4455-6677-8899-aabbccddeeff"}).Draw(t, "id")),
		Time:    week.Start().Add(time.Duration(rapid.IntRange(0, 7*24-1).Draw(t, "hour")) * time.Hour),
		LogTime: rapid.IntRange(0, 2).Draw(t, "log time") == 0,
		Origin:  engine.Origin{Topic: rapid.SampledFrom([]string{"t", "u"}).Draw(t, "topic"), Offset: m.n},
	}
	return ev, claimKey{ev.Scope, week, string(ev.ID)}
}

// near are the weeks before and after, for an event whose time is the log's.
func near(ev engine.Event, k claimKey) []claimKey {
	if !ev.LogTime {
		return nil
	}
	return []claimKey{{k.scope, k.week - 1, k.id}, {k.scope, k.week + 1, k.id}}
}

// isNear reports whether this is the record of a claim in a week near that counts.
func (m *model) isNear(ev engine.Event, k claimKey, rec engine.Record) bool {
	return slices.ContainsFunc(near(ev, k), func(n claimKey) bool {
		there, ok := m.told.claims[n]
		return ok && there == rec
	})
}

// expect is the verdict of an event, and the claim that it is a duplicate of. tx is nil for an own-commit claim; a claim
// that is dead-lettered with the generation reopen, if that is not nil, is open.
func (m *model) expect(ev engine.Event, k claimKey, tx *modelTx, reopen *uint64) (r engine.Result, of claimKey) {
	if ev.Time.Sub(m.clock) > engine.DefaultAllowedSkew {
		return engine.Result{Verdict: engine.TooNew}, k
	}
	if k.week < m.told.oldest {
		return engine.Result{Verdict: engine.TooOld}, k
	}
	own := map[claimKey]engine.Record{}
	if tx != nil {
		own = tx.claims
	}
	inFlight := m.held[k]
	rec, there := m.told.claims[k]
	open := there && reopen != nil && rec.State == engine.DeadLettered && rec.Generation == *reopen
	if mine, ok := own[k]; ok {
		return engine.Result{Verdict: engine.Duplicate, Record: mine}, k
	}
	if there && !open {
		return engine.Result{Verdict: engine.Duplicate, Record: rec}, k
	}
	if !there {
		for _, claims := range []map[claimKey]engine.Record{own, m.told.claims} {
			for _, n := range near(ev, k) {
				if rec, ok := claims[n]; ok {
					return engine.Result{Verdict: engine.Duplicate, Record: rec}, n
				}
				inFlight = inFlight || m.held[n]
			}
		}
	}
	if inFlight {
		return engine.Result{Verdict: engine.InFlight}, k
	}
	if !there {
		return engine.Result{Verdict: engine.Claimed, Record: m.newRecord(ev)}, k
	}
	rec.State = engine.Done
	rec.Generation++
	return engine.Result{Verdict: engine.Claimed, Record: rec}, k
}

func (m *model) newRecord(ev engine.Event) engine.Record {
	return engine.Record{State: engine.Done, FirstSeen: m.clock, Origin: ev.Origin}
}

func (m *model) checkResult(r engine.Result, err error, want engine.Result, k claimKey) {
	if err != nil || r != want {
		m.Fatalf("%v: told %+v, %v; want %+v", k, r, err, want)
	}
}

func (m *model) claim(t *rapid.T) {
	ev, k := m.event(t)
	want, _ := m.expect(ev, k, nil, nil)
	r, err := m.e.TryClaim(context.Background(), ev)
	m.checkResult(r, err, want, k)
	if want.First() {
		m.told.claims[k] = want.Record
	}
}

func (m *model) batch(t *rapid.T) {
	var events []engine.Event
	var keys []claimKey
	for range rapid.IntRange(0, 8).Draw(t, "events") {
		ev, k := m.event(t)
		events, keys = append(events, ev), append(keys, k)
	}
	rs, err := m.e.TryClaimBatch(context.Background(), events)
	if err != nil {
		m.Fatalf("a batch: %v", err)
	}
	for i, k := range keys {
		want, _ := m.expect(events[i], k, nil, nil)
		if rs[i].Verdict == engine.Duplicate && m.isNear(events[i], k, rs[i].Record) {
			want.Record = rs[i].Record // of several claims any: it may have been found before this one was made
		}
		m.checkResult(rs[i], rs[i].Err, want, k)
		if want.First() {
			m.told.claims[k] = want.Record
		}
	}
}

func (m *model) forget(t *rapid.T) {
	ev, k := m.event(t)
	_, there := m.told.claims[k]
	found, err := m.e.Forget(context.Background(), ev.Scope, ev.ID, ev.Time)
	if m.held[k] {
		if !errors.Is(err, engine.ErrConflict) {
			m.Fatalf("forgetting %v, which is held: %v", k, err)
		}
		return
	}
	if err != nil || found != there {
		m.Fatalf("forgetting %v: %v %v, want %v", k, found, err, there)
	}
	if m.told.claims[k].State == engine.DeadLettered {
		for _, x := range m.open {
			x.changed[claimName(k)] = true
		}
	}
	delete(m.told.claims, k)
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

func (m *model) raise(to weekbucket.Week) {
	m.told.oldest = max(m.told.oldest, to)
	maps.DeleteFunc(m.told.claims, func(k claimKey, _ engine.Record) bool { return k.week < m.told.oldest })
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

func (m *model) dropExpired(*rapid.T) {
	until := min(m.week()-engine.DefaultRetentionWeeks, m.told.oldest+engine.DefaultMaxWeeksPerRun, m.lowestHold())
	want := max(until, m.told.oldest)
	r, err := m.e.DropExpired(context.Background())
	if err != nil || r.Oldest != want || m.e.OldestWeek() != want {
		m.Fatalf("dropping what is expired: %+v, %v; want %v", r, err, want)
	}
	m.raise(want)
}

// backup goes on with a copy of the store.
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

// crash hands over some claims and transactions whose batches do not get durable, cuts the power, and goes on with
// what is found: all that was told, and of the rest a prefix, each whole or not at all.
func (m *model) crash(t *rapid.T) {
	if err := m.e.Reclaimed(context.Background()); err != nil {
		m.Fatalf("waiting for what runs behind: %v", err)
	}
	// Whatever opening began behind is done when a transaction of ours is the next batch.
	var steps []*facts
	var wg sync.WaitGroup
	answered := make(chan string, 8)
	m.gate.hold()
	now := m.told.clone()
	for i := range rapid.IntRange(0, 2).Draw(t, "unsynced") {
		ev := engine.Event{Scope: "crash", ID: fmt.Appendf(nil, "%d-%d", m.n, i), Time: m.clock, Origin: engine.Origin{Topic: "t", Offset: m.n}}
		k := claimKey{ev.Scope, m.week(), string(ev.ID)}
		if k.week < m.told.oldest {
			break
		}
		key := fmt.Sprint("crash", i)
		inTx := rapid.Bool().Draw(t, "in a transaction")
		before := m.gate.applied()
		wg.Go(func() {
			if inTx {
				_ = m.e.Update(context.Background(), func(tx *engine.Tx) error {
					_, err := tx.TryClaim(ev)
					return errors.Join(err, tx.Put([]byte(key), ev.ID), tx.SetOffset(modelPosition(9), engine.Offset{Next: int64(i)}))
				})
			} else {
				_, _ = m.e.TryClaim(context.Background(), ev)
			}
			answered <- k.id
		})
		m.gate.awaitApply(before)
		now.claims[k] = m.newRecord(ev)
		if inTx {
			now.host[key], now.offsets[9] = k.id, int64(i)
		}
		steps = append(steps, now.clone())
	}
	m.n++
	select {
	case id := <-answered:
		m.Fatalf("%q was answered before it was durable", id)
	case <-time.After(time.Millisecond):
	}
	to := m.h.CrashClone(m.test, m.gate.Store, m.dir, randomShare.Draw(t, "survives"))
	m.gate.release()
	wg.Wait()
	m.shut()
	m.dir = to
	m.start()
	for i := len(steps) - 1; i >= 0; i-- {
		if m.difference(steps[i]) == "" {
			m.told = steps[i]
			return
		}
	}
	if d := m.difference(m.told); d != "" {
		m.Fatalf("after a crash: %s; %d batches were not durable, and it is not a prefix of them either", d, len(steps))
	}
}

func modelPosition(partition int32) engine.Position {
	return engine.Position{Group: "g", Topic: "t", Partition: partition}
}

// compare reads everything that the engine shows.
func (m *model) compare() {
	if d := m.difference(m.told); d != "" {
		m.Fatalf("%s", d)
	}
	r, err := m.e.Verify(context.Background())
	if err != nil || r.Total != 0 || int(r.Claims) != len(m.told.claims) {
		m.Fatalf("Verify: %+v, %v; %d claims were made", r, err, len(m.told.claims))
	}
	weeks, err := m.e.Weeks(context.Background())
	if errors.Is(err, engine.ErrRebuilding) {
		return
	}
	n := map[engine.Bucket]uint64{}
	for k := range m.told.claims {
		n[engine.Bucket{Scope: k.scope, Week: k.week}]++
	}
	for _, w := range weeks {
		for _, s := range w.Scopes {
			b := engine.Bucket{Scope: s.Scope, Week: w.Week}
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

// difference tells how what the engine shows differs from f, "" if it does not.
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
	return d
}

var modelKeys = []string{"k", "l", "k\x00", "crash0", "crash1"}

// A gate is a store whose waits can be held back before they reach it, so that no call of it is under way meanwhile.
type gate struct {
	engine.Store
	mu      sync.Mutex
	changed *sync.Cond
	held    bool
	applies int
}

func (g *gate) Apply(b *engine.Batch) (func() error, error) {
	wait, err := g.Store.Apply(b)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.applies++
	g.changed.Broadcast()
	return func() error {
		g.mu.Lock()
		for g.held {
			g.changed.Wait()
		}
		g.mu.Unlock()
		return wait()
	}, err
}

func (g *gate) applied() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.applies
}

func (g *gate) awaitApply(more int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.applies <= more {
		g.changed.Wait()
	}
}

func (g *gate) hold()    { g.set(true) }
func (g *gate) release() { g.set(false) }

func (g *gate) set(held bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = held
	g.changed.Broadcast()
}
