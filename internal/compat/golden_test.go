// Package compat tests the engine on both stores, across builds and opens: a store that the first build
// of a format wrote, and options that change between two opens.
package compat

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
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
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/versions"
	"github.com/hapax-dev/hapax/weekbucket"
)

// The golden stores were written by the first build of their format, and are never written again: a build
// that opens them opens the stores of its users. A build of a new format adds its own, and keeps these:
//
//	go test ./internal/compat -run TestGoldenStores -write-golden
var writeGolden = flag.Bool("write-golden", false, "write the golden stores where they are missing")

var goldenKinds = map[string]func(dir string) (storage.Store, error){
	"pebble": func(dir string) (storage.Store, error) { return pebble.Open(dir, pebble.Options{CacheBytes: 1 << 20}) },
	"bolt":   func(dir string) (storage.Store, error) { return bolt.Open(dir, bolt.Options{}) },
}

func TestGoldenStoresOpen(t *testing.T) {
	for kind, open := range goldenKinds {
		if *writeGolden {
			writeGoldenStore(t, goldenDir(kind), open)
		}
		for _, c := range []struct {
			name    string
			without []string // files that are removed first
			source  string
		}{
			{"as closed", nil, "snapshot+journal"},
			{"without the newest snapshot", []string{"*screen-1*"}, "scan"}, // the other sidecar is empty
			{"without snapshots", []string{"*screen-0*", "*screen-1*"}, "scan"},
		} {
			t.Run(kind+" "+c.name, func(t *testing.T) {
				dir := copyOfGolden(t, kind)
				for _, pattern := range c.without {
					removeOne(t, filepath.Join(dir, pattern))
				}
				checkGoldenStore(t, openGolden(t, dir, open), c.source)
			})
		}
	}
}

func TestStoreOfANewerFormatIsRejectedUntouched(t *testing.T) {
	for kind, open := range goldenKinds {
		for what, more := range map[string]string{"another number": "", "more in its identity": "a field of a later build"} {
			t.Run(kind+" with "+what, func(t *testing.T) {
				dir := copyOfGolden(t, kind)
				changeIdentity(t, dir, func(b []byte) []byte {
					binary.BigEndian.PutUint32(b[8:], 2)
					return append(b, more...)
				})
				checkRejected(t, dir, open, storage.ErrNewerFormat)
			})
		}
	}
}

// The formats of builds before the first release had numbers of their own, which say nothing now.
func TestStoreOfABuildBeforeTheFirstReleaseIsRejectedUntouched(t *testing.T) {
	for kind, open := range goldenKinds {
		dir := copyOfGolden(t, kind)
		changeIdentity(t, dir, func(b []byte) []byte { copy(b, "HAPAXSTO"); return b })
		if err := checkRejected(t, dir, open, storage.ErrForeign); !strings.Contains(err.Error(), "before the first release") {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func checkRejected(t *testing.T, dir string, open func(string) (storage.Store, error), want error) error {
	t.Helper()
	before := filesOf(t, dir)
	_, err := open(dir)
	if !errors.Is(err, want) {
		t.Fatalf("opening it: %v", err)
	}
	if !maps.Equal(filesOf(t, dir), before) {
		t.Fatal("it was changed")
	}
	return err
}

// A store of an older format keeps it until a write that an older build would misread: after reading
// only, the older build can still open the store, and after a write it rejects it.
func TestAnOlderFormatIsRaisedByTheFirstClaim(t *testing.T) {
	for kind, open := range goldenKinds {
		t.Run(kind, func(t *testing.T) {
			dir := copyOfGolden(t, kind)
			newer := nextFormat(kind)
			defer newer()
			formatIs := func(want int) {
				t.Helper()
				if got, err := sidecar.ReadFormat(sidecar.OS{}, dir); err != nil || int(got) != want {
					t.Fatalf("the format is %d, want %d: %v", got, want, err)
				}
			}
			s, err := open(dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(s.Close(), openGolden(t, dir, open).Close()); err != nil {
				t.Fatal(err)
			}
			formatIs(1)
			checkGoldenStore(t, openGolden(t, dir, open), "snapshot+journal")
			formatIs(2)
			e := openGolden(t, dir, open)
			if report, err := e.Admin().Verify(context.Background()); err != nil || report.Total != 0 {
				t.Error(report, err)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			newer()
			checkRejected(t, dir, open, storage.ErrNewerFormat)
		})
	}
}

// nextFormat makes this build one of the next format until the returned function is called.
func nextFormat(kind string) (undo func()) {
	of := map[string]*sidecar.Kind{"pebble": &sidecar.Pebble, "bolt": &sidecar.Bolt}[kind]
	of.Format = 2
	return func() { of.Format = 1 }
}

func goldenWindowed(t *testing.T) engine.Event {
	ev := goldenEvent(t, goldenScopes[0], 3, 0)
	ev.ID, ev.Window = []byte("windowed"), 36*time.Hour
	return ev
}

// The contents of a golden store: claims of two scopes in four weeks, of which the first was
// dropped, and two claims of which were forgotten.
var (
	goldenScopes = []string{"billing", "push\x00eu"}
	goldenWeeks  = []string{"2026-03-02", "2026-03-09", "2026-03-16", "2026-03-23"}
	goldenNow    = time.Date(2026, 3, 29, 22, 20, 30, 456e6, time.UTC)
	goldenHold   = engine.Hold{Name: "a lagging consumer", At: time.Date(2026, 3, 16, 0, 0, 0, 0, time.UTC)}

	// The number of claims of each scope and week, and the forgotten claims of week 1 and of
	// week 3.
	goldenClaims, goldenForgotten = 50, 7

	goldenKeys = map[string]string{"balance": "1250", "a\x00key": "\x00\xff", "empty": ""}

	goldenOffsets = map[engine.OffsetKey]engine.Offset{
		{Group: "g", Topic: "payments", Partition: 0}: {Next: 4711, LeaderEpoch: 3, TopicID: [16]byte{1, 2, 3, 15: 16}},
		{Group: "g", Topic: "pushes", Partition: 12}:  {Next: 1 << 40},
	}
)

func goldenWeek(t *testing.T, week int) weekbucket.Week {
	t.Helper()
	start, err := time.Parse(time.DateOnly, goldenWeeks[week])
	if err != nil {
		t.Fatal(err)
	}
	w, err := weekbucket.Of(start)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// goldenEvent is the i-th event of a scope and week. Its id has one of the forms that are stored in
// different ways.
func goldenEvent(t *testing.T, scope string, week, i int) engine.Event {
	t.Helper()
	uuid := fmt.Sprintf("7f1c0a52-2f0e-4a53-9d0c-%012x", i)
	id := []string{
		uuid, strings.ToUpper(uuid), fmt.Sprintf("%032x", i+1), fmt.Sprint("order|", i), "\x00\xff" + string(rune(i)) + "\x00",
	}[i%5]
	return engine.Event{
		Scope:  scope,
		ID:     []byte(id),
		Time:   goldenWeek(t, week).Start().Add(time.Duration(i*7*24) * time.Hour / time.Duration(goldenClaims)),
		Origin: engine.Origin{Topic: []string{"payments", "pushes"}[i%2], Partition: int32(i % 3), Offset: int64(1000*week + i)},
	}
}

// writeGoldenStore opens and writes a store twice, so that there are two snapshots and the journal
// was trimmed.
func writeGoldenStore(t *testing.T, dir string, open func(string) (storage.Store, error)) {
	t.Helper()
	if _, err := os.Stat(dir); err == nil {
		t.Logf("%s exists and is not changed", dir)
		return
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	claim := func(e *engine.Engine, week int) {
		for _, scope := range goldenScopes {
			var events []engine.Event
			for i := range goldenClaims {
				events = append(events, goldenEvent(t, scope, week, i))
			}
			results, err := e.TryClaimBatch(ctx, events)
			if err != nil || slices.ContainsFunc(results, func(r engine.Result) bool { return r.Verdict != engine.Claimed }) {
				t.Fatal(results, err)
			}
		}
	}
	forget := func(e *engine.Engine, week int) error {
		ev := goldenEvent(t, goldenScopes[0], week, goldenForgotten)
		_, err := e.Admin().Forget(ctx, ev.Scope, ev.ID, ev.Time)
		return err
	}

	e := openGolden(t, dir, open)
	claim(e, 0)
	claim(e, 1)
	err := e.Update(ctx, func(tx *engine.Tx) error {
		return errors.Join(tx.Put([]byte("balance"), []byte("overwritten later")), tx.Put([]byte("deleted"), []byte("later")))
	})
	users := usersOf(t, e, versions.Options{})
	err = errors.Join(err, putRows(e, users, firstRows...), users.Erase(ctx, "acme", []byte("dave"), 9), e.Close())
	if err != nil {
		t.Fatal(err)
	}

	e = openGolden(t, dir, open)
	claim(e, 2)
	err = e.Update(ctx, func(tx *engine.Tx) error {
		for _, scope := range goldenScopes {
			for i := range goldenClaims {
				if r, err := tx.TryClaim(goldenEvent(t, scope, 3, i)); err != nil || r.Verdict != engine.Claimed {
					return fmt.Errorf("%v: %w", r.Verdict, err)
				}
			}
		}
		errs := []error{tx.Delete([]byte("deleted")), tx.SetHold(goldenHold.Name, goldenHold.At)}
		for key, value := range goldenKeys {
			errs = append(errs, tx.Put([]byte(key), []byte(value)))
		}
		for at, next := range goldenOffsets {
			errs = append(errs, tx.SetOffset(at, next))
		}
		return errors.Join(errs...)
	})
	_, dropErr := e.Retention().DropWeek(ctx, goldenWeek(t, 0))
	if r, err := e.TryClaim(ctx, goldenWindowed(t)); err != nil || r.Verdict != engine.Claimed {
		t.Fatal(r, err)
	}
	rowsErr := putRows(e, usersOf(t, e, versions.Options{}), lastRows...)
	if err := errors.Join(err, dropErr, rowsErr, forget(e, 1), forget(e, 3), e.Retention().Reclaimed(ctx), e.Close()); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(filepath.Join(dir, "hapax-reserve")) // an empty file of some MiB
	_ = os.Remove(filepath.Join(dir, "LOCK"))          // it names the machine
}

// checkGoldenStore checks all that writeGoldenStore has written, and then writes to the store.
func checkGoldenStore(t *testing.T, e *engine.Engine, source string) {
	ctx := context.Background()
	stats, err := e.Stats()
	if err != nil || stats.FilterSource != source {
		t.Errorf("the filters came from %q, want %q: %v", stats.FilterSource, source, err)
	}
	if got, want := e.Retention().OldestWeek(), goldenWeek(t, 1); got != want {
		t.Errorf("the oldest week is %v, want %v", got, want)
	}
	if holds := e.Holds(); len(holds) != 1 || holds[0].Name != goldenHold.Name || !holds[0].At.Equal(goldenHold.At) {
		t.Errorf("the holds are %v", holds)
	}
	checkGoldenState(t, e)
	kept := uint64((len(goldenWeeks)-1)*len(goldenScopes)*goldenClaims - 2 + 1)
	ev := goldenWindowed(t)
	want := engine.ClaimRecord{State: engine.Done, FirstSeen: goldenNow, Origin: ev.Origin, Window: ev.Window}
	if r, err := e.TryClaim(ctx, ev); err != nil || r.Verdict != engine.Duplicate || r.Record != want {
		t.Errorf("the claim with a window: %+v, %v; want %+v", r, err, want)
	}
	checkGoldenCounts(t, e, kept)
	if report, err := e.Admin().Verify(ctx); err != nil || report.Total != 0 || report.Claims != kept {
		t.Errorf("Verify: %+v, %v; want %d claims", report, err, kept)
	}
	checkGoldenClaims(t, e)
	if err := e.Close(); err != nil {
		t.Error("closing it:", err)
	}
}

func checkGoldenState(t *testing.T, e *engine.Engine) {
	t.Helper()
	err := e.Update(context.Background(), func(tx *engine.Tx) error {
		for key, want := range goldenKeys {
			if got, found, err := tx.Get([]byte(key)); err != nil || !found || string(got) != want {
				t.Errorf("key %q is %q %v, want %q: %v", key, got, found, want, err)
			}
		}
		if got, found, err := tx.Get([]byte("deleted")); err != nil || found {
			t.Errorf("a deleted key is %q: %v", got, err)
		}
		for at, want := range goldenOffsets {
			if got, found, err := tx.Offset(at); err != nil || !found || got != want {
				t.Errorf("the offset of %v is %v %v, want %v: %v", at, got, found, want, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func checkGoldenCounts(t *testing.T, e *engine.Engine, kept uint64) {
	t.Helper()
	weeks, err := e.Weeks(context.Background())
	for deadline := time.Now().Add(time.Minute); errors.Is(err, engine.ErrRebuilding) && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
		weeks, err = e.Weeks(context.Background())
	}
	claims := uint64(0)
	for _, w := range weeks {
		claims += w.Claims
	}
	if err != nil || len(weeks) != len(goldenWeeks)-1 || claims != kept {
		t.Errorf("Weeks: %+v, %v; want %d claims", weeks, err, kept)
	}
}

func checkGoldenClaims(t *testing.T, e *engine.Engine) {
	t.Helper()
	for week := range goldenWeeks {
		for _, scope := range goldenScopes {
			for i := range goldenClaims {
				ev := goldenEvent(t, scope, week, i)
				want := engine.Result{Verdict: engine.Duplicate, Record: engine.ClaimRecord{State: engine.Done, FirstSeen: goldenNow, Origin: ev.Origin}}
				again := ev
				again.Origin = engine.Origin{Topic: "replay", Offset: int64(i)}
				switch {
				case week == 0:
					want = engine.Result{Verdict: engine.TooOld}
				case i == goldenForgotten && scope == goldenScopes[0] && week != 2:
					want.Verdict, want.Record.Origin = engine.Claimed, again.Origin
				}
				rec, found, err := e.Admin().Lookup(context.Background(), ev.Scope, ev.ID, ev.Time)
				if err != nil || found != (want.Verdict == engine.Duplicate) || found && rec != want.Record {
					t.Errorf("%q %q of week %d is stored as %+v %v, want %+v: %v", ev.Scope, ev.ID, week, rec, found, want, err)
				}
				got, err := e.TryClaim(context.Background(), again)
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("%q %q of week %d, delivered again: %+v, want %+v: %v", ev.Scope, ev.ID, week, got, want, err)
				}
			}
		}
	}
}

func openGolden(t *testing.T, dir string, open func(string) (storage.Store, error)) *engine.Engine {
	t.Helper()
	s, err := open(dir)
	if err != nil {
		t.Fatal("opening the store:", err)
	}
	e, err := engine.Open(s, engine.Options{ExpectedPerWeek: 1, Clock: func() time.Time { return goldenNow }})
	if err != nil {
		t.Fatal("opening the engine:", errors.Join(err, s.Close()))
	}
	return e
}

func goldenDir(kind string) string { return filepath.Join("testdata", "golden", "format-1", kind) }

// copyOfGolden gives the files the modes of a checkout.
func copyOfGolden(t *testing.T, kind string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(to, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range filesOf(t, goldenDir(kind)) {
		if err := os.WriteFile(filepath.Join(to, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// filesOf returns the content of every file below dir by its name.
func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, name))
		files[name] = string(content)
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has %d files: %v", dir, len(files), err)
	}
	return files
}

func removeOne(t *testing.T, pattern string) {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s is %q: %v", pattern, found, err)
	}
	if err := os.Remove(found[0]); err != nil {
		t.Fatal(err)
	}
}

// changeIdentity relies on the promise of the identity for all formats (docs/format.md).
func changeIdentity(t *testing.T, dir string, change func(b []byte) []byte) {
	t.Helper()
	path := filepath.Join(dir, sidecar.IdentityName)
	b, err := os.ReadFile(path)
	if err == nil {
		b, err = sidecar.Unseal(b)
	}
	if err == nil {
		err = os.WriteFile(path, sidecar.Seal(change(b)), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
