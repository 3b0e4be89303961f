package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/redact"
	"github.com/hapax-dev/hapax/telemetry"
	"github.com/hapax-dev/hapax/weekbucket"
)

var (
	ctx  = context.Background()
	noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC) // a Wednesday
)

func newObserver(t testing.TB, opt telemetry.Options, detail telemetry.Detail) (*telemetry.Observer, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	opt.Registerer = registry
	obs, err := telemetry.NewDetailed(opt, detail)
	if err != nil {
		t.Fatal(err)
	}
	return obs, registry
}

func openEngine(t testing.TB, obs *telemetry.Observer) (*engine.Engine, *storetest.Mem) {
	t.Helper()
	mem := storetest.NewMem(storage.Identity{})
	eng, err := engine.Open(mem, engine.Options{Observer: obs, Clock: func() time.Time { return noon }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	return eng, mem
}

func event(scope, id string) engine.Event {
	return engine.Event{Scope: scope, ID: []byte(id), Time: noon, Origin: engine.Origin{Topic: "orders", Partition: 3, Offset: 7}}
}

func claim(t testing.TB, eng *engine.Engine, ev engine.Event, want engine.Verdict) {
	t.Helper()
	if res, _ := eng.TryClaim(ctx, ev); res.Verdict != want {
		t.Fatalf("verdict %v (%v), want %v", res.Verdict, res.Err, want)
	}
}

// wantMetrics compares the named metrics with the text format without HELP, and checks that no
// others of these names exist.
func wantMetrics(t testing.TB, g prometheus.Gatherer, want string, names ...string) {
	t.Helper()
	helped := prometheus.GathererFunc(func() ([]*family, error) {
		families, err := g.Gather()
		for _, f := range families {
			f.Help = new(string)
		}
		return families, err
	})
	if err := testutil.GatherAndCompare(helped, strings.NewReader(withHelp(want)), names...); err != nil {
		t.Error(err)
	}
}

func TestVerdictsAreCountedByScopeAndOutcome(t *testing.T) {
	obs, registry := newObserver(t, telemetry.Options{Namespace: "im2be"}, telemetry.Detail{})
	eng, _ := openEngine(t, obs)
	claim(t, eng, event("billing", "a"), engine.Claimed)
	claim(t, eng, event("billing", "a"), engine.Duplicate)
	claim(t, eng, event("push", "a"), engine.Claimed)
	old := event("push", "b")
	old.Time = noon.AddDate(-1, 0, 0)
	claim(t, eng, old, engine.TooOld)
	claim(t, eng, event(" ", "b"), engine.Failed)
	claim(t, eng, event("x\xff", "b"), engine.Claimed)
	_, err := eng.TryClaimBatch(ctx, []engine.Event{event("billing", "a"), event("push", "c"), event("push", "c"), event("billing", "")})
	if err != nil {
		t.Fatal(err)
	}
	wantMetrics(t, registry, `
# TYPE im2be_dedup_claims_total counter
im2be_dedup_claims_total{consumer_scope_id="_invalid",outcome="claimed"} 0
im2be_dedup_claims_total{consumer_scope_id="_invalid",outcome="duplicate"} 0
im2be_dedup_claims_total{consumer_scope_id="_invalid",outcome="error"} 1
im2be_dedup_claims_total{consumer_scope_id="_invalid",outcome="in_flight"} 0
im2be_dedup_claims_total{consumer_scope_id="_invalid",outcome="mismatch"} 0
im2be_dedup_claims_total{consumer_scope_id="_invalid",outcome="pending"} 0
im2be_dedup_claims_total{consumer_scope_id="_invalid",outcome="too_new"} 0
im2be_dedup_claims_total{consumer_scope_id="_invalid",outcome="too_old"} 0
im2be_dedup_claims_total{consumer_scope_id="billing",outcome="claimed"} 1
im2be_dedup_claims_total{consumer_scope_id="billing",outcome="duplicate"} 2
im2be_dedup_claims_total{consumer_scope_id="billing",outcome="error"} 1
im2be_dedup_claims_total{consumer_scope_id="billing",outcome="in_flight"} 0
im2be_dedup_claims_total{consumer_scope_id="billing",outcome="mismatch"} 0
im2be_dedup_claims_total{consumer_scope_id="billing",outcome="pending"} 0
im2be_dedup_claims_total{consumer_scope_id="billing",outcome="too_new"} 0
im2be_dedup_claims_total{consumer_scope_id="billing",outcome="too_old"} 0
im2be_dedup_claims_total{consumer_scope_id="push",outcome="claimed"} 2
im2be_dedup_claims_total{consumer_scope_id="push",outcome="duplicate"} 1
im2be_dedup_claims_total{consumer_scope_id="push",outcome="error"} 0
im2be_dedup_claims_total{consumer_scope_id="push",outcome="in_flight"} 0
im2be_dedup_claims_total{consumer_scope_id="push",outcome="mismatch"} 0
im2be_dedup_claims_total{consumer_scope_id="push",outcome="pending"} 0
im2be_dedup_claims_total{consumer_scope_id="push",outcome="too_new"} 0
im2be_dedup_claims_total{consumer_scope_id="push",outcome="too_old"} 1
im2be_dedup_claims_total{consumer_scope_id="\"x\\xff\"",outcome="claimed"} 1
im2be_dedup_claims_total{consumer_scope_id="\"x\\xff\"",outcome="duplicate"} 0
im2be_dedup_claims_total{consumer_scope_id="\"x\\xff\"",outcome="error"} 0
im2be_dedup_claims_total{consumer_scope_id="\"x\\xff\"",outcome="in_flight"} 0
im2be_dedup_claims_total{consumer_scope_id="\"x\\xff\"",outcome="mismatch"} 0
im2be_dedup_claims_total{consumer_scope_id="\"x\\xff\"",outcome="pending"} 0
im2be_dedup_claims_total{consumer_scope_id="\"x\\xff\"",outcome="too_new"} 0
im2be_dedup_claims_total{consumer_scope_id="\"x\\xff\"",outcome="too_old"} 0
`, "im2be_dedup_claims_total")
}

func TestMetricsWithoutNamespaceBeginWithDedup(t *testing.T) {
	obs, registry := newObserver(t, telemetry.Options{}, telemetry.Detail{})
	eng, _ := openEngine(t, obs)
	claim(t, eng, event("billing", "a"), engine.Claimed)
	if n, err := testutil.GatherAndCount(registry, "dedup_claims_total"); n != len(engine.Verdicts) || err != nil {
		t.Errorf("%d series of dedup_claims_total, %v", n, err)
	}
}

func TestMetricsPassLint(t *testing.T) {
	obs, registry := newObserver(t, telemetry.Options{}, telemetry.Detail{MaxScopes: 1})
	eng, _ := openEngine(t, obs)
	defer obs.Watch(eng)()
	for _, scope := range []string{"a", "b", ""} {
		_, _ = eng.TryClaim(ctx, event(scope, "x"))
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestScopesBeyondTheCapAreCountedTogether(t *testing.T) {
	obs, registry := newObserver(t, telemetry.Options{}, telemetry.Detail{MaxScopes: 2})
	eng, _ := openEngine(t, obs)
	for i := range 50 {
		claim(t, eng, event(fmt.Sprint("tenant-", i%10), fmt.Sprint(i)), engine.Claimed)
	}
	n, err := testutil.GatherAndCount(registry, "dedup_claims_total")
	if want := 3 * len(engine.Verdicts); n != want || err != nil {
		t.Errorf("%d series, want %d: %v", n, want, err)
	}
	wantMetrics(t, registry, `
# TYPE dedup_scope_overflow_claims_total counter
dedup_scope_overflow_claims_total 40
`, "dedup_scope_overflow_claims_total")
	got := counts(t, registry)
	if got["tenant-0"] != 5 || got["tenant-1"] != 5 || got[telemetry.OtherScopes] != 40 {
		t.Errorf("claimed by scope: %v", got)
	}
}

// counts returns the number of claimed events of each scope.
func counts(t testing.TB, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	got := map[string]float64{}
	for _, m := range metrics(t, g, "dedup_claims_total") {
		if label(m, telemetry.LabelOutcome) == "claimed" {
			got[label(m, telemetry.LabelScope)] = m.GetCounter().GetValue()
		}
	}
	return got
}

func TestCallsAndSyncsAreTimed(t *testing.T) {
	obs, registry := newObserver(t, telemetry.Options{}, telemetry.Detail{})
	eng, _ := openEngine(t, obs)
	claim(t, eng, event("billing", "a"), engine.Claimed)
	claim(t, eng, event("billing", "a"), engine.Duplicate)
	if _, err := eng.TryClaimBatch(ctx, []engine.Event{event("billing", "b"), event("billing", "c")}); err != nil {
		t.Fatal(err)
	}
	for call, want := range map[string]uint64{"single": 2, "batch": 1} {
		found := false
		for _, m := range metrics(t, registry, "dedup_claim_duration_seconds") {
			if h := m.GetHistogram(); label(m, telemetry.LabelCall) == call {
				found = true
				if h.GetSampleCount() != want || len(h.GetBucket()) == 0 || len(h.GetPositiveSpan()) == 0 {
					t.Errorf("%s: %v", call, h)
				}
			}
		}
		if !found {
			t.Errorf("no histogram for %s", call)
		}
	}
	if h := metrics(t, registry, "dedup_sync_duration_seconds")[0].GetHistogram(); h.GetSampleCount() < 2 {
		t.Errorf("%d syncs observed", h.GetSampleCount())
	}
	wantMetrics(t, registry, `
# TYPE dedup_synced_claims_total counter
dedup_synced_claims_total 3
`, "dedup_synced_claims_total")
}

func TestFiguresOfAWatchedEngine(t *testing.T) {
	obs, registry := newObserver(t, telemetry.Options{}, telemetry.Detail{})
	eng, _ := openEngine(t, obs)
	claim(t, eng, event("billing", "a"), engine.Claimed)
	claim(t, eng, event("push", "a"), engine.Claimed)
	claim(t, eng, event("billing", "a"), engine.Duplicate) // from the store
	claim(t, eng, event("billing", "a"), engine.Duplicate) // from the cache
	last := event("billing", "a")
	last.Time = noon.AddDate(0, 0, -7)
	claim(t, eng, last, engine.Claimed)
	if err := eng.SetHold(ctx, "replay", noon); err != nil {
		t.Fatal(err)
	}
	defer obs.Watch(eng)()
	wantMetrics(t, registry, `
# TYPE dedup_engine_stopped gauge
dedup_engine_stopped 0
# TYPE dedup_filter_negatives_total counter
dedup_filter_negatives_total 3
# TYPE dedup_cache_hits_total counter
dedup_cache_hits_total 1
# TYPE dedup_filter_rebuilding gauge
dedup_filter_rebuilding 0
# TYPE dedup_holds gauge
dedup_holds 1
# TYPE dedup_open_transactions gauge
dedup_open_transactions 0
# TYPE dedup_oldest_week_start_timestamp_seconds gauge
dedup_oldest_week_start_timestamp_seconds 1.7699904e+09
# TYPE dedup_week_claims gauge
dedup_week_claims{week_start="2026-02-23"} 1
dedup_week_claims{week_start="2026-03-02"} 2
# TYPE dedup_snapshot_failures_total counter
dedup_snapshot_failures_total 0
# TYPE dedup_figures_unavailable_total counter
dedup_figures_unavailable_total 0
`, "dedup_engine_stopped", "dedup_filter_negatives_total", "dedup_cache_hits_total", "dedup_filter_rebuilding",
		"dedup_holds", "dedup_open_transactions", "dedup_oldest_week_start_timestamp_seconds", "dedup_week_claims",
		"dedup_snapshot_failures_total", "dedup_figures_unavailable_total")
	for name, series := range map[string]int{"dedup_store_bytes": 2, "dedup_week_store_bytes": 2, "dedup_store_written_bytes_total": 1,
		"dedup_filter_bytes": 1, "dedup_filter_false_positives_total": 1, "dedup_store_reads_total": 1} {
		if got := len(metrics(t, registry, name)); got != series {
			t.Errorf("%d series of %s, want %d", got, name, series)
		}
	}
}

func TestVerdictsOfATransactionCountWhenItCommits(t *testing.T) {
	obs, registry := newObserver(t, telemetry.Options{}, telemetry.Detail{})
	eng, _ := openEngine(t, obs)
	undone := errors.New("undone")
	for _, ends := range []error{undone, nil} {
		err := eng.Update(ctx, func(tx *engine.Tx) error {
			for _, id := range []string{"a", "a"} {
				if _, err := tx.TryClaim(event("billing", id)); err != nil {
					return err
				}
			}
			point, err := tx.Savepoint()
			if err != nil {
				return err
			}
			if _, err := tx.TryClaim(event("billing", "b")); err != nil {
				return err
			}
			return errors.Join(tx.RollbackTo(point), ends)
		})
		if !errors.Is(err, ends) {
			t.Fatal(err)
		}
	}
	claim(t, eng, event("billing", "c"), engine.Claimed)
	wantMetrics(t, registry, `
# TYPE dedup_claims_total counter
dedup_claims_total{consumer_scope_id="billing",outcome="claimed"} 2
dedup_claims_total{consumer_scope_id="billing",outcome="duplicate"} 1
dedup_claims_total{consumer_scope_id="billing",outcome="error"} 0
dedup_claims_total{consumer_scope_id="billing",outcome="in_flight"} 0
dedup_claims_total{consumer_scope_id="billing",outcome="mismatch"} 0
dedup_claims_total{consumer_scope_id="billing",outcome="pending"} 0
dedup_claims_total{consumer_scope_id="billing",outcome="too_new"} 0
dedup_claims_total{consumer_scope_id="billing",outcome="too_old"} 0
# TYPE dedup_claim_attempts_total counter
dedup_claim_attempts_total{outcome="claimed"} 5
dedup_claim_attempts_total{outcome="duplicate"} 2
dedup_claim_attempts_total{outcome="error"} 0
dedup_claim_attempts_total{outcome="in_flight"} 0
dedup_claim_attempts_total{outcome="mismatch"} 0
dedup_claim_attempts_total{outcome="pending"} 0
dedup_claim_attempts_total{outcome="too_new"} 0
dedup_claim_attempts_total{outcome="too_old"} 0
`, "dedup_claims_total", "dedup_claim_attempts_total")
	for _, m := range metrics(t, registry, "dedup_claim_duration_seconds") {
		if n := m.GetHistogram().GetSampleCount(); label(m, "call") == "transaction" && n != 2 {
			t.Errorf("%d durations of transactions, want 2", n)
		}
	}
}

func TestScrapeAfterCloseHasNoFiguresOfTheEngine(t *testing.T) {
	for _, stopFirst := range []bool{true, false} {
		obs, registry := newObserver(t, telemetry.Options{}, telemetry.Detail{})
		eng, _ := openEngine(t, obs)
		stop := obs.Watch(eng)
		claim(t, eng, event("billing", "a"), engine.Claimed)
		if len(metrics(t, registry, "dedup_engine_stopped")) != 1 {
			t.Error("a watched engine has no figures")
		}
		if stopFirst {
			stop()
		}
		if err := eng.Close(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if len(metrics(t, registry, "dedup_engine_stopped")) != 0 || counts(t, registry)["billing"] != 1 {
				t.Error("a closed engine has figures, or the counters are gone")
			}
		}
		stop()
		again, _ := openEngine(t, obs)
		defer obs.Watch(again)()
		stop() // that of the first does not end the second
		if len(metrics(t, registry, "dedup_engine_stopped")) != 1 {
			t.Error("an engine watched after another one has no figures")
		}
	}
}

func TestStoppedEngineIsReportedAsStopped(t *testing.T) {
	obs, registry := newObserver(t, telemetry.Options{}, telemetry.Detail{})
	eng, mem := openEngine(t, obs)
	defer obs.Watch(eng)()
	mem.Fail(errors.New("disk on fire"))
	claim(t, eng, event("billing", "a"), engine.Failed)
	wantMetrics(t, registry, `
# TYPE dedup_engine_stopped gauge
dedup_engine_stopped 1
# TYPE dedup_figures_unavailable_total counter
dedup_figures_unavailable_total 0
`, "dedup_engine_stopped", "dedup_figures_unavailable_total")
}

func TestRegistrationRegistersAllOrReturnsAnError(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	taken := prometheus.NewCounter(prometheus.CounterOpts{Name: "b_dedup_cache_hits_total", Help: "Another's."})
	registry.MustRegister(taken)
	obs, err := telemetry.New(telemetry.Options{Registerer: registry, Namespace: "a"})
	if err != nil {
		t.Fatal(err)
	}
	var already prometheus.AlreadyRegisteredError
	if _, err := telemetry.New(telemetry.Options{Registerer: registry, Namespace: "a"}); !errors.As(err, &already) {
		t.Errorf("a second registration: %v", err)
	}
	if _, err := telemetry.New(telemetry.Options{Registerer: registry, Namespace: "b"}); err == nil {
		t.Error("no error although a name is taken")
	}
	obs.Close()
	obs.Close()
	families, err := registry.Gather()
	if len(families) != 1 || err != nil {
		t.Errorf("after Close: %v %v", families, err)
	}
	if _, err := telemetry.New(telemetry.Options{Registerer: registry, Namespace: "a"}); err != nil {
		t.Errorf("registering again after Close: %v", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	registry := prometheus.NewRegistry()
	for name, opt := range map[string]telemetry.Options{
		"Namespace": {Registerer: registry, Namespace: "im-2be"},
		"IDs":       {Registerer: registry, IDs: redact.Hashed(nil)},
	} {
		if _, err := telemetry.New(opt); err == nil || !strings.Contains(err.Error(), "Options."+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, detail := range map[string]telemetry.Detail{"MaxScopes": {MaxScopes: -1}, "WeeksEvery": {WeeksEvery: -1}} {
		if _, err := telemetry.NewDetailed(telemetry.Options{}, detail); err == nil || !strings.Contains(err.Error(), "Detail."+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A fakeEngine returns the values of its fields.
type fakeEngine struct {
	stats func() (engine.Stats, error)
	weeks func(context.Context) ([]engine.WeekInfo, error)
}

func (f fakeEngine) Stats() (engine.Stats, error) {
	if f.stats == nil {
		return engine.Stats{}, nil
	}
	return f.stats()
}

func (f fakeEngine) Weeks(ctx context.Context) ([]engine.WeekInfo, error) {
	if f.weeks == nil {
		return nil, nil
	}
	return f.weeks(ctx)
}

func someWeeks(n int) []engine.WeekInfo {
	first, _ := weekbucket.Parse("2026-01-05")
	var list []engine.WeekInfo
	for i := range n {
		list = append(list, engine.WeekInfo{Week: first + weekbucket.Week(i), Claims: uint64(i + 1), Bytes: uint64(100 * (i + 1))})
	}
	return list
}

func TestWeeksBeforeTheNewestAreSummedUp(t *testing.T) {
	obs, registry := newObserver(t, telemetry.Options{}, telemetry.Detail{MaxWeeks: 2})
	defer obs.Watch(fakeEngine{weeks: func(context.Context) ([]engine.WeekInfo, error) { return someWeeks(5), nil }})()
	wantMetrics(t, registry, `
# TYPE dedup_week_claims gauge
dedup_week_claims{week_start="2026-01-26"} 4
dedup_week_claims{week_start="2026-02-02"} 5
dedup_week_claims{week_start="_older"} 6
# TYPE dedup_week_store_bytes gauge
dedup_week_store_bytes{week_start="2026-01-26"} 400
dedup_week_store_bytes{week_start="2026-02-02"} 500
dedup_week_store_bytes{week_start="_older"} 600
`, "dedup_week_claims", "dedup_week_store_bytes")
}

func TestWeeksAreReadOnceInTheInterval(t *testing.T) {
	for _, tc := range []struct {
		name  string
		opt   telemetry.Detail
		takes time.Duration
		want  int64 // in 10 minutes, scraped every 15 s
	}{
		{"default", telemetry.Detail{}, 0, 10},
		{"longer", telemetry.Detail{WeeksEvery: 5 * time.Minute}, 0, 2},
		{"slow ones less often", telemetry.Detail{}, 9 * time.Second, 4},
		{"never", telemetry.Detail{MaxWeeks: -1}, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				obs, registry := newObserver(t, telemetry.Options{}, tc.opt)
				var asked atomic.Int64
				defer obs.Watch(fakeEngine{weeks: func(context.Context) ([]engine.WeekInfo, error) {
					asked.Add(1)
					time.Sleep(tc.takes)
					return nil, nil
				}})()
				for begun := time.Now(); time.Since(begun) < 10*time.Minute; time.Sleep(15 * time.Second) {
					metrics(t, registry, "")
				}
				if asked.Load() != tc.want {
					t.Errorf("asked %d times, want %d", asked.Load(), tc.want)
				}
			})
		})
	}
}

func TestEngineThatHangsDoesNotHangTheScrape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		obs, registry := newObserver(t, telemetry.Options{}, telemetry.Detail{})
		hang := make(chan struct{})
		var hanging atomic.Int64
		stop := obs.Watch(fakeEngine{stats: func() (engine.Stats, error) {
			hanging.Add(1)
			<-hang
			return engine.Stats{}, nil
		}})
		begun := time.Now()
		for range 3 {
			metrics(t, registry, "")
		}
		if took := time.Since(begun); took != 6*time.Second || hanging.Load() != 1 {
			t.Errorf("3 scrapes took %v, %d calls of the engine", took, hanging.Load())
		}
		wantMetrics(t, registry, `
# TYPE dedup_figures_unavailable_total counter
dedup_figures_unavailable_total 4
`, "dedup_engine_stopped", "dedup_figures_unavailable_total")
		close(hang)
		synctest.Wait()
		if len(metrics(t, registry, "dedup_engine_stopped")) != 1 {
			t.Error("no figures although the engine answers again")
		}
		stop()
	})
}

func TestWeeksThatComeLateLeaveTheLastOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		obs, registry := newObserver(t, telemetry.Options{}, telemetry.Detail{})
		var asked atomic.Int64
		stop := obs.Watch(fakeEngine{weeks: func(ctx context.Context) ([]engine.WeekInfo, error) {
			if asked.Add(1) > 1 {
				<-ctx.Done() // like an engine whose committer is busy
				return nil, ctx.Err()
			}
			return someWeeks(2), nil
		}})
		for range 3 {
			if got := len(metrics(t, registry, "dedup_week_claims")); got != 2 {
				t.Errorf("%d weeks", got)
			}
			time.Sleep(2 * time.Minute)
		}
		stop() // ends the call
	})
}

func TestMissingWeeksAreCountedUnlessTheyAreExpected(t *testing.T) {
	for err, want := range map[error]int{engine.ErrRebuilding: 0, engine.ErrStopped: 0, errors.New("other"): 1} {
		obs, registry := newObserver(t, telemetry.Options{}, telemetry.Detail{})
		stop := obs.Watch(fakeEngine{weeks: func(context.Context) ([]engine.WeekInfo, error) { return nil, err }})
		wantMetrics(t, registry, fmt.Sprintf("# TYPE dedup_figures_unavailable_total counter\ndedup_figures_unavailable_total %d\n", want),
			"dedup_figures_unavailable_total", "dedup_week_claims")
		stop()
	}
}

func TestConcurrentClaimsTransactionsAndScrapes(t *testing.T) {
	obs, registry := newObserver(t, telemetry.Options{}, telemetry.Detail{MaxScopes: 3, WeeksEvery: time.Nanosecond})
	eng, _ := openEngine(t, obs)
	const claimers, each = 4, 60
	var wg sync.WaitGroup
	for g := range claimers {
		wg.Go(func() {
			for i := range each {
				_, _ = eng.TryClaim(ctx, event(fmt.Sprint("s", (g+i)%6), fmt.Sprint(i)))
				batch := []engine.Event{event("s0", fmt.Sprint("x", g, i)), event("s5", fmt.Sprint("y", g, i))}
				if _, err := eng.TryClaimBatch(ctx, batch); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			for range 20 {
				stop := obs.Watch(eng)
				metrics(t, registry, "")
				stop()
			}
		})
	}
	wg.Wait()
	defer obs.Watch(eng)()
	sum := 0.0
	for _, m := range metrics(t, registry, "dedup_claims_total") {
		sum += m.GetCounter().GetValue()
	}
	if want := 3.0 * claimers * each; sum != want {
		t.Errorf("%v verdicts counted, want %v", sum, want)
	}
	stats, err := eng.Stats()
	claimed := 0.0
	for _, n := range counts(t, registry) {
		claimed += n
	}
	if err != nil || claimed != float64(stats.Verdicts[engine.Claimed]) {
		t.Errorf("%v claimed, the engine counts %d, %v", claimed, stats.Verdicts[engine.Claimed], err)
	}
}

func TestScrapeDuringCloseNeverFails(t *testing.T) {
	for range 10 {
		obs, registry := newObserver(t, telemetry.Options{}, telemetry.Detail{WeeksEvery: time.Nanosecond})
		eng, _ := openEngine(t, obs)
		defer obs.Watch(eng)()
		closed := make(chan error, 1)
		go func() { closed <- eng.Close() }()
		for range 5 {
			metrics(t, registry, "")
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if !slices.Equal(metrics(t, registry, "dedup_engine_stopped"), nil) {
			t.Error("a closed engine has figures")
		}
	}
}
