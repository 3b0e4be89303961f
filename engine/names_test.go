package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/weekbucket"
)

// Instances with unique names start and end forever: their names are freed with the weeks in which
// they claimed.
func TestScopesOfPodsAreFreedForever(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 125,000 claims with a name each, one batch after the other")
	}
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 1, ExpectedPerWeek: 1 << 15})
	const pods, weeks = 25_000, 5
	podsOf := func(week int) []engine.Event {
		events := make([]engine.Event, pods)
		for i := range events {
			events[i] = at(fmt.Sprint(i), weeksLater(week))
			events[i].Scope = fmt.Sprintf("service-%d-%d", week, i%4)
			events[i].Origin.Topic = fmt.Sprintf("replies-%d-%d", week, i)
		}
		return events
	}
	check := func(e *engine.Engine, week int) {
		t.Helper()
		if n := stats(t, e).Names; n > 2*pods+100 {
			t.Fatalf("week %d: %d names are kept", week, n)
		}
		for kept := max(week-1, 0); kept <= week; kept++ {
			mustExpect(t, e, podsOf(kept), engine.Duplicate)
		}
		infos, err := e.Weeks(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range infos {
			for _, s := range info.Scopes {
				if !strings.HasPrefix(s.Scope, "service-") || s.Claims != pods/4 {
					t.Fatalf("%s: %+v", info.Week, s)
				}
			}
		}
	}
	for week := range weeks {
		c.set(weeksLater(week))
		if _, err := e.Retention().DropExpired(ctx); err != nil {
			t.Fatal(err)
		}
		mustExpect(t, e, podsOf(week), engine.Claimed)
		check(e, week)
	}
	crashed := open(t, m.CrashClone(0), engine.Options{RetentionWeeks: 1, Clock: c.now, ExpectedPerWeek: 1 << 15})
	check(crashed, weeks-1)
	verifyClean(t, crashed, 2*pods)
}

func TestMoreNamesThanRetainedWeeksMayHave(t *testing.T) {
	e, _, c := openAt(t, engine.Options{RetentionWeeks: 1, ExpectedPerWeek: 1 << 17})
	events := make([]engine.Event, limits.Names) // one too many, with the scope
	for i := range events {
		events[i] = event(fmt.Sprint(i))
		events[i].Origin.Topic = fmt.Sprint("topic-", i)
	}
	results, err := e.TryClaimBatch(ctx, events)
	if err != nil {
		t.Fatal(err)
	}
	last := len(results) - 1
	wantVerdict(t, results[last-1], engine.Claimed)
	if results[last].Verdict != engine.Failed || !errors.Is(results[last].Err, engine.ErrLimit) {
		t.Fatalf("one name too many is %v", results[last])
	}
	c.set(weeksLater(2))
	if _, err := e.Retention().DropAllExpired(ctx); err != nil {
		t.Fatal(err)
	}
	wantVerdict(t, claim(t, e, at("id", weeksLater(2))), engine.Claimed)
	if n := stats(t, e).Names; n != 2 {
		t.Errorf("%d names are left", n)
	}
}

// A nameModel is the expected state of an engine whose names change.
type nameModel struct {
	rng  *rand.Rand
	week int                     // the clock's, counted from noon
	kept map[string]engine.Event // acknowledged claims, by scope, id and week

	floors map[string]weekbucket.Week // of scopes that were dropped
}

func claimName(ev *engine.Event) string {
	return fmt.Sprint(ev.Scope, "|", string(ev.ID), "|", ev.Time)
}

// event returns an event whose scope and topic are those of an instance of its week or the one
// before.
func (m *nameModel) event() engine.Event {
	week := m.week - m.rng.IntN(2)
	ev := at(fmt.Sprint(m.rng.IntN(20)), weeksLater(week))
	ev.Scope = fmt.Sprint("scope-", m.week/2, "-", m.rng.IntN(5))
	ev.Origin.Topic = fmt.Sprint("topic-", m.week-m.rng.IntN(3), "-", m.rng.IntN(3))
	return ev
}

// step changes the engine, and records what was acknowledged.
func (m *nameModel) step(t testing.TB, e *engine.Engine, c *clock) {
	switch k := m.rng.IntN(20); {
	case k < 12:
		m.claims(t, e)
	case k < 15:
		ev := m.event()
		if _, err := e.Admin().Forget(ctx, ev.Scope, ev.ID, ev.Time); err != nil {
			t.Fatal(err)
		}
		delete(m.kept, claimName(&ev))
	case k < 17:
		_ = e.Update(ctx, func(tx *engine.Tx) error {
			_, _ = tx.TryClaim(m.event())
			return errHandler // its names may nevertheless be assigned
		})
	case k < 18:
		m.dropScope(t, e)
	default:
		m.week++
		c.set(weeksLater(m.week))
		if _, err := e.Retention().DropAllExpired(ctx); err != nil {
			t.Fatal(err)
		}
		for name, ev := range m.kept {
			if ev.Time.Before(weeksLater(m.week - 2)) {
				delete(m.kept, name)
			}
		}
	}
}

// dropScope drops a scope of two weeks ago, which no longer claims, or a later one, which may
// continue in a week after those in which it had claims.
func (m *nameModel) dropScope(t testing.TB, e *engine.Engine) {
	scope := fmt.Sprint("scope-", m.week/2-m.rng.IntN(2), "-", m.rng.IntN(5))
	awaitTrust(t, e)
	plan, err := e.Retention().PlanScopeDrop(ctx, scope)
	if err == nil {
		_, err = e.Retention().DropScope(ctx, plan)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, ev := range m.kept {
		if ev.Scope == scope {
			delete(m.kept, name)
		}
	}
	if m.floors == nil {
		m.floors = map[string]weekbucket.Week{}
	}
	m.floors[scope] = max(m.floors[scope], plan.Oldest)
}

func (m *nameModel) claims(t testing.TB, e *engine.Engine) {
	var events []engine.Event
	for range 1 + m.rng.IntN(8) {
		events = append(events, m.event())
	}
	results, err := e.TryClaimBatch(ctx, events)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		name := claimName(&events[i])
		_, known := m.kept[name]
		if !known && weekOf(t, events[i].Time) < m.floors[events[i].Scope] {
			wantVerdict(t, r, engine.TooOld)
			continue
		}
		if known != (r.Verdict == engine.Duplicate) || !known && r.Verdict != engine.Claimed {
			t.Fatalf("%s is %v, known %v", name, r, known)
		}
		if !known {
			m.kept[name] = events[i]
		}
	}
}

// check finds each claim with the topic that made it, and no problems.
func (m *nameModel) check(t testing.TB, what string, e *engine.Engine) {
	t.Helper()
	for name, ev := range m.kept {
		rec, found, err := e.Admin().Lookup(ctx, ev.Scope, ev.ID, ev.Time)
		if err != nil || !found || rec.Origin.Topic != ev.Origin.Topic {
			t.Fatalf("%s: %s is %v, %v, %v; want topic %s", what, name, rec, found, err, ev.Origin.Topic)
		}
	}
	awaitTrust(t, e)
	if report, err := e.Admin().Verify(ctx); err != nil || report.Total > 0 {
		t.Fatalf("%s: %v %v", what, report, err)
	}
	scopes := map[string]uint64{}
	for _, ev := range m.kept {
		scopes[ev.Scope]++
	}
	infos, err := e.Weeks(ctx)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	for _, info := range infos {
		for _, s := range info.Scopes {
			scopes[s.Scope] -= s.Claims
		}
	}
	for scope, n := range scopes {
		if n != 0 {
			t.Fatalf("%s: scope %s lacks %d claims", what, scope, int64(n))
		}
	}
}

// Names are added and freed at random, with reopening and crashes in between: every claim keeps its
// names.
func TestNamesAreAddedAndFreedAtRandom(t *testing.T) {
	for seed := range uint64(12) {
		model := &nameModel{rng: rand.New(rand.NewPCG(seed, 1)), kept: map[string]engine.Event{}}
		c := &clock{t: noon}
		o := engine.Options{RetentionWeeks: 2, ExpectedPerWeek: 16, Clock: c.now}.WithSnapshotEvery(15)
		m := storetest.NewMem(storage.Identity{})
		for life := range 12 {
			e := open(t, m, o)
			for range 25 {
				model.step(t, e, c)
			}
			what := fmt.Sprintf("seed %d, life %d", seed, life)
			model.check(t, what, e)
			switch model.rng.IntN(4) {
			case 0:
				m = m.Crash()
				_ = e.Close()
			case 1: // without a snapshot, so that the claims are scanned
				m = m.Crash()
				_ = e.Close()
				setSidecar(t, m, "screen-0", nil)
				setSidecar(t, m, "screen-1", nil)
			default:
				if err := e.Close(); err != nil {
					t.Fatal(what, err)
				}
				m = reopened(t, m)
			}
		}
	}
}

func reopened(t testing.TB, m *storetest.Mem) *storetest.Mem {
	t.Helper()
	m, err := m.Disk().Open("mem", storage.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// The power fails at every step of dropping weeks and assigning their numbers again.
func TestNamesSurviveACrashAtAnyStep(t *testing.T) {
	model := &nameModel{rng: rand.New(rand.NewPCG(7, 7)), kept: map[string]engine.Event{}}
	c := &clock{t: noon}
	o := engine.Options{RetentionWeeks: 2, ExpectedPerWeek: 16, Clock: c.now}.WithSnapshotEvery(15)
	m := storetest.NewMem(storage.Identity{})
	type crash struct {
		at   string
		m    *storetest.Mem
		kept map[string]engine.Event
	}
	var between sync.Mutex // work in the background applies batches too: a copy belongs to the step in which it is made
	var crashes []crash
	e := open(t, m, o)
	for _, op := range []storetest.Op{storetest.OpApply, storetest.OpWait, storetest.OpDrop, storetest.OpTrimJournal} {
		m.Before(op, func(call int) error {
			between.Lock()
			defer between.Unlock()
			for kept := range min(m.Unsynced(), 2) + 1 {
				crashes = append(crashes, crash{at: fmt.Sprint(op, " ", call, " ", kept), m: m.CrashClone(kept)})
			}
			return nil
		})
	}
	var all []crash
	for range 120 {
		before := maps.Clone(model.kept)
		model.step(t, e, c)
		between.Lock()
		for _, cr := range crashes {
			cr.kept = map[string]engine.Event{}
			for name, ev := range before { // what was acknowledged before the step, and not removed by it
				if _, still := model.kept[name]; still {
					cr.kept[name] = ev
				}
			}
			all = append(all, cr)
		}
		crashes = nil
		between.Unlock()
	}
	for i, cr := range all {
		if i%3 > 0 && testing.Short() {
			continue
		}
		after := open(t, cr.m, o)
		awaitTrust(t, after)
		for name, ev := range cr.kept {
			rec, found, err := after.Admin().Lookup(ctx, ev.Scope, ev.ID, ev.Time)
			if err != nil || !found || rec.Origin.Topic != ev.Origin.Topic {
				t.Fatalf("crash at %s: %s is %v, %v, %v; want topic %s", cr.at, name, rec, found, err, ev.Origin.Topic)
			}
		}
		fresh := at("fresh", weeksLater(model.week))
		fresh.Scope, fresh.Origin.Topic = "fresh scope", "fresh topic"
		wantVerdict(t, claim(t, after, fresh), engine.Claimed)
		if report, err := after.Admin().Verify(ctx); err != nil || report.Total > 0 {
			t.Fatalf("crash at %s: %v %v", cr.at, report, err)
		}
		if _, err := after.Retention().DropAllExpired(ctx); err != nil {
			t.Fatal(err)
		}
		_ = after.Close()
	}
	if len(all) < 200 {
		t.Errorf("%d crashes only", len(all))
	}
}

// lateReader blocks the first claim that is read back until it is released.
type lateReader struct {
	*storetest.Mem
	read, goOn chan struct{}
}

func (s *lateReader) Claim(key []byte) ([]byte, bool, error) {
	b, found, err := s.Mem.Claim(key)
	if found && strings.HasPrefix(string(key), "slow") {
		close(s.read)
		<-s.goOn
	}
	return b, found, err
}

func (s *lateReader) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	return s.Mem.Scan(ctx, span, started, func(key, record []byte) error {
		if strings.HasPrefix(string(key), "slow") {
			close(s.read)
			<-s.goOn
		}
		return fn(key, record)
	})
}

// If a week is dropped while a reader has read a claim of it, the reader does not see the claim
// under a later name.
func TestClaimThatIsReadWhileItsNamesAreAssignedAgain(t *testing.T) {
	for what, read := range map[string]func(e *engine.Engine, ev engine.Event, rec engine.ClaimRecord) error{
		"TryClaim": func(e *engine.Engine, ev engine.Event, _ engine.ClaimRecord) error {
			if r, err := e.TryClaim(ctx, ev); r.Verdict != engine.TooOld {
				return fmt.Errorf("%v of %v: %w", r.Verdict, r.Record, err)
			}
			return nil
		},
		"Lookup": func(e *engine.Engine, ev engine.Event, _ engine.ClaimRecord) error {
			rec, found, err := e.Admin().Lookup(ctx, ev.Scope, ev.ID, ev.Time)
			if found {
				err = fmt.Errorf("%v", rec)
			}
			return err
		},
		"Unclaim": func(e *engine.Engine, ev engine.Event, rec engine.ClaimRecord) error {
			return e.Update(ctx, func(tx *engine.Tx) error {
				if err := driver.Unclaim(tx, ev, rec); !errors.Is(err, engine.ErrNotClaimed) {
					return fmt.Errorf("Unclaim returned %w", err)
				}
				return nil
			})
		},
		"Verify": func(e *engine.Engine, _ engine.Event, _ engine.ClaimRecord) error {
			report, err := e.Admin().Verify(ctx)
			if err == nil && report.Total > 0 {
				err = fmt.Errorf("%q", report.Problems)
			}
			return err
		},
	} {
		m := storetest.NewMem(storage.Identity{})
		c := &clock{t: noon}
		o := engine.Options{RetentionWeeks: 1, Clock: c.now, RecentClaims: -1}
		ev := event("a")
		ev.Scope, ev.Origin.Topic = "slow", "a topic"
		s := &lateReader{Mem: m, read: make(chan struct{}), goOn: make(chan struct{})}
		e := open(t, s, o)
		first := claim(t, e, ev)
		wantVerdict(t, first, engine.Claimed)
		done := make(chan error, 1)
		go func() { done <- read(e, ev, first.Record) }()
		receive(t, s.read)
		c.set(weeksLater(2))
		if _, err := e.Retention().DropAllExpired(ctx); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			next := at(fmt.Sprint(i), weeksLater(2))
			next.Scope, next.Origin.Topic = fmt.Sprint("scope-", i), fmt.Sprint("topic-", i)
			if what != "Unclaim" && (what != "Verify" || i == 0) { // the number of the topic then remains without a name
				wantVerdict(t, claim(t, e, next), engine.Claimed)
			}
		}
		close(s.goOn)
		if err := receive(t, done); err != nil || e.Err() != nil {
			t.Errorf("%s: %v, the engine: %v", what, err, e.Err())
		}
	}
}
