package runs

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
)

// A modelTable is a table of a version in a test of lists: what is in it does not matter.
type modelTable struct {
	*table
	level, from, to int // keys, to included
}

const modelKeys = 40

func modelKey(i int) []byte { return allModelKeys()[i] }

var allModelKeys = sync.OnceValue(func() (keys [modelKeys][]byte) {
	for i := range keys {
		scope := i / 4 // the weeks are in no order
		keys[i] = slices.Clip(fmt.Appendf(claimKey(fmt.Sprintf("scope%02d", scope), scope*3%5, 0), "%d", i%4))
	}
	return keys
})

func (m modelTable) has(key int) bool { return m.from <= key && key <= m.to }

func (m modelTable) info() (i pebble.SSTableInfo) {
	setNumber(&i.FileNum, m.number)
	i.Smallest.UserKey, i.Largest.UserKey = m.smallest, m.largest
	kind := pebble.InternalKeyKindSet
	if m.exclusive {
		kind = pebble.InternalKeyKindRangeDelete
	}
	i.Largest = pebble.InternalKey{UserKey: m.largest, Trailer: pebble.InternalKeyTrailer(uint64(kind))}
	if m.exclusive {
		i.Largest.Trailer |= pebble.InternalKeyTrailer(1<<56-1) << 8
	}
	setNumber(&i.LargestSeqNum, m.number) // the newer has the greater one
	return i
}

// A listStory makes lists of random versions and runs, and knows which tables they should have.
type listStory struct {
	x       *Index
	random  *rand.Rand
	tables  uint64
	version []modelTable // the newer first
}

func (y *listStory) table(level, from, to int) modelTable {
	y.tables++
	t := &table{number: y.tables, smallest: modelKey(from), largest: modelKey(to), size: 1 + y.random.Uint64N(4)}
	if y.random.IntN(3) == 0 && to+1 < modelKeys {
		t.largest, t.exclusive = modelKey(to+1), true
	}
	if y.random.IntN(8) > 0 { // or the list is not divided there
		t.filter.bits = make([]byte, filterLine)
	}
	t.users.Store(1)
	return modelTable{t, level, from, to}
}

// disjoint returns tables that do not overlap.
func (y *listStory) disjoint(level, longest int) (all []modelTable) {
	for at := y.random.IntN(8); at < modelKeys; {
		to := min(modelKeys-1, at+y.random.IntN(longest))
		all = append(all, y.table(level, at, to))
		at = to + 1 + y.random.IntN(12)*y.random.IntN(2)
	}
	return all
}

func (y *listStory) group(tables []modelTable) (g group) {
	for _, t := range tables {
		g = g.with(t.table)
	}
	return g
}

// check compares the list with all tables that there are: for each key, the list must have all that
// can have it, or those before one that it lacks, in their order.
func (y *listStory) check(t *testing.T, when string, all []modelTable) (absent int) {
	t.Helper()
	l := y.x.list.Load()
	for key := range modelKeys {
		var want, got []uint64
		for _, m := range all {
			if m.has(key) {
				want = append(want, m.number)
			}
		}
		groups, isAbsent := l.search(modelKey(key))
		for _, g := range groups {
			for _, table := range g {
				if table.covers(modelKey(key)) {
					got = append(got, table.number)
				}
			}
		}
		if !isAbsent {
			want = want[:min(len(got), len(want))]
		} else {
			absent++
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s: key %d: tables %v, absent otherwise: %v; want %v", when, key, got, isAbsent, want)
		}
	}
	return absent
}

// At any limits, and whatever runs are ingested during a refresh, a list has all tables that may have
// a key of which it says that there is none, and no table for another key after one that it lacks.
func TestAListLacksNoTableOfAKeyThatItDecides(t *testing.T) {
	f := &fixture{t: t, fs: vfs.NewMem(), cache: 1 << 20}
	absent, decided := 0, 0
	for seed := range uint64(500) {
		y := &listStory{random: rng(seed), x: f.index()}
		y.x.limit, y.x.recent = 1+y.random.Uint64N(60), y.random.IntN(6)
		ingest := func() {
			run := y.disjoint(0, 1+y.random.IntN(modelKeys))
			y.version = append(run, y.version...)
			y.x.mu.Lock()
			defer y.x.mu.Unlock()
			y.x.add(y.x.list.Load(), y.group(run))
		}
		for step := range 6 {
			when := fmt.Sprintf("seed %d, step %d", seed, step)
			y.x.mu.Lock()
			y.x.since = 0
			y.x.mu.Unlock()
			if y.random.IntN(3) == 0 {
				ingest() // before the version is taken
			}
			if y.random.IntN(4) == 0 { // all tables are compacted
				y.version = append(y.disjoint(5, 4), y.disjoint(6, 1+y.random.IntN(8))...)
				y.x.mu.Lock()
				y.x.since = 0
				y.x.replace(&list{})
				y.x.mu.Unlock()
			}
			version := make([][]pebble.SSTableInfo, 7)
			old := y.x.acquire()
			m := newMirror(y.x, old)
			for _, table := range y.version {
				version[table.level] = append(version[table.level], table.info())
				if y.random.IntN(60) > 0 {
					m.open[table.number] = table.table
				}
			}
			for range y.random.IntN(3) {
				ingest()
				y.check(t, when+", ingested", y.version)
			}
			if err := m.add(version, nil); err != nil {
				t.Fatal(err)
			}
			y.x.publish(m.list)
			old.release()
			absent += y.check(t, when+", refreshed", y.version)
			decided += modelKeys
		}
		y.x.Close()
	}
	if absent < decided/10 || absent > decided*9/10 {
		t.Errorf("%d of %d keys are absent if they are not found: too many or too few", absent, decided)
	}
	t.Logf("%d of %d keys are absent if they are not found", absent, decided)
}

// A part has one table of each run, although a run does not begin at the key at which it was divided, but
// some keys after it.
func TestAPartHasOneTableOfEachRun(t *testing.T) {
	const runs, keys = 12, 10 // of a table
	for seed := range uint64(50) {
		y := &listStory{random: rng(seed)}
		var l list
		for range runs {
			var g group
			for from := 0; from < modelKeys; from += keys {
				table := &table{smallest: modelKey(from + y.random.IntN(4)), largest: modelKey(from + keys - 1 - y.random.IntN(4))}
				table.filter.bits = make([]byte, filterLine)
				g = append(g, table)
			}
			l.groups = append(l.groups, g)
		}
		l.divide()
		if len(l.parts) != modelKeys/keys {
			t.Fatalf("seed %d: %d parts", seed, len(l.parts))
		}
		for i := range l.parts {
			if n := len(l.parts[i].groups); n != runs {
				t.Errorf("seed %d, part %d: %d tables of %d runs", seed, i, n, runs)
			}
		}
	}
}

func keyRanges(bounds ...string) (all []pebble.KeyRange) {
	for i := 0; i < len(bounds); i += 2 {
		all = append(all, pebble.KeyRange{Start: []byte(bounds[i]), End: []byte(bounds[i+1])})
	}
	return all
}

func TestRangesOfOmittedTables(t *testing.T) {
	c := coverage{loaded: true}
	for _, b := range [][2]string{{"m", "p"}, {"c", "f"}, {"d", "e"}, {"f", "g"}, {"x", "z"}} {
		c.omit(candidate{bounds: boundsOf([]byte(b[0]), []byte(b[1]), true)})
	}
	c.omit(candidate{bounds: boundsOf([]byte("i"), []byte("i"), false)})
	for key, want := range map[string]bool{"b": false, "bz": false, "c": true, "d": true, "f": true, "fz": true, "g": false, "hz": false,
		"i": true, "i\x00": false, "ia": false, "lz": false, "m": true, "oz": true, "p": false, "x": true, "z": false} {
		if got := c.mayLack([]byte(key)); got != want {
			t.Errorf("%q: %v", key, got)
		}
	}
	for _, span := range keyRanges("b", "c", "g", "i", "i\x00", "m", "p", "x", "z", "zz") {
		if c.mayLackSome(span) {
			t.Errorf("%s to %s: all tables are there", span.Start, span.End)
		}
	}
	for _, span := range keyRanges("b", "c\x00", "e", "h", "a", "zz", "g", "i\x00", "oz", "x") {
		if !c.mayLackSome(span) {
			t.Errorf("%s to %s: a table is omitted", span.Start, span.End)
		}
	}
	var none coverage
	if !none.mayLack([]byte("c")) || !none.mayLackSome(keyRanges("c", "d")[0]) || none.complete() {
		t.Error("a list without tables decides something")
	}
}

// The ranges are joined where the gaps are the smallest.
func TestRangesOfOmittedTablesAreLimited(t *testing.T) {
	r := rng(1)
	for range 20 {
		c := coverage{loaded: true}
		var in [][]byte
		for range 1 + r.IntN(400) {
			from := claimKey("scope", r.IntN(3), r.Uint64())
			to := append(slices.Clone(from), byte(r.Uint32()))
			in = append(in, from, to)
			c.omit(candidate{bounds: boundsOf(from, to, false)})
		}
		if len(c.omitted) > maxOmitted {
			t.Fatalf("%d ranges", len(c.omitted))
		}
		for _, key := range in {
			if !c.mayLack(key) {
				t.Fatalf("%x is not in the ranges any more", key)
			}
		}
	}
	c := coverage{loaded: true}
	for week := range 2 {
		for id := range 200 {
			key := func(i int) []byte {
				return append(claimKey("scope", 2*week, 0)[:len(claimKey("scope", 0, 0))-16], byte(i), 0)
			}
			c.omit(candidate{bounds: boundsOf(key(id), key(id), false)})
		}
	}
	between := claimKey("scope", 1, 7)
	if c.mayLack(between) || !c.mayLack(append(claimKey("scope", 2, 0)[:len(between)-16], 3, 0)) {
		t.Errorf("the week between two has no table that is omitted: %x", c.omitted)
	}
}

// Pebble has a drop in memory while a list omits the dropped tables. The next list may have them again.
func TestDropsOfOmittedTablesAreKept(t *testing.T) {
	prefix := func(week int) string {
		p, _ := memtable.SplitPrefix(claimKey("scope", week, 0)[1:])
		return string(p)
	}
	old := &list{coverage: coverage{loaded: true}, drops: map[string]uint64{prefix(1): 7, prefix(2): 8}}
	l := &list{coverage: coverage{loaded: true}}
	key := claimKey("scope", 1, 5)
	l.coverage.omit(candidate{bounds: boundsOf(key, key, false)})
	if l.takeDrops(old); len(l.drops) != 1 || l.drops[prefix(1)] != 7 {
		t.Errorf("%v, want the drop of the omitted table", l.drops)
	}
	l = &list{}
	if l.takeDrops(old); len(l.drops) != 2 {
		t.Errorf("%v, want all drops before a version is known", l.drops)
	}
}
