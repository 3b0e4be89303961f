package pebble

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
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
	s, err := Open("store", Options{FS: fsys, SmallTables: true, CacheBytes: 1 << 20, PendingBytes: smallPending, startupTime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return s
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
		record, known := s.core.recentRuns.get(spaced(claimSpace, c.Key))
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
		if record, known := s.core.recentRuns.get(absent); record != nil || known != want {
			t.Errorf("%s: a key without a claim: %x %v", when, record, known)
		}
		mustHave(t, s, claims)
	}
	check("before the startup has ended", false)
	awaitIndex(t, s)
	check("loaded", true)
	s.core.recentRuns.ingested(pebble.TableIngestInfo{Err: errors.New("a test's")})
	eventually(t, "it is loaded again", func() bool { return s.core.recentRuns.list.Load().coverage.complete() })
	check("loaded again", true)
}

// Pebble has the claims of a run that the index lacks: the older entries of the index are not asked.
func TestARunThatCannotBeOpenedIsLookedUpInPebble(t *testing.T) {
	inj := &failing{match: func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileReadAt && isTable(op.Path) }}
	s, claims := reopenedRuns(t, errorfs.Wrap(vfs.NewMem(), inj), 3)
	defer mustClose(t, s)
	inj.on.Store(true)
	s.core.startup.end()
	eventually(t, "the refresh has failed", func() bool { return len(s.core.recentRuns.changed) == 0 })
	if n := indexed(t, s, claims); n != 0 {
		t.Fatalf("the index has %d claims of tables that it cannot read", n)
	}
	inj.on.Store(false)
	mustHave(t, s, claims)
	s.core.recentRuns.change()
	awaitIndex(t, s)
	for i := range claims {
		claims[i].Record = []byte("newer")
	}
	table := s.core.recentRuns.list.Load().groups[0][0]
	s.core.recentRuns.ingested(pebble.TableIngestInfo{Err: errors.New("a test's")})
	mustApply(t, s, &storage.Batch{Seq: 4, Claims: claims})
	mustSealAll(t, s)
	mustHave(t, s, claims)
	eventually(t, "it is loaded again", func() bool { return s.core.recentRuns.list.Load().coverage.complete() })
	if again := s.core.recentRuns.list.Load().groups; again[0][0].number == table.number || indexed(t, s, claims) != len(claims) {
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
	slices.SortFunc(version[0], newestFirst)
	newest := version[0][0]
	defer s.Close()
	damageTable(t, mem, s.core.disk.path(tableName(uint64(newest.FileNum))), int64(newest.Size)-60, 16)
	s.core.startup.end()
	s.core.recentRuns.change()
	eventually(t, "a refresh", func() bool { return len(s.core.recentRuns.changed) == 0 })
	for _, c := range claims {
		if record, found, err := s.Claim(c.Key); !errors.Is(err, storage.ErrDamaged) && string(record) != string(c.Record) {
			t.Fatalf("%x %v %v", record, found, err)
		}
	}
	if s.core.recentRuns.list.Load().coverage.complete() {
		t.Fatal("the index is complete without a damaged table")
	}
	if _, known := s.core.recentRuns.get(append(bytes.Clone(newest.Smallest.UserKey), 0)); known {
		t.Fatal("a key in the range of a damaged table is absent")
	}
	if _, known := s.core.recentRuns.get(spaced(claimSpace, claimKey("scope9", 9, 1))); !known {
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
	defer mustClose(t, s)
	if err := s.core.recentRuns.refresh(s.core.db, nil); err != nil {
		t.Fatal(err)
	}
	if limit := s.core.recentRuns.limit; limit != 6*smallPending { // see Options.PendingBytes
		t.Errorf("the index may use %d bytes", limit)
	}
	all := s.core.recentRuns.list.Load()
	if !all.coverage.complete() || len(all.groups) < 3 {
		t.Fatalf("%d groups, complete %v", len(all.groups), all.coverage.complete())
	}
	s.core.recentRuns.limit = all.groups[0].size() + all.groups[1].size()
	if err := s.core.recentRuns.refresh(s.core.db, nil); err != nil {
		t.Fatal(err)
	}
	if l := s.core.recentRuns.list.Load(); l.coverage.complete() || len(l.groups) > 2 || len(l.groups) == 0 {
		t.Fatalf("%d groups, complete %v", len(l.groups), l.coverage.complete())
	}
	if indexed(t, s, claims) == 0 {
		t.Error("the index has nothing of the newest run")
	}
	mustHave(t, s, append(claims, older...))
	l := &runList{coverage: coverage{loaded: true}}
	for range maxIndexed {
		l.groups = append(l.groups, tableGroup{&runTable{}, &runTable{}})
	}
	x := &runIndex{limit: 1}
	if x.trim(l); l.coverage.complete() || len(l.groups) != maxIndexed/2 {
		t.Errorf("%d groups of two tables, complete %v", len(l.groups), l.coverage.complete())
	}
	level := tableGroup{&runTable{size: 3}, &runTable{size: 3}, &runTable{size: 3}}
	l = &runList{coverage: coverage{loaded: true}, groups: []tableGroup{{&runTable{size: 1}}, level}}
	x.limit = 8
	if x.trim(l); l.coverage.complete() || len(l.groups) != 2 || len(l.groups[1]) != 2 || len(level) != 3 {
		t.Errorf("%v, complete %v: want two tables of the level", l.groups, l.coverage.complete())
	}
	m := &mirror{index: s.core.recentRuns, tables: maxIndexed}
	if _, err := m.table(pebble.SSTableInfo{}); !errors.Is(err, errNoRoom) {
		t.Error(err)
	}
}

// The index opens no table whose filter and index need more bytes than there is room.
func TestATableNeedsRoom(t *testing.T) {
	s := sealedRuns(t, vfs.NewMem(), 1)
	defer mustClose(t, s)
	x := s.core.recentRuns
	layout, err := x.list.Load().groups[0][0].reader.Layout()
	if err != nil || len(layout.Filter) != 1 || len(layout.Index) == 0 {
		t.Fatal("a table without a filter or an index", err)
	}
	need := layout.Filter[0].Length
	for _, i := range layout.Index {
		need += i.Length
	}
	version, err := s.core.db.SSTables(pebble.WithKeyRangeFilter([]byte{claimSpace}, []byte{claimSpace + 1}))
	if err != nil {
		t.Fatal(err)
	}
	info := slices.Concat(version...)[0].TableInfo
	if uint64(info.FileNum) != x.list.Load().groups[0][0].number {
		t.Fatal("the tables are not the same")
	}
	for room, want := range map[uint64]error{0: errNoRoom, need - 1: errNoRoom, need: nil, need + 1: nil} {
		table, err := x.open(info, room)
		if !errors.Is(err, want) {
			t.Errorf("%d bytes needed, room for %d: %v, want %v", need, room, err, want)
		}
		if err == nil {
			table.release()
		}
	}
}

// A refresh that is ended leaves the list as it is, and one that finds no file any more is not complete.
func TestARefreshThatEndsChangesNothing(t *testing.T) {
	s, _ := reopenedRuns(t, vfs.NewMem(), 3)
	defer mustClose(t, s)
	version, err := s.core.db.SSTables(pebble.WithKeyRangeFilter([]byte{claimSpace}, []byte{claimSpace + 1}))
	if err != nil {
		t.Fatal(err)
	}
	before := s.core.recentRuns.list.Load()
	stop := make(chan struct{})
	close(stop)
	m := newMirror(s.core.recentRuns, before)
	if err := m.add(version, stop); !errors.Is(err, errRefreshEnded) || len(m.opened) > 0 {
		t.Errorf("ended: %v, %d tables are open", err, len(m.opened))
	}
	if err := s.core.recentRuns.refresh(s.core.db, stop); !errors.Is(err, errRefreshEnded) {
		t.Errorf("ended: %v", err)
	}
	if s.core.recentRuns.list.Load() != before {
		t.Error("the list was replaced")
	}
	last := version[len(version)-1]
	if len(last) == 0 {
		last = version[0]
	}
	last[len(last)-1].FileNum += 1000
	if err := m.add(version, nil); err != nil || m.list.coverage.complete() {
		t.Errorf("a deleted table: %v, complete %v", err, m.list.coverage.complete())
	}
	m.opened.release()
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
	if len(s.core.recentRuns.list.Load().drops) > len(drop) {
		t.Error(s.core.recentRuns.list.Load().drops)
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

// Tables of a level may share a key that is not in the first of them.
func TestTablesThatShareABoundary(t *testing.T) {
	filled := func(smallest, largest string, exclusive bool) *runTable {
		return &runTable{smallest: []byte(smallest), largest: []byte(largest), exclusive: exclusive}
	}
	g := tableGroup{}.with(filled("m", "p", false)).with(filled("c", "f", true)).with(filled("f", "h", false))
	for key, want := range map[string]string{"b": "", "c": "c", "e": "c", "f": "f", "h": "f", "i": "", "m": "m", "p": "m", "q": ""} {
		got := ""
		if found := g.find([]byte(key)); found != nil {
			got = string(found.smallest)
		}
		if got != want {
			t.Errorf("%q is in the table from %q, want %q", key, got, want)
		}
	}
	for _, other := range []*runTable{filled("a", "c", false), filled("h", "k", false), filled("d", "e", false), filled("a", "z", false), filled("p", "z", false)} {
		if g.with(other) != nil {
			t.Errorf("%q to %q does not overlap", other.smallest, other.largest)
		}
	}
	if g.with(filled("a", "c", true)) == nil {
		t.Error("a table that ends before the others overlaps")
	}
	span := pebble.KeyRange{Start: []byte("g"), End: []byte("m")}
	if !g.hasOlder(span, 1) || g.hasOlder(span, 0) || g.hasOlder(pebble.KeyRange{Start: []byte("i"), End: []byte("m")}, math.MaxUint64) {
		t.Error("hasOlder")
	}
}

// The store reads the filters of tables with code of its own.
func TestTableFiltersAgreeWithPebble(t *testing.T) {
	seed := uint64(0x1234567890abcdef)
	policy := keyedFilters{&disk{seed: seed}}
	r := rng(1)
	for _, keys := range []int{0, 1, 10, 1000} {
		w := policy.NewWriter(pebble.TableFilter)
		var in [][]byte
		for n := range keys {
			key := make([]byte, n%41)
			for i := range key {
				key[i] = byte(r.Uint32())
			}
			w.AddKey(key)
			in = append(in, key)
		}
		block := w.Finish(nil)
		f, ok := newKeyedFilter(block, seed)
		if !ok {
			t.Fatalf("%d keys: a filter of %d bytes is not read", keys, len(block))
		}
		for n := range 20_000 {
			key := binaryKey(r.Uint64(), n%23)
			if n < len(in) {
				key = in[n]
			}
			hash, want := keyedHash(key, seed), policy.MayContain(pebble.TableFilter, block, key)
			if f.mayContain(hash) != want || want && f.first(hash) != 1 || n < len(in) && !want {
				t.Fatalf("%x: %v, first %d, want %v", key, f.mayContain(hash), f.first(hash), want)
			}
		}
	}
	for _, block := range [][]byte{make([]byte, 6), make([]byte, 69), append(make([]byte, 64), 6, 2, 0, 0, 0), append(make([]byte, 64), 1, 1, 0, 0, 0)} {
		if _, ok := newTableFilter(block); ok {
			t.Errorf("%x is a filter", block)
		}
		if _, ok := newKeyedFilter(append(block, 0, 0, 0, 0), seed); ok {
			t.Errorf("%x is a keyed filter", block)
		}
	}
}

// A filter with another seed than the store's is not used: it would find that claims are absent.
func TestFilterOfAnotherSeedIsNotUsed(t *testing.T) {
	key := []byte("key")
	if f, ok := newKeyedFilter(nil, 1); !ok || f.mayContain(keyedHash(key, 1)) {
		t.Error("the filter of a table that has no keys is not used")
	}
	for keys := range 20 {
		w := keyedFilters{&disk{seed: 1}}.NewWriter(pebble.TableFilter)
		for n := range keys {
			w.AddKey(binaryKey(uint64(n), 8))
		}
		block := w.Finish(nil)
		if f, ok := newKeyedFilter(block, 2); !ok || !f.mayContain(keyedHash(key, 2)) || f.first(keyedHash(key, 2)) != 1 {
			t.Errorf("a filter of %d keys with another seed is used", keys)
		}
		if !(keyedFilters{&disk{seed: 2}}).MayContain(pebble.TableFilter, block, key) || !(keyedFilters{&disk{}}).MayContain(pebble.TableFilter, []byte{1}, key) {
			t.Errorf("Pebble uses a filter of %d keys with another seed", keys)
		}
		if f, _ := newKeyedFilter(block, 1); f.mayContain(keyedHash(key, 1)) {
			t.Errorf("a filter of %d keys has another", keys)
		}
	}
}

// collide returns a key of the same length as another, and with the same plain hash: the first bytes
// are given, and the last four are computed. The length is a multiple of 4.
func collide(key, first []byte) []byte {
	const seed, multiplier = 0xbc9f1d34, 0xc6a4a793
	inverse := uint32(1)
	for range 5 { // each step doubles the number of right bits
		inverse *= 2 - multiplier*inverse
	}
	h := seed ^ uint32(len(key))*multiplier
	for at := 0; at+4 < len(key); at += 4 {
		h = (h + binary.LittleEndian.Uint32(first[at:])) * multiplier
		h ^= h >> 16
	}
	want := filterHash(key)
	want ^= want >> 16
	return binary.LittleEndian.AppendUint32(first[:len(key)-4:len(key)-4], want*inverse-h)
}

// A producer that chooses ids, and knows the code, cannot choose ids that the filters of tables seem
// to have.
func TestChosenIDsDoNotPassTheFilters(t *testing.T) {
	s := openSmall(t, vfs.NewMem())
	defer mustClose(t, s)
	bucket, r := storage.Bucket{Scope: "s", Week: 105000}, rng(7)
	for len(spaced(claimSpace, bucket.AppendKey(nil, make([]byte, 16))))%4 != 0 {
		bucket.Scope += "s"
	}
	newKey := func() []byte {
		id := make([]byte, 16)
		for i := range id {
			id[i] = byte(r.Uint32())
		}
		return bucket.AppendKey(nil, id)
	}
	b := &storage.Batch{Seq: 1}
	for range 1000 {
		b.Claims = append(b.Claims, storage.ClaimWrite{Key: newKey(), Record: []byte("r")})
	}
	mustApply(t, s, b)
	mustSealAll(t, s)
	if n := indexed(t, s, b.Claims); n != len(b.Claims) {
		t.Fatalf("the index finds %d claims", n)
	}
	passed, ordinary := 0, 0
	for _, c := range b.Claims {
		key := spaced(claimSpace, c.Key)
		chosen := collide(key, spaced(claimSpace, newKey()))
		if filterHash(chosen) != filterHash(key) {
			t.Fatalf("%x does not collide with %x", chosen, key)
		}
		passed += passes(s, chosen)
		ordinary += passes(s, spaced(claimSpace, newKey()))
	}
	// each passes one filter in a hundred; a thousand would if filters had the plain hash
	if tables := len(s.core.recentRuns.list.Load().groups[0]); passed > 20*tables || ordinary > 20*tables {
		t.Errorf("1000 chosen ids pass the filters of %d tables %d times, others %d times", tables, passed, ordinary)
	}
}

// passes returns how many filters of tables seem to have a key.
func passes(s *Store, key []byte) (n int) {
	hash := keyedHash(key, s.identity.id.Seed)
	for _, g := range s.core.recentRuns.list.Load().groups {
		for _, table := range g {
			if table.filter.mayContain(hash) {
				n++
			}
		}
	}
	return n
}

func binaryKey(n uint64, size int) []byte {
	key := make([]byte, size)
	for i := range key {
		key[i] = byte(n >> (i % 8 * 8))
	}
	return key
}

// A version lacks the runs that were ingested after it; some may be in it in another place.
func TestRunsSinceTheVersionOfARefreshAreFirst(t *testing.T) {
	s, _ := reopenedRuns(t, vfs.NewMem(), 3)
	defer mustClose(t, s)
	x := s.core.recentRuns
	if err := x.refresh(s.core.db, nil); err != nil {
		t.Fatal(err)
	}
	all := x.list.Load()
	if len(all.groups) < 3 {
		t.Fatalf("%d groups", len(all.groups))
	}
	x.since = 2
	x.publish(&runList{coverage: coverage{loaded: true}, groups: append(slices.Clone(all.groups[2:]), all.groups[0])})
	if l := x.list.Load(); !l.coverage.complete() || !slices.EqualFunc(l.groups, all.groups, func(a, b tableGroup) bool { return slices.Equal(a, b) }) {
		t.Fatalf("%v, want %v", l.groups, all.groups)
	}
	x.since = 0
	x.ingested(pebble.TableIngestInfo{Err: errors.New("a test's")})
	l := x.list.Load()
	if l.coverage.complete() || len(l.groups) > 0 {
		t.Fatal("the index has older runs than one that it lacks")
	}
	x.publish(&runList{coverage: coverage{loaded: true}, groups: all.groups})
	if x.list.Load() != l || len(x.changed) == 0 {
		t.Fatal("a version before a run that the index lacks is the list")
	}
}

// A run that was ingested during a refresh, and of which the index could keep only some tables, is
// not in the version of the refresh.
func TestARunSinceTheVersionOfARefreshIsWhole(t *testing.T) {
	s := openSmall(t, vfs.NewMem())
	defer mustClose(t, s)
	mustApply(t, s, batchOf(1, 3000))
	mustSealAll(t, s)
	levels, err := s.core.tables(prefixSpan([]byte{claimSpace}))
	if err != nil {
		t.Fatal(err)
	}
	var run pebble.TableIngestInfo
	for _, table := range slices.Concat(levels...) {
		run.Tables = append(run.Tables, struct {
			pebble.TableInfo
			Level int
		}{table.TableInfo, 0})
	}
	x := newRunIndex(&s.core.o, s.core.disk) // nothing refreshes it
	defer x.close()
	x.since = 0 // a refresh has taken the version of an empty store
	x.ingested(run)
	whole := x.list.Load().groups[0]
	if len(whole) < 3 {
		t.Fatalf("a run of %d tables", len(whole))
	}
	x.limit = whole.size() + whole[0].size
	x.ingested(run)
	if l := x.list.Load(); len(l.groups) != 2 || len(l.groups[1]) >= len(whole) {
		t.Fatalf("%d groups, want a run and a part of one", len(l.groups))
	}
	x.publish(&runList{coverage: coverage{loaded: true}})
	if x.list.Load().coverage.complete() || len(x.changed) == 0 {
		t.Fatal("a list that lacks tables of a run is complete")
	}
}
