package versions_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/versions"
)

// at returns a row with an offset.
func at(r versions.Row, offset int64) versions.Row {
	r.Offset = offset
	return r
}

// Versions of a source that counts milliseconds tie. With the offsets of their records, the later
// change of a millisecond wins.
func TestChangesOfOneMillisecondGoByOffset(t *testing.T) {
	e := openEngine(t, newMem(), newClock())
	table := mustTable(t, e, versions.Options{})
	const ms, n = 1767225600000, 200
	var rows []versions.Row
	for i := range int64(n) {
		key, again := fmt.Sprint("changed", i), fmt.Sprint("again", i)
		rows = append(rows, at(row(key, ms, fmt.Sprint("older", i)), 4*i), at(row(key, ms, fmt.Sprint("newer", i)), 4*i+1),
			at(deletion(again, ms), 4*i+2), at(row(again, ms, fmt.Sprint("newer", i)), 4*i+3))
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	put(t, e, table, rows...)
	for range 2 {
		shown := scan(t, table, versions.Selection{})
		for _, r := range shown {
			if a := get(t, table, string(r.Key)); string(r.Payload[:5]) != "newer" || string(a.Row.Payload) != string(r.Payload) {
				t.Errorf("%s shows %s and %s", r.Key, r.Payload, a.Row.Payload)
			}
		}
		if len(shown) != 2*n {
			t.Errorf("%d rows are visible, want %d", len(shown), 2*n)
		}
		prune(t, table)
	}
}

// A source that sends changes again, as after a failover, does not set a row back: a content keeps
// its first offset, also after Prune.
func TestRepeatKeepsItsFirstOffset(t *testing.T) {
	for name, pruned := range map[string]bool{"": false, "pruned": true} {
		e := openEngine(t, newMem(), newClock())
		table := mustTable(t, e, versions.Options{})
		older, newer, deleted := row("k", 5, "older"), row("k", 5, "newer"), deletion("k", 5)
		put(t, e, table, at(deleted, 8), at(older, 9), at(newer, 11))
		for i, again := range []versions.Row{at(deleted, 12), at(older, 13), at(newer, 14), at(older, 15), at(deleted, 16)} {
			if pruned {
				prune(t, table)
			}
			put(t, e, table, again)
			if a := get(t, table, "k"); string(a.Row.Payload) != "newer" || a.Row.Offset != 11 {
				t.Errorf("%s after repeat %d: %+v", name, i, a)
			}
		}
		if done := prune(t, table); stored(t, table) != 3 || pruned && done.Versions == 0 {
			t.Error(name, done, stored(t, table))
		}
		put(t, e, table, at(row("k", 6, "next"), 17))
		if prune(t, table); stored(t, table) != 1 {
			t.Errorf("%s: %d versions are left of a replaced one", name, stored(t, table))
		}
	}
}

// A Get of a transaction conflicts with a tie that would win, and not with an older version.
func TestGetConflictsWithATie(t *testing.T) {
	for name, c := range map[string]struct {
		other versions.Row
		want  error
	}{
		"tie":   {at(row("k", 5, "newer"), 12), engine.ErrConflict},
		"newer": {row("k", 6, "newer"), engine.ErrConflict},
		"older": {at(row("k", 4, "older"), 13), nil},
	} {
		e := openEngine(t, newMem(), newClock())
		table := mustTable(t, e, versions.Options{})
		put(t, e, table, at(row("k", 5, "a"), 9), at(row("k", 5, "b"), 11), row("k", 3, "c"))
		err := e.Update(ctx, func(tx *engine.Tx) error {
			r, found, err := table.In(tx).Get("acme", []byte("k"))
			if err != nil || !found || string(r.Payload) != "b" {
				t.Error(name, r, found, err)
			}
			put(t, e, table, c.other)
			return table.In(tx).Put(row("other", 1, "mine"))
		})
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func partial(key string, version uint64, payload string) versions.Row {
	r := row(key, version, payload)
	r.Partial = true
	return r
}

// A partial row takes each missing value from the newest older version that has it, whenever that
// arrives, and not from before a deletion.
func TestPartialRowTakesTheNewestEarlierValue(t *testing.T) {
	for name, c := range map[string]struct {
		rows    []versions.Row
		want    string
		partial bool
	}{
		"from one version":         {[]versions.Row{row("k", 1, "111"), partial("k", 2, "2?2")}, "212", false},
		"from several":             {[]versions.Row{row("k", 1, "111"), partial("k", 2, "?2?"), partial("k", 3, "3??")}, "321", false},
		"the newest":               {[]versions.Row{row("k", 1, "111"), row("k", 2, "222"), partial("k", 3, "3??")}, "322", false},
		"of the same version":      {[]versions.Row{row("k", 1, "111"), at(row("k", 2, "222"), 5), at(partial("k", 2, "3??"), 6)}, "322", false},
		"not from a newer one":     {[]versions.Row{partial("k", 2, "2?2"), row("k", 3, "333")}, "333", false},
		"nothing yet":              {[]versions.Row{partial("k", 2, "2?2")}, "2?2", true},
		"not through a deletion":   {[]versions.Row{row("k", 1, "111"), deletion("k", 2), partial("k", 3, "3?3")}, "3?3", true},
		"from above the deletion":  {[]versions.Row{row("k", 1, "111"), deletion("k", 2), row("k", 3, "333"), partial("k", 4, "4??")}, "433", false},
		"the rest is still absent": {[]versions.Row{partial("k", 1, "1??"), partial("k", 2, "?2?")}, "12?", true},
	} {
		rng := rand.New(rand.NewPCG(1, 1))
		for try := range 20 {
			e := openEngine(t, newMem(), newClock())
			table := mustTable(t, e, versions.Options{Fill: fill})
			rng.Shuffle(len(c.rows), func(i, j int) { c.rows[i], c.rows[j] = c.rows[j], c.rows[i] })
			for _, r := range c.rows {
				put(t, e, table, r)
				if try%2 == 0 {
					prune(t, table)
				}
			}
			a, all := get(t, table, "k"), scan(t, table, versions.Selection{})
			if string(a.Row.Payload) != c.want || a.Row.Partial != c.partial || len(all) != 1 || identity(all[0]) != identity(a.Row) {
				t.Errorf("%s: %+v, and in a scan %+v; want %s", name, a, all, c.want)
			}
			_ = e.Close()
		}
	}
}

// Prune keeps the version from which a partial row takes a value, and not the partial ones between.
func TestPruneKeepsWhatAPartialRowNeeds(t *testing.T) {
	e := openEngine(t, newMem(), newClock())
	table := mustTable(t, e, versions.Options{Fill: fill})
	put(t, e, table, row("k", 0, "000"), row("k", 1, "111"))
	for v := range uint64(1000) {
		put(t, e, table, partial("k", v+2, "2??"))
	}
	if done := prune(t, table); done != (versions.Pruned{Versions: 1000}) || stored(t, table) != 2 {
		t.Error(done, stored(t, table))
	}
	if a := get(t, table, "k"); string(a.Row.Payload) != "211" || a.Row.Version != 1001 {
		t.Error(a)
	}
	put(t, e, table, row("k", 2000, "333"))
	if prune(t, table); stored(t, table) != 1 {
		t.Error(stored(t, table))
	}
}

// A Get or a scan shows a row as it was at one moment, also if it has more versions than a page of the
// scan, and a newer version arrives and Prune removes the others between two pages.
func TestRowsAreReadFromOneSnapshot(t *testing.T) {
	const columns = 150
	lacking := bytes.Repeat([]byte("?"), columns)
	for name, c := range map[string]struct {
		rows  []versions.Row
		newer versions.Row
	}{
		"offsets": {[]versions.Row{at(row("k", 5, "a"), 9), at(row("k", 5, "b"), 11)}, row("k", 6, "newer")},
		"partial": {nil, row("k", 1000, strings.Repeat("9", columns))},
	} {
		for i := range columns { // each version has one value
			if name == "partial" {
				payload := bytes.Clone(lacking)
				payload[i] = '1'
				c.rows = append(c.rows, partial("k", uint64(i), string(payload)))
			}
		}
		for i := range 8 {
			s := &betweenScans{Store: newMem()}
			e := openEngine(t, s, newClock())
			table := mustTable(t, e, versions.Options{Fill: fill})
			put(t, e, table, append(c.rows, row("l", 1, "111"))...)
			before := string(get(t, table, "k").Row.Payload)
			s.skip, s.once = i/2, func() {
				put(t, e, table, c.newer)
				prune(t, table)
			}
			var r versions.Row
			if i%2 == 0 {
				r = get(t, table, "k").Row
			} else {
				r = scan(t, table, versions.Selection{})[0]
			}
			if r.Partial || string(r.Payload) != before && string(r.Payload) != string(c.newer.Payload) {
				t.Errorf("%s, read %d: %+v", name, i, r)
			}
		}
	}
}

// A table that cannot complete partial rows returns an error instead of a row with missing values.
func TestPartialRowsNeedFill(t *testing.T) {
	e := openEngine(t, newMem(), newClock())
	put(t, e, mustTable(t, e, versions.Options{Fill: fill}), partial("k", 1, "1?1"))
	table := mustTable(t, e, versions.Options{})
	_, got := table.Get(ctx, "acme", []byte("k"))
	_, pruned := table.Prune(ctx)
	rows, err := table.Scan(ctx, versions.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	for _, scanned := range rows.All {
		err = scanned
	}
	for _, err := range []error{got, pruned, err} {
		var refused *versions.RowError
		if !errors.As(err, &refused) {
			t.Error(err)
		}
	}
}
