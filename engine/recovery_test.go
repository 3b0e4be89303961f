package engine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A tampered store is a Mem of which a test replaces some methods.
type tampered struct {
	*storetest.Mem
	apply        func(b *storage.Batch) (func() error, error)
	state        func(key []byte) ([]byte, bool, error)
	scan         func(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error
	journal      func(from uint64, fn func(seq uint64, entry []byte) error) error
	reclaim      func(ctx context.Context, buckets []storage.Bucket) error
	writeSidecar func(name string, write func(io.Writer) error) error
	readSidecar  func(name string) error
}

func (s *tampered) Apply(b *storage.Batch) (func() error, error) {
	if s.apply != nil {
		return s.apply(b)
	}
	return s.Mem.Apply(b)
}

func (s *tampered) State(key []byte) ([]byte, bool, error) {
	if s.state != nil {
		return s.state(key)
	}
	return s.Mem.State(key)
}

func (s *tampered) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	if s.scan != nil {
		return s.scan(ctx, span, started, fn)
	}
	return s.Mem.Scan(ctx, span, started, fn)
}

func (s *tampered) Journal(from uint64, fn func(seq uint64, entry []byte) error) error {
	if s.journal != nil {
		return s.journal(from, fn)
	}
	return s.Mem.Journal(from, fn)
}

func (s *tampered) Reclaim(ctx context.Context, buckets []storage.Bucket) error {
	if s.reclaim != nil {
		return s.reclaim(ctx, buckets)
	}
	return s.Mem.Reclaim(ctx, buckets)
}

func (s *tampered) WriteSidecar(name string, write func(io.Writer) error) error {
	if s.writeSidecar != nil {
		return s.writeSidecar(name, write)
	}
	return s.Mem.WriteSidecar(name, write)
}

func (s *tampered) ReadSidecar(name string, read func(r io.Reader, size int64) error) error {
	if s.readSidecar != nil {
		return s.readSidecar(name)
	}
	return s.Mem.ReadSidecar(name, read)
}

// eventually waits for background work.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(engine.Patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: ", what)
		}
	}
}

func stats(t testing.TB, e *engine.Engine) engine.Stats {
	t.Helper()
	s, err := e.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func awaitTrust(t testing.TB, e *engine.Engine) {
	t.Helper()
	eventually(t, "the filters are loaded", func() bool { return !stats(t, e).FilterRebuilding })
}

func verifyClean(t testing.TB, e *engine.Engine, claims int) {
	t.Helper()
	r, err := e.Admin().Verify(ctx)
	if err != nil || r.Total != 0 || int(r.Claims) != claims {
		t.Fatalf("verify finds %d claims, want %d, and %d problems %q, %v", r.Claims, claims, r.Total, r.Problems, err)
	}
}

// expect claims every event and returns those with another verdict than the expected one.
func expect(e *engine.Engine, events []engine.Event, want engine.Verdict) error {
	rs, err := e.TryClaimBatch(ctx, events)
	if err != nil {
		return err
	}
	for i, r := range rs {
		if r.Verdict != want {
			return fmt.Errorf("event %d, %q of %v: %v (%w), want %v", i, events[i].ID, events[i].Time, r.Verdict, r.Err, want)
		}
	}
	return nil
}

func mustExpect(t testing.TB, e *engine.Engine, events []engine.Event, want engine.Verdict) {
	t.Helper()
	if err := expect(e, events, want); err != nil {
		t.Fatal(err)
	}
}

// small makes filters of a few hundred bytes and a snapshot after every 50 claims.
var small = engine.Options{ExpectedPerWeek: 64}.WithSnapshotEvery(50)

// A past is a store with a history: claims in several scopes and weeks, some of them forgotten, two
// snapshots, a trimmed journal, and batches after the last snapshot.
type past struct {
	*storetest.Mem
	e         *engine.Engine
	known     []engine.Event
	forgotten []engine.Event
	first     *storetest.Mem    // the store as it was after the first snapshot
	snapshots map[string][]byte // as they were then
}

func (p *past) add(t testing.TB, n int) {
	t.Helper()
	var events []engine.Event
	for i := range n {
		ev := event(fmt.Sprintf("%d-%d", len(p.known)+len(p.forgotten), i))
		ev.Scope = []string{"billing", "mail", "a\x00b"}[i%3]
		ev.Time = noon.AddDate(0, 0, -7*(i%4))
		events = append(events, ev)
	}
	mustExpect(t, p.e, events, engine.Claimed)
	for _, ev := range events[:n/10] {
		if found, err := p.e.Admin().Forget(ctx, ev.Scope, ev.ID, ev.Time); !found || err != nil {
			t.Fatal("forget:", found, err)
		}
	}
	p.forgotten = append(p.forgotten, events[:n/10]...)
	p.known = append(p.known, events[n/10:]...)
}

func newPast(t testing.TB) *past {
	t.Helper()
	e, m := openMem(t, small)
	p := &past{Mem: m, e: e}
	for i := range 4 {
		before := slices.Max(sl(e.Snapshots()))
		p.add(t, 60)
		eventually(t, "a snapshot", func() bool { return slices.Max(sl(e.Snapshots())) > before && !e.SnapshotRunning() })
		if i == 0 {
			p.first = m.CrashClone(0)
			p.snapshots = sidecars(t, m)
		}
	}
	calls := m.Calls(storetest.OpTrimJournal)
	p.add(t, 30)
	if calls < 2 || calls != m.Calls(storetest.OpTrimJournal) {
		t.Fatal("this is not the intended history:", calls)
	}
	return p
}

func sl(a [2]uint64) []uint64 { return a[:] }

func sidecars(t testing.TB, m *storetest.Mem) map[string][]byte {
	t.Helper()
	files := make(map[string][]byte)
	for _, name := range []string{"screen-0", "screen-1"} {
		if b, err := storetest.ReadSidecar(m, name); err == nil {
			files[name] = b
		}
	}
	return files
}

func setSidecar(t testing.TB, m *storetest.Mem, name string, content []byte) {
	t.Helper()
	err := m.WriteSidecar(name, func(w io.Writer) error { _, err := w.Write(content); return err })
	if err != nil {
		t.Fatal(err)
	}
}

// newest returns the name of the snapshot of the later batch.
func (p *past) newest() (name string, content []byte) {
	at := p.e.Snapshots()
	name = "screen-0"
	if at[1] > at[0] {
		name = "screen-1"
	}
	content, _ = storetest.ReadSidecar(p.Mem, name)
	return name, content
}

// check opens m and finds all that was acknowledged.
func (p *past) check(t testing.TB, m storage.Store, o engine.Options) (string, error) {
	t.Helper()
	e := open(t, m, o)
	defer e.Close()
	source := stats(t, e).FilterSource
	if err := expect(e, p.known, engine.Duplicate); err != nil {
		return source, err
	}
	awaitTrust(t, e)
	verifyClean(t, e, len(p.known))
	if err := expect(e, p.known, engine.Duplicate); err != nil {
		return source, err
	}
	return source, expect(e, p.forgotten, engine.Claimed)
}

// reseal updates the checksum of a changed header.
func reseal(snapshot []byte) []byte {
	n := 4 + binary.BigEndian.Uint32(snapshot)
	binary.BigEndian.PutUint32(snapshot[n:], crc32.Checksum(snapshot[:n], crc32.MakeTable(crc32.Castagnoli)))
	return snapshot
}

// docs/format.md has the offsets in a snapshot.
const (
	atVersion     = 4 + 8
	atUUID        = atVersion + 4
	atIncarnation = atUUID + 16
	atSeq         = atIncarnation + 8
)

func TestFiltersAreRestoredInAnyStateOfTheSnapshots(t *testing.T) {
	p := newPast(t)
	newest, content := p.newest()
	older := map[string]string{"screen-0": "screen-1", "screen-1": "screen-0"}[newest]
	patched := func(at int, b byte) []byte {
		c := bytes.Clone(content)
		c[at] ^= b
		return reseal(c)
	}
	stranger, sm := openMem(t, small)
	mustExpect(t, stranger, p.known[:60], engine.Claimed)
	if err := stranger.Close(); err != nil {
		t.Fatal(err)
	}
	sm, err := sm.Disk().Open("mem", storage.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	foreign := sidecars(t, sm)["screen-0"]
	if foreign == nil {
		t.Fatal("the other store has no snapshot")
	}
	copy(foreign[atSeq:atSeq+8], content[atSeq:]) // by its number it would fit
	reseal(foreign)
	stale := p.snapshots["screen-0"]
	for _, c := range []struct {
		what     string
		sidecars map[string][]byte
		want     string
	}{
		{"whole", nil, engine.FromSnapshot},
		{"newest torn", map[string][]byte{newest: content[:len(content)/2]}, engine.FromSnapshot},
		{"newest torn in its header", map[string][]byte{newest: content[:20]}, engine.FromSnapshot},
		{"newest empty", map[string][]byte{newest: {}}, engine.FromSnapshot},
		{"newest zeroed", map[string][]byte{newest: make([]byte, len(content))}, engine.FromSnapshot},
		{"newest of another store", map[string][]byte{newest: foreign}, engine.FromSnapshot},
		{"newest with another uuid", map[string][]byte{newest: patched(atUUID, 1)}, engine.FromSnapshot},
		{"newest of another incarnation", map[string][]byte{newest: patched(atIncarnation+7, 2)}, engine.FromSnapshot},
		{"newest of a newer version", map[string][]byte{newest: patched(atVersion+3, 3)}, engine.FromSnapshot},
		{"newest replaced by a stale one", map[string][]byte{newest: stale}, engine.FromSnapshot},
		{"older torn", map[string][]byte{older: content[:50]}, engine.FromSnapshot},
		{"older is a copy of the newest", map[string][]byte{older: content}, engine.FromSnapshot},
		{"both stale", map[string][]byte{newest: stale, older: stale}, engine.FromScan},
		{"both torn", map[string][]byte{newest: content[:len(content)-1], older: {}}, engine.FromScan},
		{"both of another store", map[string][]byte{newest: foreign, older: foreign}, engine.FromScan},
		{"both of another incarnation", map[string][]byte{newest: patched(atIncarnation+7, 2), older: patched(atIncarnation, 2)}, engine.FromScan},
	} {
		t.Run(c.what, func(t *testing.T) {
			m := p.CrashClone(0)
			for name, content := range c.sidecars {
				setSidecar(t, m, name, content)
			}
			source, err := p.check(t, m, small)
			if err != nil || source != c.want {
				t.Fatalf("filters from %s, want %s; %v", source, c.want, err)
			}
		})
	}
	t.Run("both missing", func(t *testing.T) {
		none := func(string) error { return fs.ErrNotExist }
		source, err := p.check(t, &tampered{Mem: p.CrashClone(0), readSidecar: none}, small)
		if err != nil || source != engine.FromScan {
			t.Fatal(source, err)
		}
	})
	t.Run("never one written", func(t *testing.T) {
		e, m := openMem(t, engine.Options{})
		q := &past{Mem: m, e: e}
		q.add(t, 200)
		source, err := q.check(t, m.CrashClone(0), small)
		if err != nil || source != engine.FromJournal {
			t.Fatal(source, err)
		}
	})
	t.Run("cannot be read", func(t *testing.T) {
		eio := errors.New("EIO")
		_, err := engine.Open(&tampered{Mem: p.CrashClone(0), readSidecar: func(string) error { return eio }}, small)
		if !errors.Is(err, eio) {
			t.Fatal(err)
		}
	})
}

func TestFlippedByteInASnapshotDoesNoHarm(t *testing.T) {
	p := newPast(t)
	newest, content := p.newest()
	step := 1 + len(content)/40
	for i := 0; i < len(content); i += step {
		m := p.CrashClone(0)
		damaged := bytes.Clone(content)
		damaged[i] ^= 0x10
		setSidecar(t, m, newest, damaged)
		if source, err := p.check(t, m, small); err != nil || source != engine.FromSnapshot {
			t.Fatalf("byte %d of %d: filters from %s, %v", i, len(content), source, err)
		}
	}
}

// The control of the tests above: they detect a stale filter that is used as the newest one.
func TestStaleFilterThatIsUsedAsTheNewestIsDetected(t *testing.T) {
	p := newPast(t)
	newest, content := p.newest()
	forged := bytes.Clone(p.snapshots["screen-0"])
	copy(forged[atSeq:atSeq+8], content[atSeq:])
	m := p.CrashClone(0)
	setSidecar(t, m, newest, reseal(forged))
	e := open(t, m, small)
	if err := expect(e, p.known, engine.Duplicate); err == nil {
		t.Fatal("a filter that lacks claims was used without detection")
	}
}

func TestStoreOlderThanItsSnapshotIsDamaged(t *testing.T) {
	p := newPast(t)
	for name, content := range sidecars(t, p.Mem) {
		setSidecar(t, p.first, name, content)
	}
	if _, err := engine.Open(p.first, small); !errors.Is(err, storage.ErrDamaged) {
		t.Fatal("opened with a snapshot from its future:", err)
	}
}

func TestBackupDoesNotTrustTheSnapshotsOfItsOrigin(t *testing.T) {
	p := newPast(t)
	if err := p.e.Admin().Backup(ctx, "copy"); err != nil {
		t.Fatal(err)
	}
	m, err := p.Disk().Open("copy", storage.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	if source, err := p.check(t, m, small); err != nil || source != engine.FromScan {
		t.Fatal(source, err)
	}
}

// heldScan returns a store whose scans block, after they have read a little, until release is
// closed.
func heldScan(m *storetest.Mem, release <-chan struct{}) *tampered {
	return &tampered{Mem: m, scan: func(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
		read := 0
		return m.Scan(ctx, span, started, func(key, record []byte) error {
			if read++; read == 10 {
				select {
				case <-release:
				case <-ctx.Done():
				}
			}
			return fn(key, record)
		})
	}}
}

// lost returns the store after a crash, without usable snapshots.
func (p *past) lost(t testing.TB) *storetest.Mem {
	m := p.CrashClone(0)
	setSidecar(t, m, "screen-0", nil)
	setSidecar(t, m, "screen-1", nil)
	return m
}

func TestVerdictsComeFromTheStoreWhileFiltersAreRebuilt(t *testing.T) {
	p := newPast(t)
	release := make(chan struct{})
	e := open(t, heldScan(p.lost(t), release), small)
	if s := stats(t, e); s.FilterSource != engine.FromScan || !s.FilterRebuilding {
		t.Fatalf("%+v", s)
	}
	mustExpect(t, e, p.known, engine.Duplicate)
	var late []engine.Event
	for i := range 100 {
		ev := event(fmt.Sprint("late", i))
		ev.Time = noon.AddDate(0, 0, -7*(i%4))
		late = append(late, ev)
	}
	mustExpect(t, e, late, engine.Claimed)
	mustExpect(t, e, late, engine.Duplicate)
	mustExpect(t, e, p.forgotten, engine.Claimed)
	for _, ev := range []engine.Event{late[0], p.known[0], p.known[len(p.known)-1]} { // before, and after the scan began
		if found, err := e.Admin().Forget(ctx, ev.Scope, ev.ID, ev.Time); !found || err != nil {
			t.Fatal(found, err)
		}
	}
	if _, err := e.Weeks(ctx); !errors.Is(err, engine.ErrRebuilding) {
		t.Fatal("counts are returned while they are incomplete:", err)
	}
	if _, err := e.Retention().DropWeek(ctx, e.Retention().OldestWeek()); !errors.Is(err, engine.ErrRebuilding) {
		t.Fatal("a week is dropped on incomplete counts:", err)
	}
	if _, err := e.Retention().PlanScopeDrop(ctx, "mail"); !errors.Is(err, engine.ErrRebuilding) {
		t.Fatal("a scope is planned on incomplete counts:", err)
	}
	if _, err := e.Retention().DropScope(ctx, engine.ScopeDropPlan{Scope: "mail", Oldest: e.Retention().OldestWeek()}); !errors.Is(err, engine.ErrRebuilding) {
		t.Fatal("a scope is dropped on incomplete counts:", err)
	}
	if stats(t, e).FilterNegatives != 0 {
		t.Fatal("an incomplete filter was used")
	}
	close(release)
	awaitTrust(t, e)
	if n := stats(t, e).FilterRebuilt; n < uint64(len(p.known)) {
		t.Errorf("the rebuild has read %d claims of %d", n, len(p.known))
	}
	verifyClean(t, e, len(p.known)+len(p.forgotten)+len(late)-3)
	mustExpect(t, e, append(p.known[1:len(p.known)-1:len(p.known)-1], late[1:]...), engine.Duplicate)
	mustExpect(t, e, []engine.Event{late[0], p.known[0], p.known[len(p.known)-1]}, engine.Claimed)
	if weeks, err := e.Weeks(ctx); err != nil || len(weeks) != 4 {
		t.Fatal(weeks, err)
	}
	eventually(t, "a snapshot after the rebuild", func() bool { return slices.Max(sl(e.Snapshots())) > 0 })
}

func TestWeekDroppedDuringARebuildStaysDropped(t *testing.T) {
	p := newPast(t)
	c := &clock{t: noon}
	o := small
	o.Clock, o.RetentionWeeks = c.now, 4
	release := make(chan struct{})
	e := open(t, heldScan(p.lost(t), release), o)
	c.set(noon.AddDate(0, 0, 7*3))
	if r, err := e.Retention().DropAllExpired(ctx); err != nil || r.Weeks != 3 || r.Buckets != 6 {
		t.Fatalf("%+v %v", r, err)
	}
	close(release)
	awaitTrust(t, e)
	if weeks, err := e.Weeks(ctx); err != nil || len(weeks) != 2 || weeks[0].Week < e.Retention().OldestWeek() {
		t.Fatal(weeks, err)
	}
	kept := 0
	for _, ev := range p.known {
		want := engine.TooOld
		if week, _ := weekbucket.Of(ev.Time); week >= e.Retention().OldestWeek() {
			want = engine.Duplicate
			kept++
		}
		wantVerdict(t, claim(t, e, ev), want)
	}
	verifyClean(t, e, kept)
}

func TestClaimsMadeBeforeTheRebuildBeginsAreCountedOnce(t *testing.T) {
	e, m := openMem(t, small)
	mustExpect(t, e, inWeeks(0, 0, 60), engine.Claimed)
	p := &past{Mem: m, e: e}
	m = p.lost(t)
	for i := range 50 {
		scans := &tampered{Mem: m, journal: func(uint64, func(uint64, []byte) error) error { return nil }} // was trimmed
		e := open(t, scans, small)
		wantVerdict(t, claim(t, e, event(fmt.Sprint("early", i))), engine.Claimed)
		awaitTrust(t, e)
		verifyClean(t, e, 60+i+1)
		m = m.Crash()
		setSidecar(t, m, "screen-0", nil)
		setSidecar(t, m, "screen-1", nil)
	}
}

func TestCloseCutsOffARebuild(t *testing.T) {
	p := newPast(t)
	m := p.lost(t)
	begun := make(chan struct{})
	e := open(t, &tampered{Mem: m, scan: func(ctx context.Context, span storage.Span, started func(), _ func(key, record []byte) error) error {
		started()
		close(begun)
		<-ctx.Done()
		return ctx.Err()
	}}, small)
	mustExpect(t, e, p.known, engine.Duplicate)
	receive(t, begun)
	closed := make(chan error, 1)
	go func() { closed <- e.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("Close waits for the scan")
	}
	again, err := m.Disk().Open("mem", storage.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	if source, err := p.check(t, again, small); err != nil || source != engine.FromScan {
		t.Fatal(source, err)
	}
}

func TestJournalWithAGapIsDamage(t *testing.T) {
	p := newPast(t)
	last := p.CrashClone(0).LastSeq()
	without := func(m *storetest.Mem, drop func(seq uint64) bool, change func([]byte) []byte) storage.Store {
		return &tampered{Mem: m, journal: func(from uint64, fn func(uint64, []byte) error) error {
			return m.Journal(from, func(seq uint64, entry []byte) error {
				if drop(seq) {
					if change == nil {
						return nil
					}
					entry = change(entry)
				}
				return fn(seq, entry)
			})
		}}
	}
	fresh, young := openMem(t, engine.Options{})
	for i := range 3 {
		mustExpect(t, fresh, p.known[i:i+1], engine.Claimed)
	}
	for what, m := range map[string]*storetest.Mem{"after a snapshot": p.Mem, "without a snapshot": young} {
		last := m.CrashClone(0).LastSeq()
		for where, drop := range map[string]func(uint64) bool{
			"the last batch but one is missing": func(seq uint64) bool { return seq == last-1 },
			"the last batch is missing":         func(seq uint64) bool { return seq == last },
			"the last two are missing":          func(seq uint64) bool { return seq >= last-1 },
		} {
			if _, err := engine.Open(without(m.CrashClone(0), drop, nil), small); !errors.Is(err, storage.ErrDamaged) {
				t.Errorf("%s, %s: %v", what, where, err)
			}
		}
	}
	for what, change := range map[string]func([]byte) []byte{
		"cut":     func(b []byte) []byte { return append(b, 1) },
		"garbage": func([]byte) []byte { return []byte{0xff, 0xff, 0xff} },
	} {
		if _, err := engine.Open(without(p.CrashClone(0), func(seq uint64) bool { return seq == last }, change), small); !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("entry %s: %v", what, err)
		}
	}
}

// A crash is a store in memory as a power failure leaves it, with the events that were acknowledged
// before.
type crash struct {
	at    string // the operation
	m     *storetest.Mem
	known []engine.Event
}

// recordedCrashes are crashes before operations of a store.
type recordedCrashes struct {
	mu    sync.Mutex // guards known and all
	known []engine.Event
	all   []crash
}

// recordCrashes records a crash before each operation around batches and snapshots that wanted
// selects.
func recordCrashes(m *storetest.Mem, wanted func(op storetest.Op, call int) bool) *recordedCrashes {
	r := &recordedCrashes{}
	for _, op := range []storetest.Op{storetest.OpApply, storetest.OpWait, storetest.OpWriteSidecar, storetest.OpTrimJournal} {
		m.Before(op, func(call int) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if wanted(op, call) {
				r.all = append(r.all, crash{fmt.Sprint(op, call), m.CrashClone(call % 3), r.known[:len(r.known):len(r.known)]})
			}
			return nil
		})
	}
	return r
}

func (r *recordedCrashes) acknowledged(events []engine.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = append(r.known, events...)
}

func TestCrashAtAnyMomentAroundSnapshotsLosesNothing(t *testing.T) {
	c := &clock{t: noon}
	o := engine.Options{ExpectedPerWeek: 16, Clock: c.now}.WithSnapshotEvery(7)
	m := storetest.NewMem(storage.Identity{})
	e := open(t, m, o)
	crashes := recordCrashes(m, func(op storetest.Op, call int) bool {
		return call%4 == 0 || op == storetest.OpWriteSidecar || op == storetest.OpTrimJournal
	})
	for i := range 60 {
		var events []engine.Event
		for j := range 3 {
			ev := event(fmt.Sprint(i, "-", j))
			ev.Time = noon.AddDate(0, 0, -7*(j%2))
			events = append(events, ev)
		}
		mustExpect(t, e, events, engine.Claimed)
		if i%10 == 9 { // let the snapshots keep up: of 30 claims at least one was due
			eventually(t, "the snapshots", func() bool { return !e.SnapshotRunning() })
		}
		crashes.acknowledged(events)
	}
	if m.Calls(storetest.OpTrimJournal) < 3 {
		t.Fatal("too few snapshots for this test")
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range crashes.all {
		e, err := engine.Open(c.m, o)
		if err != nil {
			t.Fatalf("crash at %s: %v", c.at, err)
		}
		if err := expect(e, c.known, engine.Duplicate); err != nil {
			t.Fatalf("crash at %s: %v", c.at, err)
		}
		awaitTrust(t, e)
		if r, err := e.Admin().Verify(ctx); err != nil || r.Total != 0 || int(r.Claims) < len(c.known) {
			t.Fatalf("crash at %s: %+v %v", c.at, r, err)
		}
		if s := stats(t, e).FilterSource; s == engine.FromScan {
			t.Fatalf("crash at %s: filters from a scan: the journal was trimmed too far", c.at)
		}
		_ = e.Close()
	}
}

func TestNoSnapshotIsAheadOfItsStore(t *testing.T) {
	e, m := openMem(t, small)
	m.HoldSyncs()
	told := make(chan error, 1)
	go func() { told <- expect(e, inWeeks(0, 0, 60), engine.Claimed) }()
	awaitHeld(t, m)
	time.Sleep(30 * time.Millisecond)
	if n := m.Calls(storetest.OpWriteSidecar); n > 0 {
		t.Error("a snapshot contains claims that a power failure would remove")
	}
	m.ReleaseSyncs()
	if err := receive(t, told); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a snapshot", func() bool { return slices.Max(sl(e.Snapshots())) > 0 })
}

func TestSnapshotThatCannotBeWrittenIsCountedAndHarmless(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	full := errors.New("no space")
	s := &tampered{Mem: m, writeSidecar: func(string, func(io.Writer) error) error { return full }}
	e := open(t, s, small)
	p := &past{Mem: m, e: e}
	for range 4 {
		p.add(t, 60)
	}
	eventually(t, "a failed snapshot", func() bool { return stats(t, e).SnapshotFailures > 0 })
	if err := stats(t, e).LastSnapshotErr; !errors.Is(err, full) {
		t.Fatal(err)
	}
	if e.Err() != nil || m.Calls(storetest.OpTrimJournal) > 0 {
		t.Fatal("stopped, or trimmed entries that no snapshot covers:", e.Err())
	}
	mustExpect(t, e, p.known, engine.Duplicate)
	if source, err := p.check(t, m.CrashClone(0), small); err != nil || source != engine.FromJournal {
		t.Fatal(source, err)
	}
}

// A full disk costs only snapshots; when there is space again, one is written, without another
// million claims.
func TestSnapshotThatFoundNoSpaceIsRetried(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	e := open(t, m, small.WithSnapshotEvery(100).WithSnapshotRetry(time.Nanosecond))
	p := &past{Mem: m, e: e}
	p.add(t, 100)
	eventually(t, "a first snapshot", func() bool { return slices.Max(sl(e.Snapshots())) > 0 })
	first := slices.Max(sl(e.Snapshots()))
	m.Before(storetest.OpWriteSidecar, func(int) error { return syscall.ENOSPC })
	p.add(t, 100)
	for failed := range uint64(3) { // the second and the third after one more claim
		eventually(t, "a failed snapshot", func() bool { return stats(t, e).SnapshotFailures > failed })
		p.add(t, 1)
	}
	if err := stats(t, e).LastSnapshotErr; !errors.Is(err, syscall.ENOSPC) || e.Err() != nil {
		t.Fatalf("the snapshot failed with %v, the engine with %v", err, e.Err())
	}
	mustExpect(t, e, p.known, engine.Duplicate)
	if source, err := p.check(t, m.CrashClone(0), small); err != nil || source != engine.FromSnapshot {
		t.Fatalf("opened from %v while the disk is full: %v", source, err)
	}
	m.Before(storetest.OpWriteSidecar, nil)
	eventually(t, "a snapshot after there is space", func() bool {
		p.add(t, 1) // a claim during a failing attempt begins no other one
		return slices.Max(sl(e.Snapshots())) > first
	})
	eventually(t, "no failure any more", func() bool { return stats(t, e).LastSnapshotErr == nil })
}

func TestReopenManyTimes(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	p := &past{}
	o := small.WithSnapshotEvery(20)
	o.Clock = (&clock{t: noon}).now
	sources := map[string]int{}
	for i := range 30 {
		e, err := engine.Open(m, o)
		if err != nil {
			t.Fatal(err)
		}
		awaitTrust(t, e)
		sources[stats(t, e).FilterSource]++
		mustExpect(t, e, p.known, engine.Duplicate)
		verifyClean(t, e, len(p.known))
		p.e = e
		p.add(t, 11)
		switch i % 3 {
		case 0:
			crashed := m.CrashClone(0)
			_ = e.Close()
			m = crashed
			continue
		case 1: // no snapshot survives
			crashed := m.CrashClone(0)
			setSidecar(t, crashed, "screen-0", nil)
			setSidecar(t, crashed, "screen-1", nil)
			_ = e.Close()
			m = crashed
			continue
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if m, err = m.Disk().Open("mem", storage.Identity{}); err != nil {
			t.Fatal(err)
		}
	}
	if sources[engine.FromScan] == 0 || sources[engine.FromSnapshot] == 0 {
		t.Fatal("not all ways were used:", sources)
	}
}

// write applies one more batch to an open and idle store, without the engine.
func write(t testing.TB, m *storetest.Mem, b storage.Batch) *storetest.Mem {
	t.Helper()
	b.Seq = m.LastSeq() + 1
	wait, err := m.Apply(&b)
	if err == nil {
		err = errors.Join(wait(), m.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	m, err = m.Disk().Open("mem", storage.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestDamagedStateIsRejectedAtOpen(t *testing.T) {
	p := newPast(t)
	set := func(key, value string) storage.StateWrite {
		return storage.StateWrite{Key: []byte(key), Value: []byte(value)}
	}
	for what, w := range map[string]storage.StateWrite{
		"no oldest week":                 {Key: []byte("moldest")},
		"oldest week cut":                set("moldest", "\x00\x01"),
		"oldest week out of range":       set("moldest", "\xff\xff\xff\xff"),
		"hold of nothing":                set("dlag", ""),
		"hold outside the calendar":      set("dlag", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
		"use of a number without a name": set("u\x00\x01\x9c\xd4\xff\xfe", ""),
		"use of a number, cut":           set("u\x00\x01\x9c\xd4\x00", ""),
		"use in no week":                 set("u\xff\xff\xff\xff\x00\x00", ""),
		"two names with one number":      set("nother", "\x00"),
		"name without a number":          set("nother", ""),
		"known name takes a number":      set("nmail", "\x00"),
		"a name is missing":              {Key: []byte("nbilling")},
		"number of a name too large":     set("nother", "\xff\xff\xff\xff\x0f"),
	} {
		m := write(t, p.CrashClone(0), storage.Batch{State: []storage.StateWrite{w}})
		if _, err := engine.Open(m, small); !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestDamageFoundInTheBackgroundStopsTheEngine(t *testing.T) {
	p := newPast(t)
	ev := p.known[0]
	week, _ := weekbucket.Of(ev.Time)
	key := storage.Bucket{Scope: ev.Scope, Week: week}.AppendKey(nil, ev.ID)
	stranger := storage.Bucket{Scope: "never seen", Week: week}.AppendKey(nil, []byte("x"))
	for what, b := range map[string]storage.Batch{
		"list of dropped buckets":      {State: []storage.StateWrite{{Key: []byte("mdrop"), Value: []byte("\x05abc")}}},
		"a claim of an unknown scope":  {Claims: []storage.ClaimWrite{{Key: stranger, Record: []byte{1, 0, 2, 0, 0, 0}}}},
		"an invalid record":            {Claims: []storage.ClaimWrite{{Key: key, Record: []byte{1}}}},
		"a record of an unknown topic": {Claims: []storage.ClaimWrite{{Key: key, Record: []byte{1, 0, 2, 99, 0, 0}}}},
	} {
		e := open(t, write(t, p.lost(t), b), small)
		eventually(t, what, func() bool { return errors.Is(e.Err(), storage.ErrDamaged) && errors.Is(e.Err(), engine.ErrStopped) })
		if r, err := e.TryClaim(ctx, ev); !errors.Is(err, storage.ErrDamaged) || r.Verdict != engine.Failed {
			t.Errorf("%s: %v %v", what, r.Verdict, err)
		}
	}
	e := open(t, write(t, p.CrashClone(0), storage.Batch{Claims: []storage.ClaimWrite{{Key: key, Record: []byte{5, 0, 2, 0, 0, 0}}}}), small)
	if r, err := e.TryClaim(ctx, ev); !errors.Is(err, storage.ErrNewerFormat) || r.Verdict != engine.Failed {
		t.Errorf("a record in an unknown state: %v %v", r.Verdict, err)
	}
}
