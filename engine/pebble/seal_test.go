package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/crashfs"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A gate blocks one operation, the first that match selects while it is shut, and later ones.
type gate struct {
	match   func(errorfs.Op) bool
	shut    atomic.Bool
	reached chan struct{} // takes one
	open    chan struct{} // closed to release it
	then    error         // the state when the operation is blocked
}

func newGate(match func(errorfs.Op) bool) *gate {
	return &gate{match: match, reached: make(chan struct{}, 1), open: make(chan struct{})}
}

func (g *gate) String() string { return "(gate)" }

func (g *gate) MaybeError(op errorfs.Op) error {
	if g.shut.Load() && g.match(op) {
		select {
		case g.reached <- struct{}{}:
		default:
		}
		<-g.open
		return g.then
	}
	return nil
}

func (g *gate) letGo() {
	g.shut.Store(false)
	close(g.open)
}

// atRun selects the sync of a run: it is written, and not ingested.
func atRun(op errorfs.Op) bool {
	return strings.Contains(op.Path, runPrefix) && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData)
}

const smallPending = 16 << 10

func openSmall(t testing.TB, fsys vfs.FS) *Store {
	t.Helper()
	s, err := Open("store", Options{FS: fsys, SmallTables: true, CacheBytes: 1 << 20, PendingBytes: smallPending})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// mustSealAll moves everything to tables.
func mustSealAll(t testing.TB, s *Store) {
	t.Helper()
	if err := errors.Join(s.sealer.sealAll(), s.core.db.Flush()); err != nil {
		t.Fatal(err)
	}
}

// fill applies batches of n claims until a table is frozen, and returns the newest.
func fill(t testing.TB, s *Store, seq uint64, n int) uint64 {
	t.Helper()
	for frozen := false; !frozen; seq++ {
		before := s.memtable.Active()
		mustApply(t, s, batchOf(seq, n))
		frozen = s.memtable.Active() != before
	}
	return seq - 1
}

func claimsOf(t testing.TB, s *Store) map[string]string {
	t.Helper()
	m := map[string]string{}
	err := s.Scan(context.Background(), storage.Span{}, nil, func(k, v []byte) error { m[string(k)] = string(v); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A history is a workload that writes, overwrites, removes and drops, with the expected contents
// after each batch.
type history struct {
	batches []*storage.Batch         // 1, 2, ...
	drops   map[int][]storage.Bucket // after the batch with that number
}

// newHistory makes n batches. Each week that is dropped is not touched after that.
func newHistory(seed uint64, n int) *history {
	rng := rand.New(rand.NewPCG(seed, 7))
	h := &history{drops: map[int][]storage.Bucket{}}
	oldest := 0
	for seq := 1; seq <= n; seq++ {
		b := &storage.Batch{Seq: uint64(seq), Journal: []byte{byte(seq)}}
		for range 30 {
			key := claimKey(fmt.Sprint("scope", rng.IntN(2)), oldest+rng.IntN(2), uint64(rng.IntN(400)))
			w := storage.ClaimWrite{Key: key, Record: fmt.Appendf(nil, "%d of batch %d", rng.IntN(100), seq)}
			if rng.IntN(4) == 0 {
				w.Record = nil
			}
			b.Claims = append(b.Claims, w)
		}
		h.batches = append(h.batches, b)
		if rng.IntN(9) == 0 {
			w := week0 + weekbucket.Week(oldest)
			h.drops[seq] = []storage.Bucket{{Scope: "scope0", Week: w}, {Scope: "scope1", Week: w}}
			oldest++
		}
	}
	return h
}

// claims returns the expected claims after batches 1 to last and the drops before batch last + 1,
// if all, or before batch last.
func (h *history) claims(last uint64, all bool) map[string]string {
	m := map[string]string{}
	for i, b := range h.batches[:last] {
		for _, w := range b.Claims {
			if w.Record == nil {
				delete(m, string(w.Key))
			} else {
				m[string(w.Key)] = string(w.Record)
			}
		}
		if seq := i + 1; all || seq < int(last) {
			for _, gone := range h.drops[seq] {
				maps.DeleteFunc(m, func(k, _ string) bool { return bytes.HasPrefix([]byte(k), gone.AppendPrefix(nil)) })
			}
		}
	}
	return m
}

// play applies the rest of the history after the store's last batch, keeps some batches unsynced,
// and records what was confirmed and dropped.
func (h *history) play(s *Store, acked *atomic.Uint64) error {
	var waits []func() error
	settle := func(keep int) error {
		for len(waits) > keep {
			if err := waits[0](); err != nil {
				return err
			}
			acked.Add(1)
			waits = waits[1:]
		}
		return nil
	}
	acked.Store(s.LastSeq())
	for seq := int(s.LastSeq()) + 1; seq <= len(h.batches); seq++ {
		wait, err := s.Apply(h.batches[seq-1])
		if err != nil {
			return err
		}
		waits = append(waits, wait)
		if err := settle(3); err != nil {
			return err
		}
		if gone := h.drops[seq]; gone != nil {
			if err := s.Drop(gone); err != nil {
				return err
			}
		}
	}
	return settle(0)
}

// check opens the state after a crash, and expects a prefix of the history: at once, after all was
// sealed, and after another opening. Then it plays the rest.
func (h *history) check(fsys vfs.FS, acked uint64) error {
	o := Options{FS: fsys, SmallTables: true, CacheBytes: 1 << 20, PendingBytes: smallPending}
	s, err := Open("store", o)
	if err != nil {
		return err
	}
	last := s.LastSeq()
	if last < acked {
		err = fmt.Errorf("%d batches were confirmed, %d are there", acked, last)
	}
	var found map[string]string
	look := func(when string) {
		got, buckets := map[string]string{}, map[storage.Bucket]bool{}
		serr := s.Scan(context.Background(), storage.Span{}, nil, func(k, v []byte) error { got[string(k)] = string(v); return nil })
		berr := s.Buckets(func(b storage.Bucket) error { buckets[b] = true; return nil })
		switch {
		case serr != nil || berr != nil:
			err = errors.Join(err, serr, berr)
		case found == nil && !maps.Equal(got, h.claims(last, true)) && !maps.Equal(got, h.claims(last, false)):
			err = errors.Join(err, fmt.Errorf("%s: %d claims are not those after batch %d", when, len(got), last))
		case found != nil && !maps.Equal(got, found):
			err = errors.Join(err, fmt.Errorf("%s: %d claims, there were %d", when, len(got), len(found)))
		}
		want := map[storage.Bucket]bool{}
		for k := range got {
			b, _, _ := storage.SplitKey([]byte(k))
			want[b] = true
			if record, there, cerr := s.Claim([]byte(k)); cerr != nil || !there || string(record) != got[k] {
				err = errors.Join(err, fmt.Errorf("%s: a scan has %q, a look %q: %w", when, got[k], record, cerr))
			}
		}
		if !maps.Equal(buckets, want) {
			err = errors.Join(err, fmt.Errorf("%s: buckets are %v, want %v", when, buckets, want))
		}
		found = got
	}
	look("opened")
	err = errors.Join(err, s.sealer.sealAll())
	look("sealed")
	err = errors.Join(err, s.Close())
	if err != nil {
		return err
	}
	if s, err = Open("store", o); err != nil {
		return err
	}
	look("opened again")
	if gone := h.drops[int(last)]; gone != nil { // as the engine does
		err = errors.Join(err, s.Drop(gone))
	}
	var again atomic.Uint64
	err = errors.Join(err, h.play(s, &again))
	found, last = nil, uint64(len(h.batches))
	look("played to its end")
	return errors.Join(err, s.Close())
}

// sealCrashes cuts the power at operations of a workload that seals repeatedly, and returns the
// errors found.
func sealCrashes(t *testing.T, seed uint64, step int64) (problems []string) {
	t.Helper()
	h := newHistory(seed, 50)
	var acked atomic.Uint64
	workload := func(fsys vfs.FS) {
		acked.Store(0)
		s := openSmall(t, fsys)
		if err := h.play(s, &acked); err != nil {
			t.Error(err)
		}
		mustClose(t, s)
	}
	start := crashfs.New()
	mustClose(t, openSmall(t, start))
	everyCrashNoting(t, start, step, &acked, workload, func(what string, fsys *crashfs.FS, acked uint64) {
		if err := h.check(fsys, acked); err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", what, err))
		}
	})
	return problems
}

// everyCrashNoting is everyCrash that also passes what was confirmed when the power failed.
func everyCrashNoting(t *testing.T, start *crashfs.FS, step int64, acked *atomic.Uint64, work func(vfs.FS),
	check func(what string, fsys *crashfs.FS, acked uint64)) {
	t.Helper()
	clone := func() *crashfs.FS { return start.CrashClone(vfs.CrashCloneCfg{}) }
	count := &noting{snapshots: snapshots{at: -1}, acked: acked}
	work(errorfs.Wrap(clone(), count))
	for i, kept := range []int{0, 50, 100} {
		for at := step * int64(i) / 3; at < count.n.Load(); at += step {
			mem := clone()
			c := &noting{snapshots: snapshots{fs: mem, kept: kept, at: at}, acked: acked}
			what := fmt.Sprintf("power cut before operation %d of %d, %d %% kept", at, count.n.Load(), kept)
			within(t, patienceInTests, what, func() {
				work(errorfs.Wrap(mem, c))
				if c.got != nil {
					check(what, c.got, c.told)
				}
			})
		}
	}
}

// noting is snapshots that record what was confirmed.
type noting struct {
	snapshots
	acked *atomic.Uint64
	told  uint64
}

func (c *noting) MaybeError(errorfs.Op) error {
	told := c.acked.Load() // before the power is cut
	if c.cut() {
		c.told = told
	}
	return nil
}

func TestAPowerCutWhileSealingLeavesAPrefix(t *testing.T) {
	t.Parallel()
	seeds := uint64(1)
	if os.Getenv("HAPAX_SWEEP") == "all" {
		seeds = 5
	}
	for seed := range seeds {
		for _, problem := range sealCrashes(t, seed, stepInTests(61)) {
			t.Errorf("seed %d: %s", seed, problem)
		}
	}
}

// Packed batches are removed after their claims are in tables: after a power failure in between
// they are in one place or the other.
func TestPackedBatchesAreRemovedAfterTheIngest(t *testing.T) {
	for _, broken := range []bool{false, true} {
		mem := crashfs.New()
		g := newGate(func(op errorfs.Op) bool { return op.Kind == errorfs.OpLink })
		s := openSmall(t, errorfs.Wrap(mem, g))
		const n = 20
		g.shut.Store(true)
		last := fill(t, s, 1, n)
		<-g.reached
		if broken {
			if err := s.packedLog.forgetPacked(last); err != nil {
				t.Fatal(err)
			}
		}
		mustApply(t, s, batchOf(last+1, n)) // with it the log contains the earlier writes
		crashed := mem.CrashClone(vfs.CrashCloneCfg{})
		g.letGo()
		mustClose(t, s)
		s = openSmall(t, crashed)
		_, err := prefixOf(s, n)
		if broken != (err != nil) {
			t.Errorf("removed first: %v; what is left is a prefix: %v", broken, err)
		}
		mustClose(t, s)
	}
}

// A run is ingested once. If that of an older table were ingested again after a newer one, old
// records would replace newer ones.
func TestARunThatIsIngestedTwiceIsSeenToReplaceNewerClaims(t *testing.T) {
	for _, broken := range []bool{false, true} {
		s := openSmall(t, vfs.NewMem())
		key := claimKey("scope0", 0, 1)
		var older memtable.Moment
		for seq, record := range []string{"older", "newer"} {
			mustApply(t, s, &storage.Batch{Seq: uint64(seq) + 1, Claims: []storage.ClaimWrite{{Key: key, Record: []byte(record)}}})
			if seq == 0 {
				view, _ := s.memtable.View(func(v *memtable.View) error { older = v.Moment(); return nil })
				defer view.Release()
			}
			mustSealAll(t, s)
		}
		if broken {
			paths, err := s.sealer.files.write(older)
			if err == nil {
				err = s.core.db.Ingest(t.Context(), paths)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		record, found, err := s.reader.get(spaced(claimSpace, key))
		if err != nil || !found || (string(record) == "older") != broken {
			t.Errorf("ingested twice: %v; the record is %q, %v, %v", broken, record, found, err)
		}
		mustClose(t, s)
	}
}

// Claims in tables are durable at once, batches in the log when it is synced. While it is not,
// nothing is sealed.
func TestClaimsAreNotSealedBeforeTheirBatchesAreDurable(t *testing.T) {
	for _, broken := range []bool{false, true} {
		mem := crashfs.New()
		g := newGate(onLog(errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo))
		s := openSmall(t, errorfs.Wrap(mem, g))
		const n = 20
		mustApply(t, s, batchOf(1, n))
		g.shut.Store(true)
		var waits []func() error
		var frozen *memtable.Table
		for seq := uint64(2); frozen == nil; seq++ {
			active := s.memtable.Active()
			wait, err := s.Apply(batchOf(seq, n))
			if err != nil {
				t.Fatal(err)
			}
			waits = append(waits, wait)
			if s.memtable.Active() != active {
				frozen = active
			}
		}
		if broken {
			paths, err := s.sealer.files.write(s.memtable.Moment(frozen))
			if err == nil {
				err = s.core.db.Ingest(context.Background(), paths)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		crashed := mem.CrashClone(vfs.CrashCloneCfg{})
		g.letGo()
		for _, wait := range waits {
			if err := wait(); err != nil {
				t.Error(err)
			}
		}
		<-frozen.Done()
		mustClose(t, s)
		s = openSmall(t, crashed)
		_, err := prefixOf(s, n)
		if broken != (err != nil) {
			t.Errorf("sealed before the sync: %v; what is left is a prefix: %v", broken, err)
		}
		mustClose(t, s)
	}
}

// As long as the log is not synced, the seal of a frozen table writes no file and attests nothing.
func TestASealWaitsForTheSyncOfItsBatches(t *testing.T) {
	mem := crashfs.New()
	g := newGate(onLog(errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo))
	s := openSmall(t, errorfs.Wrap(mem, g))
	const n = 20
	mustApply(t, s, batchOf(1, n)) // ends the startup
	g.shut.Store(true)
	var waits []func() error
	frozen := s.memtable.Active()
	for seq := uint64(2); s.memtable.Active() == frozen; seq++ {
		wait, err := s.Apply(batchOf(seq, n))
		if err != nil {
			t.Fatal(err)
		}
		waits = append(waits, wait)
	}
	<-g.reached
	select {
	case <-frozen.Done():
		t.Error("a table was sealed before its batches were durable")
	case <-time.After(200 * time.Millisecond): // several times what a seal takes, and attestIdle
	}
	crashed := mem.CrashClone(vfs.CrashCloneCfg{})
	for name := range filesOf(t, crashed, "store") {
		if strings.HasPrefix(name, runPrefix) {
			t.Errorf("%s was written", name)
		}
	}
	g.letGo()
	for _, wait := range waits {
		if err := wait(); err != nil {
			t.Error(err)
		}
	}
	mustClose(t, s)
	s = openSmall(t, crashed)
	if last, err := prefixOf(s, n); err != nil || last != 1 {
		t.Errorf("after a power cut the newest batch is %d, want 1: %v", last, err)
	}
	mustClose(t, s)
}

// noDropIn breaks a rule: that a bucket of a frozen table was dropped is not noticed.
func noDropIn(s *Store) {
	s.packedLog.ingest.Lock()
	defer s.packedLog.ingest.Unlock()
	s.sealer.isDropped = func(memtable.Moment) bool { return false }
}

// withoutNotes breaks a rule: drops are not noted for the packed batches.
func withoutNotes(s *Store) {
	s.packedLog.ingest.Lock()
	defer s.packedLog.ingest.Unlock()
	for prefix := range s.packedLog.dropNotes {
		must(s.core.db.Delete(spaced(dropSpace, []byte(prefix)), pebble.Sync))
	}
}

// A bucket that is dropped while its claims are being moved into a table is removed from there,
// from the journal, and from memory.
func TestADropDuringASealIsNotUndone(t *testing.T) {
	for _, c := range []struct {
		name          string
		breaks        func(s *Store) // after the drop
		sealed, crash bool           // seen to be undone once sealed, and after a power cut right after the drop
	}{
		{"as it is", func(*Store) {}, false, false},
		{"the run is not written again", noDropIn, true, false},
		{"the drop is not noted", withoutNotes, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem := crashfs.New()
			g := newGate(atRun)
			s := openSmall(t, errorfs.Wrap(mem, g))
			g.shut.Store(true)
			frozen := s.memtable.Active()
			last := fill(t, s, 1, 20)
			<-g.reached
			gone := []storage.Bucket{{Scope: "scope0", Week: week0}, {Scope: "scope1", Week: week0}}
			if err := s.Drop(gone); err != nil {
				t.Fatal(err)
			}
			c.breaks(s)
			want := model(last, 20)
			maps.DeleteFunc(want, func(k, _ string) bool {
				return strings.HasPrefix(k, "claim "+string(gone[0].AppendPrefix(nil))) ||
					strings.HasPrefix(k, "claim "+string(gone[1].AppendPrefix(nil)))
			})
			assertContents(t, s, want)
			crashed := mem.CrashClone(vfs.CrashCloneCfg{})
			g.letGo()
			<-frozen.Done()
			isUndone := func(when string, s *Store, expected bool) {
				t.Helper()
				got, err := contents(s)
				if err != nil || maps.Equal(got, want) == expected {
					t.Errorf("%s: undone is not %v: %v", when, expected, err)
				}
			}
			isUndone("sealed", s, c.sealed)
			mustClose(t, s)
			s = openSmall(t, crashed)
			isUndone("after a power cut", s, c.crash)
			mustSealAll(t, s)
			isUndone("after a power cut, sealed", s, c.crash)
			mustClose(t, s)
		})
	}
}

// While claims are written to a table, a drop waits: the table would be newer than the drop.
func TestADropWaitsForAnIngest(t *testing.T) {
	g := newGate(func(op errorfs.Op) bool { return op.Kind == errorfs.OpLink })
	s := openSmall(t, errorfs.Wrap(vfs.NewMem(), g))
	defer mustClose(t, s)
	g.shut.Store(true)
	frozen := s.memtable.Active()
	fill(t, s, 1, 20)
	<-g.reached
	gone := []storage.Bucket{{Scope: "scope0", Week: week0}, {Scope: "scope1", Week: week0}}
	dropped := make(chan error, 1)
	go func() { dropped <- s.Drop(gone) }()
	for i := 0; i < 10_000 && len(dropped) == 0; i++ {
		runtime.Gosched() // so that a drop that does not wait is seen to return
	}
	if len(dropped) != 0 {
		t.Error("Drop has not waited")
	}
	g.letGo()
	if err := <-dropped; err != nil {
		t.Fatal(err)
	}
	<-frozen.Done()
	for key := range claimsOf(t, s) {
		if b, _, err := storage.SplitKey([]byte(key)); err != nil || slices.Contains(gone, b) {
			t.Fatalf("a claim of %v is back: %v", b, err)
		}
	}
}

// A seal that fails fails the store, even if the disk accepts the writes: no caller waits for space
// forever.
func TestASealThatFailsIsTold(t *testing.T) {
	inj := &failing{match: func(op errorfs.Op) bool { return op.Kind == errorfs.OpOpen && strings.Contains(op.Path, runPrefix) }}
	mem := vfs.NewMem()
	s := openSmall(t, errorfs.Wrap(mem, inj))
	const n = 20
	inj.on.Store(true)
	var acked atomic.Uint64
	within(t, patienceInTests, "a store that cannot seal", func() {
		if err := run(s, 1000, n, &acked); !errors.Is(err, errorfs.ErrInjected) {
			t.Errorf("after %d batches: %v", acked.Load(), err)
		}
		if err := s.Close(); !errors.Is(err, errorfs.ErrInjected) {
			t.Errorf("Close: %v", err)
		}
	})
	s = openSmall(t, mem)
	defer mustClose(t, s)
	if last, err := prefixOf(s, n); err != nil || last < acked.Load() {
		t.Errorf("batches to %d were confirmed, %d are there: %v", acked.Load(), last, err)
	}
}

// A seal that waits for batches to be durable ends when they cannot be.
func TestNoSealWaitsForAFailedLog(t *testing.T) {
	g := newGate(onLog(errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo))
	g.then = errorfs.ErrInjected
	s := openSmall(t, errorfs.Wrap(vfs.NewMem(), g))
	g.shut.Store(true)
	for seq := uint64(1); s.memtable.Frozen() == nil; seq++ {
		if _, err := s.Apply(batchOf(seq, 20)); err != nil {
			t.Fatal(err)
		}
	}
	<-g.reached
	g.letGo()
	within(t, patienceInTests, "a seal of batches that are not durable", func() {
		<-s.core.fault.failed
		if err := s.Close(); !errors.Is(err, errorfs.ErrInjected) {
			t.Error(err)
		}
		<-s.sealer.sealed
	})
}

// The note of a drop remains until the last packed batch with dropped claims is removed: those of
// the frozen table are removed before others.
func TestADropIsNotedForBothTables(t *testing.T) {
	mem := crashfs.New()
	g := newGate(atRun)
	s := openSmall(t, errorfs.Wrap(mem, g))
	const n = 20
	g.shut.Store(true)
	frozen := s.memtable.Active()
	last := fill(t, s, 1, n)
	<-g.reached
	for range 2 {
		last++
		mustApply(t, s, batchOf(last, n))
	}
	gone := []storage.Bucket{{Scope: "scope0", Week: week0}, {Scope: "scope1", Week: week0}}
	if err := s.Drop(gone); err != nil {
		t.Fatal(err)
	}
	g.letGo()
	<-frozen.Done()
	// with it the log contains the removal of the frozen table's batches
	mustApply(t, s, &storage.Batch{Seq: last + 1})
	want := claimsOf(t, s)
	crashed := mem.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	s = openSmall(t, crashed)
	defer mustClose(t, s)
	if got := claimsOf(t, s); len(want) == 0 || !maps.Equal(got, want) {
		t.Errorf("%d claims after a power cut, there were %d", len(got), len(want))
	}
	mustSealAll(t, s)
	err := s.reader.each(prefixSpan([]byte{dropSpace}), func(it *pebble.Iterator) error {
		return fmt.Errorf("the note %x stays when nothing needs it any more", it.Key())
	})
	if err != nil || len(s.packedLog.dropNotes) != 0 {
		t.Error(err, s.packedLog.dropNotes)
	}
}

// A backup that is taken while a seal is in progress has everything up to its newest batch.
func TestABackupDuringASealIsWhole(t *testing.T) {
	for _, broken := range []bool{false, true} {
		mem := vfs.NewMem()
		g := newGate(func(op errorfs.Op) bool { return op.Kind == errorfs.OpCreate && strings.Contains(op.Path, stageName) })
		s := openSmall(t, errorfs.Wrap(mem, g))
		const n = 20
		mustApply(t, s, batchOf(1, n))
		g.shut.Store(true)
		done := make(chan error, 1)
		go func() { done <- s.Backup(context.Background(), "backup") }()
		<-g.reached // Pebble has listed its tables, and not copied the log
		frozen := s.memtable.Active()
		if broken {
			s.packedLog.ingest.Unlock() // the backup's
		}
		last := fill(t, s, 2, n)
		if broken {
			<-frozen.Done()
			s.packedLog.ingest.Lock()
		}
		mustApply(t, s, batchOf(last+1, n)) // with it the log contains all earlier writes
		g.letGo()
		within(t, patienceInTests, "a backup", func() {
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		mustClose(t, s)
		b, err := Open("backup", Options{FS: mem, SmallTables: true})
		if err != nil {
			t.Fatal(err)
		}
		_, err = prefixOf(b, n)
		if broken != (err != nil) {
			t.Errorf("beside a seal: %v; the backup is a prefix: %v", broken, err)
		}
		mustClose(t, b)
	}
}

// elsewhere is a file system whose directory "backup" is on another disk, which is slow with the
// first table.
type elsewhere struct {
	vfs.FS
	reached, open chan struct{}
	once          sync.Once
}

func isElsewhere(path string) bool { return strings.HasPrefix(path, "backup/") }

func (e *elsewhere) Link(from, to string) error {
	if isElsewhere(from) != isElsewhere(to) {
		return &os.LinkError{Op: "link", Old: from, New: to, Err: syscall.EXDEV}
	}
	return e.FS.Link(from, to)
}

func (e *elsewhere) Create(path string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if isElsewhere(path) && isTable(path) {
		e.once.Do(func() {
			close(e.reached)
			<-e.open
		})
	}
	return e.FS.Create(path, c)
}

// Tables are copied to another disk, which may take hours. Claims and seals continue meanwhile.
func TestABackupToAnotherDiskHoldsNobodyUp(t *testing.T) {
	fsys := &elsewhere{FS: vfs.NewMem(), reached: make(chan struct{}), open: make(chan struct{})}
	s := openSmall(t, fsys)
	const n = 20
	last := fill(t, s, 1, n)
	mustSealAll(t, s)
	done := make(chan error, 1)
	go func() { done <- s.Backup(context.Background(), "backup") }()
	<-fsys.reached
	within(t, patienceInTests, "claims beside a backup", func() {
		for range 3 {
			last = fill(t, s, last+1, n)
			mustSealAll(t, s)
		}
		if err := s.TrimJournal(2); err != nil {
			t.Error(err)
		}
	})
	close(fsys.open)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if names, err := fsys.List("store"); err != nil || slices.Contains(names, stageName) {
		t.Errorf("the stage is left: %v", err)
	}
	mustClose(t, s)
	b, err := Open("backup", Options{FS: fsys, SmallTables: true})
	if err != nil {
		t.Fatal(err)
	}
	if found, err := prefixOf(b, n); err != nil || found == 0 {
		t.Errorf("the backup has %d batches: %v", found, err)
	}
	mustClose(t, b)
}

// A canceled backup leaves nothing at its destination, and nothing in the store.
func TestABackupThatIsCalledOffLeavesNothing(t *testing.T) {
	fsys := &elsewhere{FS: vfs.NewMem(), reached: make(chan struct{}), open: make(chan struct{})}
	s := openSmall(t, fsys)
	defer mustClose(t, s)
	fill(t, s, 1, 20)
	mustSealAll(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Backup(ctx, "backup") }()
	<-fsys.reached
	cancel()
	close(fsys.open)
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for _, dir := range []string{"backup", s.core.disk.path(stageName)} {
		if _, err := fsys.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}

// Of two backups to one path the later one fails, and removes nothing of the other.
func TestTwoBackupsToOnePlace(t *testing.T) {
	for range 5 {
		fsys := vfs.NewMem()
		s := openSmall(t, fsys)
		fill(t, s, 1, 20)
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- s.Backup(context.Background(), "backup") }()
		}
		if a, b := <-done, <-done; (a == nil) == (b == nil) || !errors.Is(errors.Join(a, b), fs.ErrExist) {
			t.Errorf("one is to fail, as there is a directory: %v; %v", a, b)
		}
		mustClose(t, s)
		b, err := Open("backup", Options{FS: fsys, SmallTables: true})
		if err != nil {
			t.Fatal(err)
		}
		if found, err := prefixOf(b, 20); err != nil || found == 0 {
			t.Errorf("the backup has %d batches: %v", found, err)
		}
		mustClose(t, b)
	}
}

func TestABackupThatWaitsForAnotherCanBeCalledOff(t *testing.T) {
	fsys := &elsewhere{FS: vfs.NewMem(), reached: make(chan struct{}), open: make(chan struct{})}
	s := openSmall(t, fsys)
	defer mustClose(t, s)
	letGo := sync.OnceFunc(func() { close(fsys.open) })
	defer letGo()
	fill(t, s, 1, 20)
	mustSealAll(t, s)
	done := make(chan error, 1)
	go func() { done <- s.Backup(context.Background(), "backup") }()
	<-fsys.reached
	within(t, patienceInTests, "the end of a backup that is called off", func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := s.Backup(ctx, "another"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	letGo()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// While a seal continues, the next table fills up to its limit, and then Apply waits.
func TestWhatIsNotSealedIsBounded(t *testing.T) {
	g := newGate(atRun)
	s := openSmall(t, errorfs.Wrap(vfs.NewMem(), g))
	const n = 20
	g.shut.Store(true)
	last := fill(t, s, 1, n)
	<-g.reached
	for !s.memtable.IsFull() {
		last++
		mustApply(t, s, batchOf(last, n))
	}
	if size := s.memtable.Active().Size(); size > smallPending+smallPending/4 {
		t.Errorf("the active table has %d bytes, its limit is %d", size, smallPending)
	}
	frozen := s.memtable.Frozen()
	applied := make(chan error, 1)
	go func() {
		wait, err := s.Apply(batchOf(last+1, n))
		select {
		case <-frozen.Done():
		default:
			t.Error("Apply has not waited for the seal")
		}
		if err == nil {
			err = wait()
		}
		applied <- err
	}()
	for range 1000 {
		runtime.Gosched() // so that an Apply that does not wait is seen to return
	}
	g.letGo()
	within(t, patienceInTests, "Apply after the seal", func() {
		if err := <-applied; err != nil {
			t.Error(err)
		}
	})
	assertContents(t, s, model(last+1, n))
	mustClose(t, s)
}

// A scan continues during batches and seals, and shows none of it.
func TestAScanIsOfOneMomentAcrossSeals(t *testing.T) {
	s := openSmall(t, vfs.NewMem())
	defer mustClose(t, s)
	last := fill(t, s, 1, 20)
	mustSealAll(t, s)
	last++
	mustApply(t, s, batchOf(last, 20))
	before := claimsOf(t, s)
	got := map[string]string{}
	err := s.Scan(context.Background(), storage.Span{}, func() {
		for range 2 {
			last = fill(t, s, last+1, 20)
			mustSealAll(t, s)
		}
		b := batchOf(last+1, 20)
		for i := range b.Claims { // and removes the existing claims
			b.Claims = append(b.Claims, storage.ClaimWrite{Key: batchOf(1, 20).Claims[i].Key})
		}
		mustApply(t, s, b)
		mustSealAll(t, s)
	}, func(k, v []byte) error { got[string(k)] = string(v); return nil })
	if err != nil || !maps.Equal(got, before) {
		t.Fatalf("%d claims, %d were there: %v", len(got), len(before), err)
	}
	if len(claimsOf(t, s)) == len(before) {
		t.Fatal("nothing has changed: the test tests nothing")
	}
}

// watched calls opening where a cursor is opened.
type watched struct {
	cursors
	opening func()
}

func (w watched) newCursor(span pebble.KeyRange) (*cursor, error) {
	w.opening()
	return w.cursors.newCursor(span)
}

// A scan opens its iterator at the moment in which it reads memory: nothing can be applied or
// sealed in between.
func TestMemoryAndTheIteratorAreOfOneMoment(t *testing.T) {
	s := openSmall(t, vfs.NewMem())
	defer mustClose(t, s)
	mustApply(t, s, batchOf(1, 20))
	looked, opened := false, 0
	var changes sync.WaitGroup
	defer changes.Wait()
	original := s.claimReader.cursors
	s.claimReader.cursors = watched{original, func() {
		opened++
		changed := make(chan struct{})
		changes.Go(func() {
			s.memtable.Drop(nil)
			close(changed)
		})
		for range 1000 {
			runtime.Gosched() // so that a change that does not wait is seen
		}
		select {
		case <-changed:
			t.Error("batches may be applied and sealed where the iterator is opened")
		default:
		}
		if !looked {
			t.Error("the iterator is opened before memory was looked at")
		}
	}}
	look := func(*memtable.View) { looked = true }
	err := s.claimReader.claims(prefixSpan([]byte{claimSpace}), look, func(*memtable.View, *cursor) error { return nil })
	err = errors.Join(err, s.Scan(context.Background(), storage.Span{}, nil, func(_, _ []byte) error { return nil }),
		s.Buckets(func(storage.Bucket) error { return nil }))
	_, berr := s.BucketBytes(storage.Bucket{Scope: "scope0", Week: week0})
	s.claimReader.cursors = original
	if err = errors.Join(err, berr); err != nil || opened != 4 {
		t.Fatalf("%d iterators: %v", opened, err)
	}
}

// At no step of a seal is a claim neither in memory nor in tables: it would look new.
func TestClaimsAreThereAllThroughASeal(t *testing.T) {
	for step, match := range map[string]func(errorfs.Op) bool{
		"the run is written": atRun,
		"it becomes a table": func(op errorfs.Op) bool { return op.Kind == errorfs.OpLink },
		"the MANIFEST has it": func(op errorfs.Op) bool {
			return op.Kind == errorfs.OpFileSync && strings.Contains(op.Path, manifestPrefix)
		},
		"it is attested": func(op errorfs.Op) bool { return op.Kind == errorfs.OpRename && strings.Contains(op.Path, attestName) },
		"its file goes":  func(op errorfs.Op) bool { return op.Kind == errorfs.OpRemove && strings.Contains(op.Path, runPrefix) },
	} {
		t.Run(step, func(t *testing.T) {
			g := newGate(match)
			s := openSmall(t, errorfs.Wrap(vfs.NewMem(), g))
			defer mustClose(t, s)
			defer g.letGo()
			const n = 20
			g.shut.Store(true)
			last := fill(t, s, 1, n)
			within(t, patienceInTests, "a seal", func() { <-g.reached })
			for seq := uint64(1); seq <= last; seq++ {
				for _, w := range batchOf(seq, n).Claims {
					if record, found, err := s.Claim(w.Key); err != nil || !found || !bytes.Equal(record, w.Record) {
						t.Fatalf("a claim of batch %d: %q, %v, %v", seq, record, found, err)
					}
				}
			}
			assertContents(t, s, model(last, n))
			if step != "it becomes a table" {
				return
			}
			// The control: if memory forgot the table here, its claims would be nowhere.
			key := spaced(claimSpace, batchOf(1, n).Claims[0].Key)
			indexed, _ := s.core.recentRuns.Get(key)
			_, found, err := s.reader.get(key)
			if err != nil || indexed != nil || found {
				t.Errorf("without the frozen table, a claim of it is found: %q, %v, %v", indexed, found, err)
			}
		})
	}
}

// Scans during batches and seals show whole batches, and each one only with all earlier ones.
func TestScansBesideSealsShowAPrefix(t *testing.T) {
	s := openSmall(t, vfs.NewMem())
	defer mustClose(t, s)
	const last, n = 100, 20
	written := make(chan error, 1)
	go func() {
		var acked atomic.Uint64
		written <- run(s, last, n, &acked)
	}()
	for seen, ended := 0, false; !ended; {
		select {
		case err := <-written:
			if err != nil {
				t.Fatal(err)
			}
			ended = true // one more scan
		default:
		}
		got := claimsOf(t, s)
		if len(got) < seen || len(got)%n != 0 {
			t.Fatalf("%d claims after %d, batches have %d", len(got), seen, n)
		}
		seen = len(got)
		for k := range model(uint64(seen/n), n) {
			if key, ok := strings.CutPrefix(k, "claim "); ok && got[key] == "" {
				t.Fatalf("%d claims are not the first", seen)
			}
		}
		if ended && seen != last*n {
			t.Fatalf("%d claims at the end", seen)
		}
	}
}

// A bucket whose claims were all removed is empty, wherever the claims and the removals are.
func TestABucketIsEmptyOnceItsClaimsAreRemoved(t *testing.T) {
	kept, emptied := storage.Bucket{Scope: "scope0", Week: week0}, storage.Bucket{Scope: "scope1", Week: week0}
	for _, where := range []string{"tables and memory", "the frozen table and memory", "memory", "tables"} {
		t.Run(where, func(t *testing.T) {
			g := newGate(atRun)
			s := openSmall(t, errorfs.Wrap(vfs.NewMem(), g))
			defer mustClose(t, s)
			put, remove := &storage.Batch{Seq: 1}, &storage.Batch{Seq: 2}
			for i := range uint64(10) {
				for _, scope := range []string{kept.Scope, emptied.Scope} {
					put.Claims = append(put.Claims, storage.ClaimWrite{Key: claimKey(scope, 0, i), Record: []byte("r")})
				}
				remove.Claims = append(remove.Claims, storage.ClaimWrite{Key: claimKey(emptied.Scope, 0, i)})
			}
			remove.Claims = append(remove.Claims, storage.ClaimWrite{Key: claimKey(kept.Scope, 0, 3)})
			mustApply(t, s, put)
			switch where {
			case "tables and memory":
				mustSealAll(t, s)
			case "the frozen table and memory":
				g.shut.Store(true)
				s.sealer.freeze()
				<-g.reached
			}
			mustApply(t, s, remove)
			if where == "tables" {
				mustSealAll(t, s)
			}
			var got []storage.Bucket
			if err := s.Buckets(func(b storage.Bucket) error { got = append(got, b); return nil }); err != nil {
				t.Error(err)
			}
			if !slices.Equal(got, []storage.Bucket{kept}) {
				t.Errorf("the buckets are %v", got)
			}
			if n, err := s.BucketBytes(emptied); err != nil || n != 0 {
				t.Errorf("the empty bucket has %d bytes: %v", n, err)
			}
			if n, err := s.BucketBytes(kept); err != nil || n == 0 {
				t.Errorf("the other bucket has %d bytes: %v", n, err)
			}
			if g.shut.Load() {
				g.letGo()
			}
		})
	}
}

// After a clean close there are no packed batches: all claims are in tables. wantNoRuns reads only
// the names, because an open store may remove a file meanwhile.
func wantNoRuns(t *testing.T, fsys vfs.FS) {
	t.Helper()
	names, err := fsys.List("store")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, runPrefix) {
			t.Errorf("%s is left", name)
		}
	}
}

func TestACleanCloseSeals(t *testing.T) {
	mem := vfs.NewMem()
	s := openSmall(t, mem)
	for seq := uint64(1); seq <= 5; seq++ {
		mustApply(t, s, batchOf(seq, 10))
	}
	mustClose(t, s)
	s = openSmall(t, mem)
	defer mustClose(t, s)
	if newest := s.memtable.Newest(); newest != 0 {
		t.Errorf("batch %d came back from the journal", newest)
	}
	assertContents(t, s, model(5, 10))
	wantNoRuns(t, mem)
}

// After a kill there are at most two tables' worth of packed batches, and the files of a run are
// removed.
func TestAKillDuringASealIsOpenedWhole(t *testing.T) {
	mem := crashfs.New()
	g := newGate(atRun)
	s := openSmall(t, errorfs.Wrap(mem, g))
	g.shut.Store(true)
	last := fill(t, s, 1, 20)
	<-g.reached
	for range 3 {
		last++
		mustApply(t, s, batchOf(last, 20))
	}
	killed := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng(1)})
	g.letGo()
	mustClose(t, s)
	rewrite(t, killed, "store/"+runPrefix+"9"+tmpSuffix, []byte("of a longer run"))
	s = openSmall(t, killed)
	defer mustClose(t, s)
	assertContents(t, s, model(last, 20))
	if frozen := s.memtable.Frozen(); frozen != nil {
		<-frozen.Done()
	}
	mustSealAll(t, s)
	assertContents(t, s, model(last, 20))
	wantNoRuns(t, killed)
}

// After the removal of the packed batches, only the MANIFEST refers to a run. It is attested
// before: damage to its end, which looks like a torn one, is detected, also right after the seal.
func TestAManifestThatLostARunIsDamaged(t *testing.T) {
	mem := crashfs.New()
	s := openSmall(t, mem)
	frozen := s.memtable.Active()
	last := fill(t, s, 1, 20) + 1
	<-frozen.Done()
	mustApply(t, s, batchOf(last, 20)) // with it the log contains the removal
	files := filesOf(t, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng(1)}), "store")
	mustClose(t, s)
	var manifest string
	for name := range files {
		if strings.HasPrefix(name, manifestPrefix) {
			manifest = max(manifest, name)
		}
	}
	whole := files[manifest]
	c := make(tally)
	for off := len(whole) - 120; off < len(whole); off += 7 {
		bad := slices.Clone(whole)
		bad[off] ^= 4
		what := fmt.Sprintf("%s, byte %d of %d", manifest, off, len(whole))
		c.add(manifest, outcomeOf(t, what, diskOf(t, files, manifest, bad), model(last, 20)))
		c.add(manifest, outcomeOf(t, what+", cut", diskOf(t, files, manifest, whole[:off]), model(last, 20)))
	}
	if c.report(t) != 0 {
		t.Error("a run was lost and nobody said so")
	}
}

// A chdir changes the directory of the process when it is asked for its error.
type chdir struct {
	context.Context
	to string
}

func (c chdir) Err() error { return os.Chdir(c.to) }

func TestTheProcessMayChangeItsDirectoryDuringABackup(t *testing.T) {
	home := t.TempDir()
	t.Chdir(home)
	s := mustOpen(t, nil, "store", true)
	mustApply(t, s, batchOf(1, 20))
	if err := s.Backup(chdir{t.Context(), t.TempDir()}, "backup"); err != nil {
		t.Fatal(err)
	}
	mustApply(t, s, batchOf(2, 20))
	mustClose(t, s)
	for name, last := range map[string]uint64{"store": 2, "backup": 1} {
		s := mustOpen(t, nil, filepath.Join(home, name), true)
		assertContents(t, s, model(last, 20))
		mustClose(t, s)
	}
}

// linkless is a file system without hard links, as on some network and removable disks.
type linkless struct{ err error }

func (linkless) String() string { return "(linkless)" }

func (l linkless) MaybeError(op errorfs.Op) error {
	if op.Kind == errorfs.OpLink {
		return &os.LinkError{Op: "link", Old: op.Path, Err: l.err}
	}
	return nil
}

// Without hard links, runs are copied into the store, and backups out of it.
func TestAFileSystemWithoutHardLinksWillDo(t *testing.T) {
	for _, err := range []error{syscall.EPERM, syscall.ENOTSUP, syscall.EXDEV} {
		t.Run(err.Error(), func(t *testing.T) {
			mem := crashfs.New()
			s := openSmall(t, errorfs.Wrap(mem, linkless{err}))
			const n = 20
			frozen := s.memtable.Active()
			last := fill(t, s, 1, n) + 1
			select {
			case <-frozen.Done():
			case <-s.core.fault.failed:
				t.Fatal(s.core.fault.get())
			}
			// with it the log contains the removal of the packed batches
			mustApply(t, s, batchOf(last, n))
			if err := s.Backup(context.Background(), "backup"); err != nil {
				t.Fatal(err)
			}
			crashed := mem.CrashClone(vfs.CrashCloneCfg{})
			mustClose(t, s)
			for _, dir := range []string{"store", "backup"} {
				s, err := Open(dir, Options{FS: crashed, SmallTables: true})
				if err != nil {
					t.Fatal(err)
				}
				if found, err := prefixOf(s, n); err != nil || found != last {
					t.Errorf("%s: %d of %d batches: %v", dir, found, last, err)
				}
				mustClose(t, s)
			}
		})
	}
}

// A backup that copies tables ends with its context, since Close of an engine waits for it.
func TestABackupWithoutHardLinksEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	copied := 0
	noting := &failing{match: func(op errorfs.Op) bool {
		if op.Kind == errorfs.OpCreate && isElsewhere(op.Path) && isTable(op.Path) {
			copied++
			cancel()
		}
		return false
	}}
	mem := vfs.NewMem()
	s := openSmall(t, errorfs.Wrap(errorfs.Wrap(mem, linkless{syscall.EPERM}), noting))
	const last, n = 6, 20
	for seq := uint64(1); seq <= last; seq++ {
		mustApply(t, s, batchOf(seq, n))
		mustSealAll(t, s)
	}
	noting.on.Store(true)
	if err := s.Backup(ctx, "backup"); !errors.Is(err, context.Canceled) || copied != 1 {
		t.Errorf("%d tables were copied until the backup ended: %v", copied, err)
	}
	if _, err := mem.Stat("backup"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of the backup is there: %v", err)
	}
	if err := s.Backup(t.Context(), "backup"); err != nil || copied == 1 {
		t.Errorf("the next backup, after %d tables: %v", copied, err)
	}
	mustApply(t, s, batchOf(last+1, n))
	mustClose(t, s)
	s = mustOpen(t, mem, "backup", true)
	assertContents(t, s, model(last, n))
	mustClose(t, s)
}

// An invalid packed batch is found before anything is changed.
func TestADamagedPackedBatchIsRefusedUntouched(t *testing.T) {
	for what, bad := range map[string]struct {
		seq   uint64
		value []byte
	}{
		"cut short":   {2, memtable.AppendPacked(nil, batchOf(2, 3).Claims)[:40]},
		"of no batch": {9, memtable.AppendPacked(nil, batchOf(9, 3).Claims)},
	} {
		mem := crashfs.New()
		s := openSmall(t, mem)
		for seq := uint64(1); seq <= 3; seq++ {
			mustApply(t, s, batchOf(seq, 3))
		}
		if err := s.core.db.Set(packedKey(bad.seq), bad.value, nil); err != nil {
			t.Fatal(err)
		}
		killed := mem.CrashClone(vfs.CrashCloneCfg{})
		mustClose(t, s)
		before := fingerprint(t, killed, "store")
		if _, err := Open("store", Options{FS: killed, SmallTables: true}); !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("%s: %v", what, err)
		}
		if fingerprint(t, killed, "store") != before {
			t.Errorf("%s: the store was changed", what)
		}
	}
}
