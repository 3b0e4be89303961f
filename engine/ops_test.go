package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

func forget(t testing.TB, e *engine.Engine, ev engine.Event) {
	t.Helper()
	if found, err := e.Admin().Forget(ctx, ev.Scope, ev.ID, ev.Time); !found || err != nil {
		t.Fatalf("forgetting %q: %v, %v", ev.ID, found, err)
	}
}

func TestLookupReturnsTheFirstSighting(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{RetentionWeeks: 2})
	r := claim(t, e, event("a"))
	for _, when := range []time.Time{noon, weekOf(t, noon).Start(), weeksLater(1).Add(-3 * 24 * time.Hour)} { // any time of its week
		rec, found, err := e.Admin().Lookup(ctx, "billing", []byte("a"), when)
		if err != nil || !found || rec != r.Record {
			t.Fatalf("at %v: %+v %v %v", when, rec, found, err)
		}
	}
	for what, ev := range map[string]engine.Event{
		"never claimed": event("b"), "another week": at("a", weeksLater(-1)), "before the mark": at("a", weeksLater(-9)),
		"another scope": {Scope: "Billing", ID: []byte("a"), Time: noon},
	} {
		if rec, found, err := e.Admin().Lookup(ctx, ev.Scope, ev.ID, ev.Time); found || err != nil || rec != (engine.ClaimRecord{}) {
			t.Errorf("%s: %+v %v %v", what, rec, found, err)
		}
	}
	var refused *engine.EventError
	for _, ev := range []engine.Event{{ID: []byte("a"), Time: noon}, {Scope: "s", Time: noon}, {Scope: "s", ID: []byte("a")}} {
		if _, _, err := e.Admin().Lookup(ctx, ev.Scope, ev.ID, ev.Time); !errors.As(err, &refused) && !ev.Time.IsZero() {
			t.Error(err)
		}
		if _, err := e.Admin().Forget(ctx, ev.Scope, ev.ID, ev.Time); !errors.As(err, &refused) {
			t.Error(err)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, _, err := e.Admin().Lookup(ended, "billing", []byte("a"), noon); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestLookupFindsOnlyDurableClaims(t *testing.T) {
	e, m, _ := openAt(t, engine.Options{})
	m.HoldSyncs()
	defer m.ReleaseSyncs()
	claimed := make(chan bool)
	go func() { claim(t, e, event("a")); close(claimed) }()
	awaitHeld(t, m)
	looked := make(chan bool, 1)
	go func() { _, found, _ := e.Admin().Lookup(ctx, "billing", []byte("a"), noon); looked <- found }()
	select {
	case <-looked:
		t.Fatal("found although a power failure would still remove it")
	case <-time.After(20 * time.Millisecond):
	}
	m.ReleaseSyncs()
	receive(t, claimed)
	if !receive(t, looked) {
		t.Fatal("not found")
	}
}

// Reads wait until what they have read is durable, and no longer than their context.
func TestReadsThatWaitEndWithTheirContext(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	m.HoldSyncs()
	committed := make(chan error, 1)
	pos := engine.OffsetKey{Group: "g", Topic: "t"}
	go func() {
		committed <- e.Update(ctx, func(tx *engine.Tx) error {
			_, err := tx.TryClaim(event("a"))
			return errors.Join(err, tx.Put([]byte("k"), nil), tx.SetOffset(pos, engine.Offset{Next: 1}))
		})
	}()
	awaitHeld(t, m)
	for name, read := range map[string]func(ctx context.Context) error{
		"Get": func(ctx context.Context) error { _, _, err := e.Get(ctx, []byte("k")); return err },
		"Lookup": func(ctx context.Context) error {
			_, _, err := e.Admin().Lookup(ctx, "billing", []byte("a"), noon)
			return err
		},
		"Offset": func(ctx context.Context) error { _, _, err := e.Admin().Offset(ctx, pos); return err },
	} {
		done := make(chan error, 1)
		reading, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		go func() { done <- read(reading) }()
		if err := receive(t, done); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m.ReleaseSyncs()
	if err := receive(t, committed); err != nil {
		t.Error(err)
	}
}

func TestForgottenEventIsClaimedAgain(t *testing.T) {
	for _, cache := range []int{-1, 0, 1} {
		t.Run(fmt.Sprint("cache ", cache), func(t *testing.T) {
			e, m, c := openAt(t, engine.Options{RecentClaims: cache})
			for range 3 {
				wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
				wantVerdict(t, claim(t, e, event("a")), engine.Duplicate)
				wantVerdict(t, claim(t, e, event("a")), engine.Duplicate)
				forget(t, e, event("a"))
				if _, found, err := e.Admin().Lookup(ctx, "billing", []byte("a"), noon); found || err != nil {
					t.Fatal(found, err)
				}
				if found, err := e.Admin().Forget(ctx, "billing", []byte("a"), noon); found || err != nil {
					t.Fatal("forgotten twice:", found, err)
				}
				verifyClean(t, e, 0)
			}
			again := event("a")
			again.Origin.Offset = 1000
			wantVerdict(t, claim(t, e, again), engine.Claimed)
			if r := claim(t, e, event("a")); r.Record.Origin.Offset != 1000 {
				t.Fatalf("the forgotten claim is returned: %+v", r.Record)
			}
			wantVerdict(t, claim(t, e, event("b")), engine.Claimed)
			forget(t, e, event("b"))
			e = open(t, m.CrashClone(0), engine.Options{RecentClaims: cache, Clock: c.now}) // through the journal
			verifyClean(t, e, 1)
			wantVerdict(t, claim(t, e, event("a")), engine.Duplicate)
			wantVerdict(t, claim(t, e, event("b")), engine.Claimed)
			verifyClean(t, e, 2)
		})
	}
}

func TestForgetIsDurableOnReturnAndLeavesReservationsUnchanged(t *testing.T) {
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 1})
	wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
	forget(t, e, event("a"))
	wantVerdict(t, claim(t, open(t, m.CrashClone(0), engine.Options{Clock: c.now}), event("a")), engine.Claimed)
	err := e.Update(ctx, func(tx *engine.Tx) error {
		r, err := tx.TryClaim(event("a"))
		wantVerdict(t, r, engine.Claimed)
		if _, err := e.Admin().Forget(ctx, "billing", []byte("a"), noon); !errors.Is(err, engine.ErrConflict) {
			t.Error("a claim that a transaction holds:", err)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	wantVerdict(t, claim(t, e, event("a")), engine.Duplicate)
	wantVerdict(t, claim(t, e, at("old", weeksLater(-1))), engine.Claimed)
	if _, err := e.Retention().DropWeek(ctx, e.Retention().OldestWeek()); err != nil {
		t.Fatal(err)
	}
	if found, err := e.Admin().Forget(ctx, "billing", []byte("old"), weeksLater(-1)); found || err != nil {
		t.Fatal("forgotten in a dropped week:", found, err)
	}
	verifyClean(t, e, 1)
}

func TestConcurrentClaimsAndForgetsReturnNoForgottenClaimForLong(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{RecentClaims: 4})
	var stop sync.WaitGroup
	done := make(chan struct{})
	for range 3 {
		stop.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
					_, _ = e.TryClaim(ctx, event(fmt.Sprint(i%3, "x")))
				}
			}
		})
	}
	ev := event("mine")
	for i := range 300 {
		ev.Origin.Offset = int64(i)
		wantVerdict(t, claim(t, e, ev), engine.Claimed)
		if r := claim(t, e, ev); r.Verdict != engine.Duplicate || r.Record.Origin.Offset != int64(i) {
			t.Fatalf("round %d: %v of %v", i, r.Verdict, r.Record.Origin)
		}
		forget(t, e, ev)
	}
	close(done)
	stop.Wait()
	for i := range 3 { // which the goroutines may not have reached
		_, _ = e.TryClaim(ctx, event(fmt.Sprint(i, "x")))
	}
	verifyClean(t, e, 3)
}

func TestWeeksListsAllClaims(t *testing.T) {
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 4})
	if w, err := e.Weeks(ctx); err != nil || len(w) != 0 {
		t.Fatal(w, err)
	}
	mustExpect(t, e, inWeeks(-2, 0, 5), engine.Claimed)
	forget(t, e, inWeeks(0, 0, 1)[0])
	all := inWeeks(-1, -1, 5)
	for i := 1; i < 5; i += 2 {
		forget(t, e, all[i]) // all claims of "mail" there
	}
	check := func(e *engine.Engine, m *storetest.Mem) {
		t.Helper()
		weeks, err := e.Weeks(ctx)
		if err != nil || len(weeks) != 3 {
			t.Fatal(weeks, err)
		}
		got := ""
		for _, w := range weeks {
			sum := uint64(0)
			got += fmt.Sprintf("%d:%d", int(w.Week)-int(weekOf(t, noon)), w.Claims)
			for _, s := range w.Scopes {
				got += fmt.Sprintf(" %s=%d", s.Scope, s.Claims)
				want, err := m.BucketBytes(storage.Bucket{Scope: s.Scope, Week: w.Week})
				if err != nil || s.Bytes != want || want == 0 {
					t.Error(s, want, err)
				}
				sum += s.Bytes
			}
			if w.Bytes != sum {
				t.Error("bytes of a week:", w.Bytes, "of its scopes:", sum)
			}
			got += "; "
		}
		if want := "-2:5 billing=3 mail=2; -1:3 billing=3; 0:4 billing=2 mail=2; "; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	check(e, m)
	m = m.CrashClone(0)
	check(open(t, m, engine.Options{Clock: c.now}), m)
}

func TestVerifyDetectsChangesToTheStore(t *testing.T) {
	for what, c := range map[string]struct {
		damage  func(fn func(key, record []byte) error) func(key, record []byte) error
		problem string
	}{
		"a claim removed": {func(fn func(key, record []byte) error) func(key, record []byte) error {
			n := 0
			return func(key, record []byte) error {
				if n++; n == 3 {
					return nil
				}
				return fn(key, record)
			}
		}, "claims with hash"},
		"a claim added": {func(fn func(key, record []byte) error) func(key, record []byte) error {
			n := 0
			return func(key, record []byte) error {
				if n++; n == 3 {
					if err := fn(append(key[:len(key):len(key)], 'x'), record); err != nil {
						return err
					}
				}
				return fn(key, record)
			}
		}, "claims with hash"},
		"a claim under another id": {func(fn func(key, record []byte) error) func(key, record []byte) error {
			n := 0
			return func(key, record []byte) error {
				if n++; n == 3 {
					key[len(key)-1]++
				}
				return fn(key, record)
			}
		}, "claims with hash"},
		"an invalid record": {func(fn func(key, record []byte) error) func(key, record []byte) error {
			return func(key, record []byte) error { return fn(key, append(record, 0)) }
		}, "claim record"},
		"an invalid key": {func(fn func(key, record []byte) error) func(key, record []byte) error {
			return func(key, record []byte) error { return fn(key[:3], record) }
		}, "claim key"},
	} {
		t.Run(what, func(t *testing.T) {
			s := &tampered{Mem: storetest.NewMem(storage.Identity{})}
			e := open(t, s, engine.Options{ExpectedPerWeek: 1000})
			mustExpect(t, e, inWeeks(-1, 0, 10), engine.Claimed)
			verifyClean(t, e, 20)
			s.scan = func(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
				return s.Mem.Scan(ctx, span, started, c.damage(fn))
			}
			r, err := e.Admin().Verify(ctx)
			if err != nil || r.Total == 0 || !strings.Contains(strings.Join(r.Problems, "\n"), c.problem) {
				t.Fatalf("%+v %v", r, err)
			}
			if e.Err() != nil {
				t.Fatal("the check stopped the engine:", e.Err())
			}
		})
	}
}

func TestVerifyDetectsAFilterThatDeniesAClaim(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{RetentionWeeks: 4})
	mustExpect(t, e, inWeeks(-1, 0, engine.MaxProblems), engine.Claimed)
	e.ForgetFilter(weekOf(t, noon))
	r, err := e.Admin().Verify(ctx)
	if err != nil || r.Total != engine.MaxProblems || len(r.Problems) != engine.MaxProblems || !strings.Contains(r.Problems[0], "denies") {
		t.Fatalf("%d problems, %v", r.Total, err)
	}
	e.LoseFilter(weekOf(t, weeksLater(-1)))
	if r, err = e.Admin().Verify(ctx); err != nil || r.Total != 2*engine.MaxProblems || len(r.Problems) != engine.MaxProblems {
		t.Fatalf("%d problems, %d spelt out, %v", r.Total, len(r.Problems), err)
	}
}

func TestVerifyIsCleanDuringClaims(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{ExpectedPerWeek: 100})
	done := make(chan struct{})
	var work sync.WaitGroup
	for g := range 2 {
		work.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				ev := event(fmt.Sprint(g, "-", i))
				claim(t, e, ev)
				if i%3 == 0 {
					forget(t, e, ev)
				}
			}
		})
	}
	for range 20 {
		if r, err := e.Admin().Verify(ctx); err != nil || r.Total != 0 {
			t.Fatalf("%d problems, %v", r.Total, err)
		}
	}
	close(done)
	work.Wait()
}

func TestBackupHasTheSameClaimsAndAHigherIncarnation(t *testing.T) {
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 4})
	events := inWeeks(-2, 0, 10)
	mustExpect(t, e, events, engine.Claimed)
	if err := e.SetHold(ctx, "h", noon); err != nil {
		t.Fatal(err)
	}
	if err := e.Admin().Backup(ctx, "copy"); err != nil {
		t.Fatal(err)
	}
	wantVerdict(t, claim(t, e, event("later")), engine.Claimed)
	copied, err := m.Disk().Open("copy", storage.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, copied, engine.Options{Clock: c.now})
	if was, is := e.Identity(), b.Identity(); is.UUID != was.UUID || is.Seed != was.Seed || is.Incarnation <= was.Incarnation {
		t.Fatalf("%+v, a copy of %+v", is, was)
	}
	mustExpect(t, b, events, engine.Duplicate)
	awaitTrust(t, b)
	verifyClean(t, b, len(events))
	if len(b.Holds()) != 1 || b.Retention().OldestWeek() != e.Retention().OldestWeek() {
		t.Fatal(b.Holds(), b.Retention().OldestWeek())
	}
	if err := e.Admin().Backup(ctx, "copy"); err == nil {
		t.Fatal("a backup over another one")
	}
}

func TestStatsCountReturnedVerdicts(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{RetentionWeeks: 1, ExpectedPerWeek: 100})
	claim(t, e, event("a"))
	claim(t, e, event("a"))
	claim(t, e, event("b"))
	claim(t, e, at("new", weeksLater(1)))
	claim(t, e, at("old", weeksLater(-9)))
	_, _ = e.TryClaim(ctx, engine.Event{})
	if err := e.SetHold(ctx, "h", noon); err != nil {
		t.Fatal(err)
	}
	_ = e.Update(ctx, func(tx *engine.Tx) error {
		_, err := tx.TryClaim(event("c"))
		claim(t, e, event("c"))
		if s := stats(t, e); s.OpenTransactions != 1 {
			t.Error(s.OpenTransactions, "open transactions")
		}
		return err
	})
	s := stats(t, e)
	for v, want := range map[engine.Verdict]uint64{engine.Claimed: 3, engine.Duplicate: 1, engine.TooNew: 1, engine.TooOld: 1, engine.Failed: 1, engine.InFlight: 1} {
		if s.Verdicts[v] != want {
			t.Errorf("%v: %d, want %d", v, s.Verdicts[v], want)
		}
	}
	if !maps.Equal(s.Verdicts, s.Attempts) {
		t.Errorf("%v attempts, although all committed: %v", s.Attempts, s.Verdicts)
	}
	if s.FilterNegatives != 3 || s.FilterFalsePositives != 0 || s.FilterBytes == 0 || s.FilterRebuilding || s.FilterSource != engine.FromJournal {
		t.Errorf("%+v", s)
	}
	if s.CacheHits+s.StoreReads == 0 || s.SnapshotFailures != 0 || s.LastSnapshotErr != nil {
		t.Errorf("%+v", s)
	}
	if s.OpenTransactions != 0 || s.Holds != 1 || s.Oldest != e.Retention().OldestWeek() || s.Store.DiskBytes == 0 || s.Store.WrittenBytes == 0 {
		t.Errorf("%+v", s)
	}
}

func TestCallsAfterCloseFailWithErrClosed(t *testing.T) {
	e, m, _ := openAt(t, engine.Options{DefaultScope: "s"})
	var kept *engine.Tx
	if err := e.Update(ctx, func(tx *engine.Tx) error { kept = tx; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	calls := m.Calls(storetest.OpApply)
	second := func(_ any, err error) error { return err }
	for what, err := range map[string]error{
		"Close":          e.Close(),
		"TryClaim":       second(e.TryClaim(ctx, event("a"))),
		"TryClaimBatch":  second(e.TryClaimBatch(ctx, []engine.Event{event("a")})),
		"Update":         e.Update(ctx, func(*engine.Tx) error { t.Error("the closure runs"); return nil }),
		"Forget":         second(e.Admin().Forget(ctx, "s", []byte("a"), noon)),
		"Weeks":          second(e.Weeks(ctx)),
		"Offsets":        second(e.Admin().Offsets(ctx, "g")),
		"Verify":         second(e.Admin().Verify(ctx)),
		"Backup":         e.Admin().Backup(ctx, "dir"),
		"DropExpired":    second(e.Retention().DropExpired(ctx)),
		"DropAllExpired": second(e.Retention().DropAllExpired(ctx)),
		"DropWeek":       second(e.Retention().DropWeek(ctx, e.Retention().OldestWeek())),
		"SetHold":        e.SetHold(ctx, "h", noon),
		"ReleaseHold":    e.ReleaseHold(ctx, "h"),
	} {
		if !errors.Is(err, engine.ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, _, err := e.Admin().Lookup(ctx, "s", []byte("a"), noon); !errors.Is(err, engine.ErrClosed) {
		t.Error("Lookup:", err)
	}
	if _, _, err := e.Admin().Offset(ctx, engine.OffsetKey{Group: "g", Topic: "t"}); !errors.Is(err, engine.ErrClosed) {
		t.Error("Offset:", err)
	}
	if err := kept.Put([]byte("k"), nil); !errors.Is(err, engine.ErrNoTransaction) {
		t.Error("Tx:", err)
	}
	if m.Calls(storetest.OpApply) != calls || m.Calls(storetest.OpClose) != 1 {
		t.Error("the store was called after Close")
	}
}

func TestCloseDuringCallsEndsThemAndLosesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	for round := range 20 {
		m := storetest.NewMem(storage.Identity{})
		c := &clock{t: noon}
		o := engine.Options{Clock: c.now, ExpectedPerWeek: 64}.WithSnapshotEvery(10)
		e, err := engine.Open(m, o)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var told []engine.Event
		var calls sync.WaitGroup
		ok := func(what string, err error) bool {
			if err != nil && !errors.Is(err, engine.ErrClosed) && !errors.Is(err, engine.ErrNoTransaction) {
				t.Errorf("%s: %v", what, err)
			}
			return err == nil
		}
		for g := range 3 {
			calls.Go(func() {
				for i := 0; ; i++ {
					ev := event(fmt.Sprint(g, "-", i))
					if _, err := e.TryClaim(ctx, ev); !ok("claim", err) {
						return
					}
					mu.Lock()
					told = append(told, ev)
					mu.Unlock()
				}
			})
		}
		for what, call := range map[string]func() error{
			"verify": func() error { _, err := e.Admin().Verify(ctx); return err },
			"weeks":  func() error { _, err := e.Weeks(ctx); return err },
			"drop":   func() error { _, err := e.Retention().DropExpired(ctx); return err },
			"hold":   func() error { return e.SetHold(ctx, "h", noon) },
			"update": func() error {
				return e.Update(ctx, func(tx *engine.Tx) error { return tx.Put([]byte("k"), []byte("v")) })
			},
		} {
			calls.Go(func() {
				for {
					if !ok(what, call()) {
						return
					}
				}
			})
		}
		time.Sleep(time.Duration(round) * 100 * time.Microsecond)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		calls.Wait()
		m, err = m.Disk().Open("mem", storage.Identity{})
		if err != nil {
			t.Fatal(err)
		}
		e = open(t, m, o)
		mustExpect(t, e, told, engine.Duplicate)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
}

func TestCleanCloseNeedsNoJournalAtOpen(t *testing.T) {
	e, m, c := openAt(t, engine.Options{})
	mustExpect(t, e, inWeeks(0, 0, 10), engine.Claimed)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	m, err := m.Disk().Open("mem", storage.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	e = open(t, m, engine.Options{Clock: c.now})
	if s := stats(t, e); s.FilterSource != engine.FromSnapshot || e.Snapshots()[0] != m.LastSeq() {
		t.Fatalf("%s, snapshots %v, store %d", s.FilterSource, e.Snapshots(), m.LastSeq())
	}
	verifyClean(t, e, 10)
}

func TestOpenThatFailsLeavesTheStoreToItsOwner(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, o := range []engine.Options{
		{DefaultScope: " "}, {DefaultScope: strings.Repeat("x", 256)}, {RetentionWeeks: -2}, {RetentionWeeks: 5201},
		{AllowedSkew: -1}, {AllowedSkew: limits.AllowedSkew + 1}, {MaxIDBytes: -1}, {MaxIDBytes: limits.IDBytes + 1},
		{MaxWeeksPerRun: -1}, {ExpectedPerWeek: limits.ExpectedPerWeek + 1}, {MaxFilterBytes: limits.MaxFilterBytes + 1},
		{ExpectedPerWeek: 1 << 62, MaxFilterBytes: 1 << 63}, {Clock: func() time.Time { return time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC) }},
	} {
		m := storetest.NewMem(storage.Identity{})
		if _, err := engine.Open(m, o); err == nil {
			t.Errorf("opened with %+v", o)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
}
