package pebble

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hapax-dev/hapax/engine/storage"
)

// openHeld opens a small store whose index is not loaded before the test ends the startup.
func openHeld(t testing.TB, fsys vfs.FS) *Store {
	t.Helper()
	s, err := Open("store", heldOptions(fsys))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func heldOptions(fsys vfs.FS) Options {
	return Options{FS: fsys, SmallTables: true, CacheBytes: 1 << 20, PendingBytes: smallPending, startupTime: time.Hour}
}

// reopenedRuns returns a store with that many runs, just opened, of which each has all of the claims.
func reopenedRuns(t testing.TB, fsys vfs.FS, runs int) (*Store, []storage.ClaimWrite) {
	t.Helper()
	s := openSmall(t, fsys)
	claims := batchOf(1, 100).Claims
	for seq := range uint64(runs) {
		for i := range claims {
			claims[i].Record = []byte{byte(seq)}
		}
		mustApply(t, s, &storage.Batch{Seq: seq + 1, Claims: claims})
		mustSealAll(t, s)
	}
	mustClose(t, s)
	return openHeld(t, fsys), claims
}

// indexed returns how many of the claims the index finds.
func indexed(t testing.TB, s *Store, claims []storage.ClaimWrite) (n int) {
	t.Helper()
	for _, c := range claims {
		record, known := s.core.recentRuns.Get(spaced(claimSpace, c.Key))
		if !known {
			continue
		}
		if string(record) != string(c.Record) {
			t.Fatalf("%x: %x, want %x", c.Key, record, c.Record)
		}
		n++
	}
	return n
}

func mustHave(t testing.TB, s *Store, claims []storage.ClaimWrite) {
	t.Helper()
	for _, c := range claims {
		if record, found, err := s.Claim(c.Key); err != nil || !found || string(record) != string(c.Record) {
			t.Fatalf("%x: %x %v %v, want %x", c.Key, record, found, err, c.Record)
		}
	}
}

// A key that the index does not have may be in a table that it has not loaded.
func TestAbsenceIsFinalOnlyInACompleteIndex(t *testing.T) {
	s, claims := reopenedRuns(t, vfs.NewMem(), 3)
	defer mustClose(t, s)
	absent := spaced(claimSpace, claimKey("scope0", 0, 1<<40))
	check := func(when string, want bool) {
		t.Helper()
		if n := indexed(t, s, claims); want != (n == len(claims)) || !want && n != 0 {
			t.Errorf("%s: the index has %d of %d claims", when, n, len(claims))
		}
		if record, known := s.core.recentRuns.Get(absent); record != nil || known != want {
			t.Errorf("%s: a key without a claim: %x %v", when, record, known)
		}
		mustHave(t, s, claims)
	}
	check("before the startup has ended", false)
	awaitIndex(t, s)
	check("loaded", true)
	s.core.recentRuns.Ingested(pebble.TableIngestInfo{Err: errors.New("a test's")})
	eventually(t, "it is loaded again", func() bool { return s.core.recentRuns.Status().Complete })
	check("loaded again", true)
}

// Pebble has the claims of a run that the index lacks: the older entries of the index are not asked.
func TestARunThatCannotBeOpenedIsLookedUpInPebble(t *testing.T) {
	inj := &failing{match: func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileReadAt && isTable(op.Path) }}
	s, claims := reopenedRuns(t, errorfs.Wrap(vfs.NewMem(), inj), 3)
	defer mustClose(t, s)
	inj.on.Store(true)
	s.core.startup.end()
	eventually(t, "the refresh has failed", func() bool { return len(s.core.recentRuns.Changed()) == 0 })
	if n := indexed(t, s, claims); n != 0 {
		t.Fatalf("the index has %d claims of tables that it cannot read", n)
	}
	inj.on.Store(false)
	mustHave(t, s, claims)
	s.core.recentRuns.Deleted(pebble.TableDeleteInfo{})
	awaitIndex(t, s)
	for i := range claims {
		claims[i].Record = []byte("newer")
	}
	newest := s.core.recentRuns.Status().Tables[0]
	s.core.recentRuns.Ingested(pebble.TableIngestInfo{Err: errors.New("a test's")})
	mustApply(t, s, &storage.Batch{Seq: 4, Claims: claims})
	mustSealAll(t, s)
	mustHave(t, s, claims)
	eventually(t, "it is loaded again", func() bool { return s.core.recentRuns.Status().Complete })
	if s.core.recentRuns.Status().Tables[0] == newest || indexed(t, s, claims) != len(claims) {
		t.Fatal("the index lacks the newest run")
	}
}

// The list omits a damaged table: in its range, an older one would return what the damaged one has replaced.
func TestAnIndexOmitsADamagedTable(t *testing.T) {
	mem := vfs.NewMem()
	s, claims := reopenedRuns(t, mem, 3)
	version, err := s.core.db.SSTables(pebble.WithKeyRangeFilter([]byte{claimSpace}, []byte{claimSpace + 1}))
	if err != nil {
		t.Fatal(err)
	}
	newest := slices.MaxFunc(version[0], func(a, b pebble.SSTableInfo) int { return cmp.Compare(a.LargestSeqNum, b.LargestSeqNum) })
	defer s.Close()
	damageTable(t, mem, s.core.disk.path(tableName(uint64(newest.FileNum))), int64(newest.Size)-60, 16)
	s.core.startup.end()
	s.core.recentRuns.Deleted(pebble.TableDeleteInfo{})
	eventually(t, "a refresh", func() bool { return len(s.core.recentRuns.Changed()) == 0 })
	for _, c := range claims {
		if record, found, err := s.Claim(c.Key); !errors.Is(err, storage.ErrDamaged) && string(record) != string(c.Record) {
			t.Fatalf("%x %v %v", record, found, err)
		}
	}
	if s.core.recentRuns.Status().Complete {
		t.Fatal("the index is complete without a damaged table")
	}
	if _, known := s.core.recentRuns.Get(append(bytes.Clone(newest.Smallest.UserKey), 0)); known {
		t.Fatal("a key in the range of a damaged table is absent")
	}
	if _, known := s.core.recentRuns.Get(spaced(claimSpace, claimKey("scope9", 9, 1))); !known {
		t.Fatal("a key outside of the range of the damaged table is not known to be absent")
	}
}

// What is beyond the limits is in Pebble.
func TestAnIndexIsLimited(t *testing.T) {
	s, claims := reopenedRuns(t, vfs.NewMem(), 4)
	older := batchOf(2, 10).Claims
	mustApply(t, s, &storage.Batch{Seq: 5, Claims: older})
	mustSealAll(t, s)
	mustApply(t, s, &storage.Batch{Seq: 6, Claims: claims})
	mustSealAll(t, s)
	mustClose(t, s)
	s = openHeld(t, s.core.o.FS)
	defer func() { mustClose(t, s) }()
	if err := s.core.recentRuns.Refresh(s.core.db, nil); err != nil {
		t.Fatal(err)
	}
	if limit := s.core.o.indexBytes; limit != 6*smallPending { // see Options.PendingBytes
		t.Errorf("the index may use %d bytes", limit)
	}
	all := s.core.recentRuns.Status()
	if !all.Complete || len(all.Tables) < 3 {
		t.Fatalf("%+v", all)
	}
	mustClose(t, s)
	o := heldOptions(s.core.o.FS)
	o.indexBytes = all.Bytes / 2
	var err error
	if s, err = Open("store", o); err != nil {
		t.Fatal(err)
	}
	if err := s.core.recentRuns.Refresh(s.core.db, nil); err != nil {
		t.Fatal(err)
	}
	if half := s.core.recentRuns.Status(); half.Complete || half.Bytes > o.indexBytes || len(half.Tables) == 0 {
		t.Fatalf("%+v", half)
	}
	if indexed(t, s, claims) == 0 {
		t.Error("the index has nothing of the newest run")
	}
	mustHave(t, s, append(claims, older...))
}

// While a bucket is being dropped, and if that fails, only Pebble knows which claims it has.
func TestADropThatFailsLeavesItsBucketToPebble(t *testing.T) {
	s := sealedRuns(t, vfs.NewMem(), 2)
	defer s.Close()
	awaitIndex(t, s)
	claims := append(batchOf(1, 100).Claims, batchOf(2, 100).Claims...)
	if n := indexed(t, s, claims); n != len(claims) {
		t.Fatalf("the index has %d of %d claims", n, len(claims))
	}
	s.core.fault.set(errors.New("a test's"))
	if err := s.Drop([]storage.Bucket{{Scope: "scope0", Week: week0}}); err == nil {
		t.Fatal("the drop has not failed")
	}
	if n := indexed(t, s, claims); n != len(claims)-50 {
		t.Fatalf("the index has %d of %d claims, of which 50 may be dropped", n, len(claims))
	}
}

// An entry that is not older than the drop of its bucket is returned by the index.
func TestClaimsAfterADropAreIndexed(t *testing.T) {
	s, claims := reopenedRuns(t, vfs.NewMem(), 2)
	awaitIndex(t, s)
	drop := []storage.Bucket{{Scope: "scope0", Week: week0 + 1}, {Scope: "scope1", Week: week0 + 1}}
	if err := s.Drop(drop); err != nil {
		t.Fatal(err)
	}
	for _, c := range claims {
		if record, found, err := s.Claim(c.Key); record != nil || found || err != nil {
			t.Fatal("a dropped claim is found", err)
		}
	}
	for i := range claims {
		claims[i].Record = []byte("after")
	}
	mustApply(t, s, &storage.Batch{Seq: 3, Claims: claims[:50]})
	mustSealAll(t, s)
	if n := indexed(t, s, claims[:50]); n != 50 {
		t.Fatalf("the index has %d of 50 claims", n)
	}
	mustClose(t, s)
	s = openHeld(t, s.core.o.FS)
	defer mustClose(t, s)
	awaitIndex(t, s)
	if n := indexed(t, s, claims[:50]); n != 50 {
		t.Fatalf("reopened: the index has %d of 50 claims", n)
	}
	mustHave(t, s, claims[:50])
	for _, c := range claims[50:] {
		if record, found, err := s.Claim(c.Key); record != nil || found || err != nil {
			t.Fatal("reopened: a dropped claim is found", err)
		}
	}
	if err := s.core.db.Compact(t.Context(), []byte{claimSpace}, []byte{claimSpace + 1}, false); err != nil {
		t.Fatal(err)
	}
	mustHave(t, s, claims[:50])
	if s.core.recentRuns.Status().Drops > len(drop) {
		t.Error(s.core.recentRuns.Status().Drops)
	}
}

// Pebble forgets the number of a batch that is larger than half a memtable.
func TestADropOfManyBucketsLeavesNoClaim(t *testing.T) {
	s := openHeld(t, vfs.NewMem())
	defer mustClose(t, s)
	const buckets = 2000
	b := &storage.Batch{Seq: 1}
	var drop []storage.Bucket
	for i := range buckets {
		scope := fmt.Sprintf("scope%d", i)
		b.Claims = append(b.Claims, storage.ClaimWrite{Key: claimKey(scope, 0, 1), Record: []byte("r")})
		drop = append(drop, storage.Bucket{Scope: scope, Week: week0})
	}
	for i := range 2 * buckets { // higher numbers than the drop has range deletes
		b.State = append(b.State, storage.StateWrite{Key: fmt.Append(nil, i)})
	}
	mustApply(t, s, b)
	mustSealAll(t, s)
	awaitIndex(t, s)
	if n := indexed(t, s, b.Claims); n != buckets {
		t.Fatalf("the index has %d of %d claims", n, buckets)
	}
	if err := s.Drop(drop); err != nil {
		t.Fatal(err)
	}
	for _, c := range b.Claims {
		if record, found, err := s.Claim(c.Key); record != nil || found || err != nil {
			t.Fatal("a dropped claim is found", err)
		}
	}
}
