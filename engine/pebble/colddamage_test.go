package pebble

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// coldNow is the time of the engines; claims were made in coldWeeks weeks before it.
var coldNow = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

const (
	coldWeeks     = 4
	spotsInATable = 9 // about
)

var coldScopes = []string{"a", "b"}

func coldEvent(scope string, week, i int) engine.Event {
	return engine.Event{
		Scope: scope, ID: fmt.Appendf(nil, "%s-%06d", scope, i*7919%1_000_003), Time: coldNow.AddDate(0, 0, -7*week),
		Origin: engine.Origin{Topic: "t"},
	}
}

func bucketOf(t testing.TB, ev *engine.Event) storage.Bucket {
	t.Helper()
	week, err := weekbucket.Of(ev.Time)
	if err != nil {
		t.Fatal(err)
	}
	return storage.Bucket{Scope: ev.Scope, Week: week}
}

func openCold(fsys vfs.FS, wrap func(*Store) storage.Store) (*engine.Engine, *Store, error) {
	s, err := Open("store", Options{FS: fsys, SmallTables: true, CacheBytes: 1 << 20, startupTime: time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, err
	}
	var store storage.Store = s
	if wrap != nil {
		store = wrap(s)
	}
	e, err := engine.Open(store, engine.Options{
		Clock: func() time.Time { return coldNow }, ExpectedPerWeek: 1000, RetentionWeeks: 52, Nightly: engine.Nightly{Off: true},
	})
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return e, s, nil
}

// A coldLayout says how the claims of a store are divided into tables: those of each week are in runs of
// their own or not, they were compacted or not, and with few claims all buckets share a table.
type coldLayout struct {
	apart, compacted bool
	claims           int // of each scope in each week
}

var coldLayouts = map[string]coldLayout{
	"weeks apart": {true, false, 200}, "weeks together": {false, false, 200}, "compacted": {true, true, 200},
	"buckets in one table": {false, false, 20}, "buckets in one compacted table": {true, true, 20},
}

// coldStore returns the files of a store that was closed.
func coldStore(t *testing.T, l coldLayout) map[string][]byte {
	t.Helper()
	fsys := vfs.NewMem()
	e, s, err := openCold(fsys, nil)
	if err != nil {
		t.Fatal(err)
	}
	for week := coldWeeks; week > 0; week-- {
		var events []engine.Event
		for _, scope := range coldScopes {
			for i := range l.claims {
				events = append(events, coldEvent(scope, week, i))
			}
		}
		if _, err := e.TryClaimBatch(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		if l.apart {
			mustSealAll(t, s)
		}
	}
	if l.compacted {
		mustSealAll(t, s)
		if err := s.core.db.Compact(t.Context(), []byte{claimSpace}, []byte{claimSpace + 1}, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return filesOf(t, fsys, "store")
}

// A spot is a byte of a table that is flipped.
type spot struct {
	table, block string
	offset       uint64
}

// spotsOf returns a spot in each kind of block of a table with claims, nil for other tables.
func spotsOf(t *testing.T, files map[string][]byte, name string) (spots []spot) {
	t.Helper()
	fsys := diskOf(t, files, "", nil)
	f, err := fsys.Open("store/" + name)
	if err != nil {
		t.Fatal(err)
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{FS: fsys}
	if err := o.setDefaults(); err != nil {
		t.Fatal(err)
	}
	p := o.pebbleOptions(newFailStopFS(fsys, "store"))
	p.EnsureDefaults()
	r, err := sstable.NewReader(t.Context(), readable, p.MakeReaderOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	it, err := r.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	if kv := it.First(); kv == nil || kv.K.UserKey[0] != claimSpace {
		return nil
	}
	layout, err := r.Layout()
	if err != nil {
		t.Fatal(err)
	}
	add := func(block string, offset, length uint64) {
		if length > 0 {
			spots = append(spots, spot{name, block, offset + length/2})
		}
	}
	for _, i := range []int{0, len(layout.Data) / 2, len(layout.Data) - 1} {
		add("data", layout.Data[i].Offset, layout.Data[i].Length)
	}
	for _, h := range layout.Index {
		add("index", h.Offset, h.Length)
		break
	}
	add("top index", layout.TopIndex.Offset, layout.TopIndex.Length)
	for _, h := range layout.Filter {
		add("filter", h.Offset, h.Length)
	}
	add("properties", layout.Properties.Offset, layout.Properties.Length)
	add("range delete", layout.RangeDel.Offset, layout.RangeDel.Length)
	add("meta index", layout.MetaIndex.Offset, layout.MetaIndex.Length)
	add("footer", layout.Footer.Offset, layout.Footer.Length)
	return spots
}

func flipped(t *testing.T, files map[string][]byte, at spot) *vfs.MemFS {
	t.Helper()
	bad := slices.Clone(files[at.table])
	bad[at.offset] ^= 0x10
	return diskOf(t, files, at.table, bad)
}

// coldCheck claims all claimed events and some new ones, and compares with what was claimed.
type coldCheck struct {
	e       *engine.Engine
	claims  int // at first, of each scope in each week
	claimed map[string]bool
	next    int // new ids begin here

	failed, falsely int
	problems        []string
}

func newColdCheck(e *engine.Engine, l coldLayout) *coldCheck {
	c := &coldCheck{e: e, claims: l.claims, claimed: make(map[string]bool), next: l.claims}
	for week := 1; week <= coldWeeks; week++ {
		for _, scope := range coldScopes {
			for i := range l.claims {
				ev := coldEvent(scope, week, i)
				c.claimed[coldKey(&ev)] = true
			}
		}
	}
	return c
}

func coldKey(ev *engine.Event) string { return fmt.Sprint(ev.Scope, ev.Time, string(ev.ID)) }

func (c *coldCheck) problem(format string, args ...any) {
	if len(c.problems) < 10 {
		c.problems = append(c.problems, fmt.Sprintf(format, args...))
	}
}

// all checks the events of all weeks from the first.
func (c *coldCheck) all(t *testing.T, oldest int, damaged *storage.Damage) {
	t.Helper()
	c.failed, c.falsely = 0, 0
	for week := 0; week <= oldest; week++ {
		for _, scope := range coldScopes {
			var events []engine.Event
			for i := range c.claims {
				events = append(events, coldEvent(scope, week, i))
			}
			for i := range 50 {
				events = append(events, coldEvent(scope, week, c.next+i))
			}
			results, err := c.e.TryClaimBatch(t.Context(), events)
			if err != nil {
				c.problem("week %d: %v", week, err)
				continue
			}
			for i := range events {
				c.one(t, &events[i], &results[i], damaged)
			}
		}
	}
	c.next += 50
}

func (c *coldCheck) one(t *testing.T, ev *engine.Event, r *engine.Result, damaged *storage.Damage) {
	key, bucket := coldKey(ev), bucketOf(t, ev)
	was := c.claimed[key]
	var damage *storage.DamageError
	switch {
	case r.Verdict == engine.Claimed && !was:
		c.claimed[key] = true
	case r.Verdict == engine.Duplicate && was:
	case errors.As(r.Err, &damage):
		if c.failed++; !damage.Concerns(bucket) || !errors.Is(r.Err, storage.ErrDamaged) {
			c.problem("%v: %v", bucket, r.Err)
		}
		if damaged != nil {
			*damaged = damage.Parts[0]
		}
	default:
		c.falsely++
		c.problem("%v %s, claimed: %v: %v %v", bucket, ev.ID, was, r.Verdict, r.Err)
	}
}

func (c *coldCheck) report(t *testing.T, what string) {
	t.Helper()
	for _, p := range c.problems {
		t.Errorf("%s: %s", what, p)
	}
	c.problems = nil
}

// unscreened is a store without snapshots of filters: an engine rebuilds them.
type unscreened struct{ *Store }

func (unscreened) ReadSidecar(string, func(io.Reader, int64) error) error { return fs.ErrNotExist }

// forgetful is the control: its scans hide damage, so that rebuilt filters lack claims.
type forgetful struct{ unscreened }

func (s forgetful) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	err := s.unscreened.Scan(ctx, span, started, fn)
	if errors.As(err, new(*storage.DamageError)) {
		return nil
	}
	return err
}

func rebuilt(t *testing.T, e *engine.Engine) {
	t.Helper()
	eventually(t, "the rebuild of the filters has ended", func() bool {
		s, err := e.Stats()
		_, weeks := e.Weeks(t.Context())
		return err == nil && (!s.FilterRebuilding || errors.Is(weeks, storage.ErrDamaged))
	})
}

// Whatever block of a table with claims is damaged: what cannot be there is served as before, what can be
// there fails with the name of the table and the buckets, and once its weeks are dropped, all is healthy.
func TestDamageOfAColdTableIsConfined(t *testing.T) {
	t.Parallel()
	for name, l := range coldLayouts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && l != coldLayouts["compacted"] && l != coldLayouts["buckets in one table"] {
				t.Skip("Pebble searches a flipped bit for long: one layout with tables for each bucket, and one without, are left")
			}
			files := coldStore(t, l)
			var spots []spot
			for _, name := range slices.Sorted(maps.Keys(files)) {
				if isTable(name) {
					spots = append(spots, spotsOf(t, files, name)...)
				}
			}
			kinds, failed, met := make(map[string]int), 0, 0
			for i, at := range spots {
				if os.Getenv("HAPAX_SWEEP") != "all" && i >= spotsInATable && (testing.Short() || at.block != "data" || i%5 != 0) {
					continue
				}
				for kind, wrap := range map[string]func(*Store) storage.Store{
					"filters of a snapshot": nil, "rebuilt filters": func(s *Store) storage.Store { return unscreened{s} },
				} {
					if os.Getenv("HAPAX_SWEEP") != "all" && (kind == "rebuilt filters") != (i%2 == 0) {
						continue
					}
					kinds[at.block]++
					n := confines(t, fmt.Sprintf("%s, %s, %d, %s", at.table, at.block, at.offset, kind), files, at, l, wrap)
					if failed += n; n > 0 {
						met++
					}
					if t.Failed() {
						return
					}
				}
			}
			t.Logf("flips by kind of block: %v; %d events failed, after %d flips", kinds, failed, met)
			if failed == 0 || kinds["data"] == 0 || kinds["index"] == 0 || kinds["properties"] == 0 || kinds["footer"] == 0 {
				t.Error("nothing was tested")
			}
		})
	}
}

func confines(t *testing.T, what string, files map[string][]byte, at spot, l coldLayout, wrap func(*Store) storage.Store) (failed int) {
	t.Helper()
	fsys := flipped(t, files, at)
	e, s, err := openCold(fsys, wrap)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	c := newColdCheck(e, l)
	var damaged storage.Damage
	c.all(t, coldWeeks, &damaged)
	rebuilt(t, e)
	failed = c.failed
	c.all(t, coldWeeks, &damaged)
	c.report(t, what)
	mustSealAll(t, s)
	c.all(t, coldWeeks, &damaged)
	c.report(t, what+", after a seal")
	failed += c.failed
	stats, err := e.Stats()
	if err != nil || failed > 0 && !slices.ContainsFunc(stats.Store.Damaged, func(d storage.Damage) bool { return d.File == damaged.File }) {
		t.Errorf("%s: %v, %v", what, stats.Store.Damaged, err)
	}
	if err := e.Err(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if err := e.Close(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if e, s, err = openCold(fsys, wrap); err != nil {
		t.Fatalf("%s: opened again: %v", what, err)
	}
	c.e = e
	rebuilt(t, e)
	c.all(t, coldWeeks, &damaged)
	c.report(t, what+", opened again")
	for week := coldWeeks; week > 0; week-- {
		eventually(t, what+": a week can be dropped", func() bool {
			_, err := e.Retention().DropWeek(t.Context(), bucketOf(t, &engine.Event{Time: coldNow.AddDate(0, 0, -7*week)}).Week)
			if err != nil && !errors.Is(err, engine.ErrRebuilding) {
				t.Fatalf("%s: dropping: %v", what, err)
			}
			return err == nil
		})
	}
	if err := e.Retention().Reclaimed(t.Context()); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	c.all(t, 0, nil)
	c.report(t, what+", after the drop")
	if damaged.First.Scope != damaged.Last.Scope && at.block != "data" {
		// The table cannot be read at all, and not be removed: claims of later weeks lie between.
		if err := e.Err(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		_ = e.Close()
		return failed
	}
	eventually(t, what+": the filters are complete", func() bool {
		s, err := e.Stats()
		return err == nil && !s.FilterRebuilding
	})
	c.all(t, 0, nil)
	c.report(t, what+", after the drop")
	if stats, err := e.Stats(); c.failed > 0 || err != nil || len(stats.Store.Damaged) > 0 {
		t.Errorf("%s: after the drop: %d failed, damaged: %v, %v", what, c.failed, stats.Store.Damaged, err)
	}
	if v, err := e.Admin().Verify(t.Context()); err != nil || v.Total > 0 {
		t.Errorf("%s: after the drop: %v, %v", what, v.Problems, err)
	}
	if err := e.Close(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	_ = s
	return failed
}

// The control: filters that were rebuilt in spite of damage claim events again.
func TestFiltersThatIgnoreDamageAreSeenToClaimAgain(t *testing.T) {
	l := coldLayouts["compacted"]
	files := coldStore(t, l)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !isTable(name) {
			continue
		}
		for _, at := range spotsOf(t, files, name) {
			if at.block != "data" {
				continue
			}
			e, _, err := openCold(flipped(t, files, at), func(s *Store) storage.Store { return forgetful{unscreened{s}} })
			if err != nil {
				t.Fatal(err)
			}
			rebuilt(t, e)
			c := newColdCheck(e, l)
			c.all(t, coldWeeks, nil)
			_ = e.Close()
			if c.falsely > 0 {
				return
			}
		}
	}
	t.Fatal("a rebuild that ignores damage went unnoticed: the test of damage tests nothing")
}

// damagedIndex returns the files of a closed store whose claims are in one table, with a flipped bit in
// the table's index: nothing of it can be read.
func damagedIndex(t *testing.T) (fsys vfs.FS, l coldLayout, table string) {
	t.Helper()
	l = coldLayouts["buckets in one compacted table"]
	files := coldStore(t, l)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !isTable(name) {
			continue
		}
		for _, at := range spotsOf(t, files, name) {
			if at.block == "index" {
				return flipped(t, files, at), l, name
			}
		}
	}
	t.Fatal("no table with claims")
	return nil, l, ""
}

// Pebble reads the tables around a new run to find its level.
func TestClaimsAreWrittenToTablesBesideADamagedOne(t *testing.T) {
	fsys, _, table := damagedIndex(t)
	for round := range 2 {
		e, s, err := openCold(fsys, nil)
		if err != nil {
			t.Fatal(err)
		}
		fresh := 0
		for i := range 50 {
			r, err := e.TryClaim(t.Context(), coldEvent("a", 0, 1000+i)) // between the buckets of the table
			if err != nil {
				t.Fatal(err)
			}
			if r.Verdict == engine.Claimed {
				fresh++
			}
		}
		if fresh != 50*(1-round) {
			t.Fatalf("round %d: %d of 50 events were claimed", round, fresh)
		}
		mustSealAll(t, s)
		for i := range 50 {
			ev := coldEvent("a", 0, 1000+i)
			if r, err := e.TryClaim(t.Context(), ev); err != nil || r.Verdict != engine.Duplicate {
				t.Fatal(r.Verdict, err)
			}
		}
		if u, err := s.Usage(); err != nil || round == 0 && (len(u.Damaged) != 1 || u.Damaged[0].File != table) {
			t.Fatal("Pebble has not read the table: ", u.Damaged, err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A compaction of a damaged table fails, and changes nothing.
func TestACompactionOfADamagedTableLosesNothing(t *testing.T) {
	fsys, l, _ := damagedIndex(t)
	e, s, err := openCold(fsys, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := newColdCheck(e, l)
	c.all(t, coldWeeks, nil)
	mustSealAll(t, s)
	for range 3 {
		err := asRead(s.core.db.Compact(t.Context(), []byte{claimSpace}, []byte{claimSpace + 1}, false))
		if !errors.As(err, new(*storage.DamageError)) {
			t.Fatal(err)
		}
		c.all(t, coldWeeks, nil)
	}
	c.report(t, "after compactions")
	if c.failed == 0 {
		t.Error("the damage was not met")
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// A backup has the damage, too, and can be opened.
func TestABackupOfADamagedStoreIsAsGoodAsTheStore(t *testing.T) {
	fsys, l, _ := damagedIndex(t)
	e, _, err := openCold(fsys, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.Admin().Backup(t.Context(), "backup"), e.Close()); err != nil {
		t.Fatal(err)
	}
	s, err := Open("backup", Options{FS: fsys, SmallTables: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if e, err = engine.Open(s, engine.Options{Clock: func() time.Time { return coldNow }, RetentionWeeks: 52}); err != nil {
		t.Fatal(err)
	}
	rebuilt(t, e)
	c := newColdCheck(e, l)
	c.all(t, coldWeeks, nil)
	c.report(t, "backup")
	if c.failed == 0 {
		t.Error("the damage was not met")
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}
