package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/bolt"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// A browser is what Admin and Reader both answer.
type browser interface {
	Lookup(ctx context.Context, scope string, id []byte, at time.Time) (engine.ClaimRecord, bool, error)
	LookupAll(ctx context.Context, scope string, id []byte) ([]engine.WeekClaim, error)
	Claims(ctx context.Context, b storage.Bucket, after []byte) iter.Seq2[engine.Claim, error]
	Scopes(ctx context.Context) ([]engine.ScopeWeeks, error)
	Offsets(ctx context.Context, group string) (map[engine.OffsetKey]engine.Offset, error)
	Offset(ctx context.Context, p engine.OffsetKey) (engine.Offset, bool, error)
	Outbox(ctx context.Context) iter.Seq2[engine.OutboxMessage, error]
}

// pairs returns all pairs of an iteration, and fails the test at its error.
func pairs[V any](t testing.TB, seq iter.Seq2[V, error]) (all []V) {
	t.Helper()
	for v, err := range seq {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	return all
}

func must[V any](v V, err error) func(testing.TB) V {
	return func(t testing.TB) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// answers asks for all that was stored, and for what was not.
func answers(t testing.TB, b browser, events []engine.Event) map[string]any {
	t.Helper()
	all := map[string]any{
		"scopes": must(b.Scopes(ctx))(t), "offsets": must(b.Offsets(ctx, ""))(t), "offsets of a group": must(b.Offsets(ctx, "g"))(t),
		"outbox": pairs(t, b.Outbox(ctx)),
	}
	for _, p := range []engine.OffsetKey{{Group: "g", Topic: "orders", Partition: 1}, {Group: "g", Topic: "orders", Partition: 9}} {
		o, found, err := b.Offset(ctx, p)
		all[fmt.Sprint(p)] = fmt.Sprintf("%+v %v %v", o, found, err)
	}
	for _, ev := range append(slices.Clone(events), event("never")) {
		rec, found, err := b.Lookup(ctx, ev.Scope, ev.ID, ev.Time)
		all[fmt.Sprint("at ", ev.Time, ev.Scope, string(ev.ID))] = fmt.Sprintf("%+v %v %v", rec, found, err)
		rec, found, err = b.Lookup(ctx, ev.Scope, ev.ID, time.Time{})
		all[fmt.Sprint("at any time ", ev.Scope, string(ev.ID))] = fmt.Sprintf("%+v %v %v", rec, found, err)
		all[fmt.Sprint("all ", ev.Scope, string(ev.ID))] = must(b.LookupAll(ctx, ev.Scope, ev.ID))(t)
		bucket := storage.Bucket{Scope: ev.Scope, Week: weekOf(t, ev.Time)}
		all["claims of "+bucket.String()] = pairs(t, b.Claims(ctx, bucket, nil))
		all["claims after "+bucket.String()] = pairs(t, b.Claims(ctx, bucket, []byte("w0-4")))
	}
	return all
}

func compare(t testing.TB, got, want map[string]any) {
	t.Helper()
	for what := range want {
		if !reflect.DeepEqual(got[what], want[what]) {
			t.Errorf("%s: the reader says\n%+v, the engine\n%+v", what, got[what], want[what])
		}
	}
}

// fillAll makes claims in five weeks, of which two scopes keep different ones, offsets, holds, keys and
// messages. It returns the events.
func fillAll(t testing.TB, e *engine.Engine, c *clock) []engine.Event {
	t.Helper()
	events := inWeeks(-4, 0, 10)
	again := at("w0-0", weeksLater(-1)) // an id of two weeks
	mustExpect(t, e, append(events, again), engine.Claimed)
	update(t, e, func(tx *engine.Tx) {
		mustPut(t, tx, "balance", "1")
		for _, group := range []string{"g", "h"} {
			for p := range int32(3) {
				if err := tx.SetOffset(engine.OffsetKey{Group: group, Topic: "orders", Partition: p}, engine.Offset{Next: int64(p) + 5}); err != nil {
					t.Fatal(err)
				}
			}
		}
		mustProduce(t, tx, "m")
		if _, err := tx.Produce(engine.Message{ID: "later", Topic: "out", Due: c.now().Add(time.Hour), Headers: []engine.MessageHeader{{Key: "k"}}}); err != nil {
			t.Fatal(err)
		}
	})
	if err := e.SetHold(ctx, "hold", weeksLater(-2)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Retention().DropWeek(ctx, weekOf(t, weeksLater(-4))); err != nil {
		t.Fatal(err)
	}
	return append(events, again)
}

// onDisk are the stores with a directory.
var onDisk = map[string]struct {
	open   func(dir string) (storage.Store, error)
	reader func(dir string) (storage.Reader, error)
}{
	"pebble": {
		func(dir string) (storage.Store, error) { return pebble.Open(dir, pebble.Options{SmallTables: true}) },
		func(dir string) (storage.Reader, error) {
			return pebble.OpenReader(dir, pebble.Options{SmallTables: true})
		},
	},
	"bolt": {
		func(dir string) (storage.Store, error) {
			return bolt.Open(dir, bolt.Options{MaxFileBytes: 64 << 20})
		},
		func(dir string) (storage.Reader, error) { return bolt.OpenReader(dir, bolt.Options{}) },
	},
}

func TestAReaderAnswersAsTheEngineDid(t *testing.T) {
	for name, kind := range onDisk {
		t.Run(name, func(t *testing.T) {
			dir, c := filepath.Join(t.TempDir(), "store"), &clock{t: noon}
			e := open(t, must(kind.open(dir))(t), engine.Options{Clock: c.now})
			events := fillAll(t, e, c)
			want, holds, oldest := answers(t, e.Admin(), events), e.Holds(), e.Retention().OldestWeek()
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			e = open(t, must(kind.open(dir))(t), engine.Options{Clock: c.now})
			weeks := must(e.Weeks(ctx))(t)
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			r := must(engine.OpenReader(must(kind.reader(dir))(t)))(t)
			compare(t, answers(t, r, events), want)
			if !reflect.DeepEqual(r.Holds(), holds) || r.OldestWeek() != oldest {
				t.Errorf("holds %v and oldest week %v, want %v and %v", r.Holds(), r.OldestWeek(), holds, oldest)
			}
			if got := must(r.Weeks(ctx))(t); !reflect.DeepEqual(withoutBytes(t, got), withoutBytes(t, weeks)) {
				t.Errorf("weeks\n%+v, want\n%+v", got, weeks)
			}
			if value, found, err := r.Get(ctx, []byte("balance")); string(value) != "1" || !found || err != nil {
				t.Errorf("the key: %q, %v, %v", value, found, err)
			}
			if keys := pairs(t, r.Scan(ctx, engine.Range{})); len(keys) != 1 || string(keys[0].Key) != "balance" {
				t.Errorf("keys %q", keys)
			}
			if report, err := r.Verify(ctx); report.Claims != 41 || report.Total != 0 || err != nil {
				t.Errorf("Verify: %+v, %v", report, err)
			}
			if u, err := r.Usage(); u.DiskBytes == 0 || err != nil || r.OutboxBytes() == 0 {
				t.Errorf("usage %+v, %v; outbox %d", u, err, r.OutboxBytes())
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if _, _, err := r.Lookup(ctx, "billing", []byte("a"), noon); !errors.Is(err, engine.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
			if err := r.Close(); !errors.Is(err, engine.ErrClosed) {
				t.Errorf("a second Close: %v", err)
			}
			if e, err := kind.open(dir); err != nil { // the reader has released the directory
				t.Error(err)
			} else if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// withoutBytes returns the weeks without the estimates of their sizes, which depend on how many claims are
// still in the log of a store.
func withoutBytes(t *testing.T, weeks []engine.WeekInfo) []engine.WeekInfo {
	t.Helper()
	all := make([]engine.WeekInfo, 0, len(weeks))
	for _, w := range weeks {
		w.Bytes, w.Scopes = 0, slices.Clone(w.Scopes)
		for i := range w.Scopes {
			if w.Scopes[i].Bytes == 0 {
				t.Errorf("scope %s of week %v has no bytes", w.Scopes[i].Scope, w.Week)
			}
			w.Scopes[i].Bytes = 0
		}
		all = append(all, w)
	}
	return all
}

// A crash between the mark and the removal leaves claims of dropped weeks.
func TestAReaderHidesDroppedWeeks(t *testing.T) {
	e, m, _ := openAt(t, engine.Options{RetentionWeeks: 4})
	mustExpect(t, e, inWeeks(-4, 0, 10), engine.Claimed)
	settle(t, e, m)
	oldest := weekOf(t, weeksLater(-2))
	crashed := m.CrashClone(0)
	writes := []storage.StateWrite{{Key: []byte("moldest"), Value: oldest.AppendKey(nil)}, {Key: []byte("fmail"), Value: (oldest + 1).AppendKey(nil)}}
	wait, err := crashed.Apply(&storage.Batch{Seq: crashed.LastSeq() + 1, State: writes})
	if err = errors.Join(err, wait()); err != nil {
		t.Fatal(err)
	}
	r := must(engine.OpenReader(crashed))(t)
	defer r.Close()
	want := []engine.ScopeWeeks{{Scope: "billing", Oldest: oldest}, {Scope: "mail", Oldest: oldest + 1}}
	for week := oldest; week <= weekOf(t, noon); week++ {
		want[0].Weeks = append(want[0].Weeks, week)
		if week > oldest {
			want[1].Weeks = append(want[1].Weeks, week)
		}
	}
	if got := must(r.Scopes(ctx))(t); !reflect.DeepEqual(got, want) {
		t.Errorf("scopes %v, want %v", got, want)
	}
	var claims uint64
	for _, w := range must(r.Weeks(ctx))(t) {
		claims += w.Claims
	}
	if claims != 25 {
		t.Errorf("%d claims in %v", claims, must(r.Weeks(ctx))(t))
	}
	for _, ev := range inWeeks(-4, 0, 10) {
		retained := weekOf(t, ev.Time) >= oldest && (ev.Scope == "billing" || weekOf(t, ev.Time) > oldest)
		for _, at := range []time.Time{ev.Time, {}} {
			if _, found, err := r.Lookup(ctx, ev.Scope, ev.ID, at); found != retained || err != nil {
				t.Errorf("%s %s at %v: found %v, %v", ev.Scope, ev.ID, at, found, err)
			}
		}
		b := storage.Bucket{Scope: ev.Scope, Week: weekOf(t, ev.Time)}
		if n := len(pairs(t, r.Claims(ctx, b, nil))); (n > 0) != retained {
			t.Errorf("%d claims in %v", n, b)
		}
	}
	if report, err := r.Verify(ctx); report.Claims != 25 || report.Total > 0 || err != nil {
		t.Errorf("Verify: %+v, %v", report, err)
	}
}

func TestLookupWithoutATimeReadsAllRetainedWeeks(t *testing.T) {
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 4, DefaultScope: "billing"})
	for _, week := range []int{-4, -2, 0} {
		ev := at("a", weeksLater(week))
		ev.Origin.Offset = int64(10 + week)
		claim(t, e, ev)
	}
	claim(t, e, at("b", weeksLater(-4)))
	settle(t, e, m)
	c.set(weeksLater(1))
	if _, err := e.Retention().DropExpired(ctx); err != nil { // week -4
		t.Fatal(err)
	}
	rec, found, err := e.Admin().Lookup(ctx, "", []byte("a"), time.Time{})
	if rec.Origin.Offset != 10 || !found || err != nil {
		t.Errorf("a: %+v, %v, %v", rec, found, err)
	}
	all := must(e.Admin().LookupAll(ctx, "", []byte("a")))(t)
	if len(all) != 2 || all[0].Week != weekOf(t, noon) || all[0].Record != rec || all[1].Week != weekOf(t, weeksLater(-2)) || all[1].Record.Origin.Offset != 8 {
		t.Errorf("a in all weeks: %+v", all)
	}
	for _, ev := range []engine.Event{{Scope: "billing", ID: []byte("b")}, {Scope: "mail", ID: []byte("a")}} {
		if _, found, err := e.Admin().Lookup(ctx, ev.Scope, ev.ID, time.Time{}); found || err != nil {
			t.Errorf("%s %s: %v, %v", ev.Scope, ev.ID, found, err)
		}
	}
	var refused *engine.EventError
	if _, _, err := e.Admin().Lookup(ctx, "", nil, time.Time{}); !errors.As(err, &refused) {
		t.Errorf("no id: %v", err)
	}
}

// A damagedStore has a damaged part.
type damagedStore struct {
	*storetest.Mem
	damage storage.DamageError
}

func (d *damagedStore) Claim(key []byte) ([]byte, bool, error) {
	if b, _, err := storage.ParseKey(key); err == nil && d.damage.Concerns(b) {
		return nil, false, &d.damage
	}
	return d.Mem.Claim(key)
}

func (d *damagedStore) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	return d.Mem.Scan(ctx, span, started, func(key, record []byte) error {
		if b, _, err := storage.ParseKey(key); err == nil && d.damage.Concerns(b) {
			return &d.damage
		}
		return fn(key, record)
	})
}

func (d *damagedStore) Buckets(fn func(storage.Bucket) error) error {
	err := d.Mem.Buckets(func(b storage.Bucket) error {
		if d.damage.Concerns(b) {
			return nil
		}
		return fn(b)
	})
	return errors.Join(err, &d.damage)
}

func TestAReaderNamesDamageAndReadsTheRest(t *testing.T) {
	e, m, _ := openAt(t, engine.Options{RetentionWeeks: 4})
	mustExpect(t, e, inWeeks(-4, 0, 10), engine.Claimed)
	settle(t, e, m)
	bad := storage.Bucket{Scope: "billing", Week: weekOf(t, weeksLater(-1))}
	damage := storage.DamageError{Parts: []storage.Damage{{File: "000007.sst", First: bad, Last: bad}}, Err: storage.ErrDamaged}
	r := must(engine.OpenReader(&damagedStore{m.CrashClone(0), damage}))(t)
	defer r.Close()
	named := func(what string, err error) {
		t.Helper()
		var d *storage.DamageError
		if !errors.As(err, &d) || !d.Concerns(bad) || !strings.Contains(err.Error(), "000007.sst") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, _, err := r.Lookup(ctx, "billing", []byte("w-1-0"), weeksLater(-1))
	named("an event in the damage", err)
	_, err = r.LookupAll(ctx, "billing", []byte("w0-0"))
	named("an event without a time of that scope", err)
	if all, err := r.LookupAll(ctx, "mail", []byte("w0-1")); len(all) != 1 || err != nil {
		t.Errorf("an event without a time of another scope: %v, %v", all, err)
	}
	if _, found, err := r.Lookup(ctx, "billing", []byte("w0-0"), noon); !found || err != nil {
		t.Errorf("an event of another week: %v, %v", found, err)
	}
	scopes, err := r.Scopes(ctx)
	named("scopes", err)
	if len(scopes) != 2 || len(scopes[0].Weeks) != 4 || len(scopes[1].Weeks) != 5 {
		t.Errorf("scopes %v", scopes)
	}
	weeks, err := r.Weeks(ctx)
	named("weeks", err)
	if len(weeks) != 5 || weeks[4].Claims != 10 || weeks[3].Claims != 5 {
		t.Errorf("weeks %v", weeks)
	}
	for _, err := range r.Claims(ctx, bad, nil) {
		named("claims", err)
	}
	if report, err := r.Verify(ctx); report.Total != 1 || err != nil || !strings.Contains(report.Problems[0], "000007.sst") {
		t.Errorf("Verify: %+v, %v", report, err)
	}
}

func TestOpenReaderOfANewStore(t *testing.T) {
	if r, err := engine.OpenReader(nil); r != nil || err == nil || !strings.Contains(err.Error(), "pebble.OpenReader") {
		t.Errorf("nil: %v", err)
	}
	for name, kind := range onDisk {
		dir := filepath.Join(t.TempDir(), "store")
		if _, err := kind.reader(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: no store: %v", name, err)
		}
		if err := must(kind.open(dir))(t).Close(); err != nil {
			t.Fatal(err)
		}
		r := must(engine.OpenReader(must(kind.reader(dir))(t)))(t)
		weeks, err := r.Weeks(ctx)
		if len(weeks) > 0 || err != nil || len(r.Holds()) > 0 {
			t.Errorf("%s: weeks %v, %v", name, weeks, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
