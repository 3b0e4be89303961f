package versions_test

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/versions"
)

// A modelRow is everything that was put of a row.
type modelRow struct {
	puts   map[string]*modelPut // by content
	erased *uint64
}

// A modelPut is a content of a version, with all its offsets.
type modelPut struct {
	row versions.Row        // with the first offset
	at  map[int64]time.Time // when it was put, by offset
}

// identity returns the fields that distinguish a content from others, or a result from others.
func identity(r versions.Row) string {
	if r.Deleted {
		return fmt.Sprint(r.Version, " deleted")
	}
	return fmt.Sprint(r.Version, " ", r.Time, " ", string(r.Payload), " ", r.Partial)
}

// newest returns the contents that no erasure hides, by the rule of TxTable.Put, the newest first.
func (r *modelRow) newest() (visible []*modelPut) {
	for _, p := range r.puts {
		if r.erased == nil || p.row.Version > *r.erased {
			visible = append(visible, p)
		}
	}
	slices.SortFunc(visible, func(a, b *modelPut) int {
		return cmp.Or(cmp.Compare(b.row.Version, a.row.Version), cmp.Compare(b.row.Offset, a.row.Offset), cmp.Compare(rank(a.row), rank(b.row)))
	})
	return visible
}

// visible returns what a reader must see.
func (r *modelRow) visible() (row versions.Row, found bool) {
	for _, p := range r.newest() {
		switch {
		case p.row.Deleted:
			return row, found
		case !found:
			row, found = p.row, true
		default:
			row.Payload, row.Partial = fill(row.Payload, p.row.Payload)
		}
		if !row.Partial {
			break
		}
	}
	return row, found
}

// fill completes a payload of digits, in which each '?' is missing.
func fill(newer, older []byte) (filled []byte, partial bool) {
	filled = slices.Clone(newer)
	for i, digit := range filled {
		if digit == '?' {
			filled[i] = older[i]
		}
	}
	return filled, slices.Contains(filled, '?')
}

func rank(r versions.Row) uint64 {
	kind, timed := byte('r'), byte('t')
	if r.Partial {
		kind, timed = 'p', 'q'
	}
	value := []byte{kind}
	if r.Deleted {
		return 0
	}
	if !r.Time.IsZero() {
		value = binary.AppendVarint([]byte{timed}, r.Time.UnixMicro())
	}
	return xxh3.Hash(append(value, r.Payload...))
}

// A model is the expected state of a table.
type model struct {
	rng  *rand.Rand
	c    *clock
	keep time.Duration
	rows map[string]*modelRow // by tenant and key
	sent []versions.Row       // for repetitions
	eng  *engine.Engine
	t    *versions.Table
}

func newModel(seed uint64) *model {
	return &model{rng: rand.New(rand.NewPCG(seed, 9)), c: newClock(), keep: time.Hour, rows: map[string]*modelRow{}}
}

// open continues with another store.
func (m *model) open(t testing.TB, s storage.Store) {
	t.Helper()
	m.eng = openEngine(t, s, m.c)
	m.t = mustTable(t, m.eng, versions.Options{KeepDeletions: m.keep, Clock: m.c.now, Fill: fill})
}

var (
	modelTenants = []string{"a", "a\x00", "ab", "b\xff"}
	modelKeys    = []string{"k", "k\x00\x01", "k\xff", "l"}
)

func (m *model) pick(from []string) string { return from[m.rng.IntN(len(from))] }

func (m *model) draw() versions.Row {
	if len(m.sent) > 0 && m.rng.IntN(4) == 0 {
		r := m.sent[m.rng.IntN(len(m.sent))]
		r.Offset = max(r.Offset+int64(m.rng.IntN(9)-3), 0) // a repeat, or an earlier copy
		return r
	}
	r := versions.Row{Tenant: m.pick(modelTenants), Key: []byte(m.pick(modelKeys)), Version: uint64(m.rng.IntN(12))}
	if m.rng.IntN(2) == 0 {
		r.Offset = int64(m.rng.IntN(20))
	}
	if m.rng.IntN(20) == 0 {
		r.Version = versions.AllVersions
	}
	if m.rng.IntN(3) > 0 {
		r.Time = m.c.now().Add(time.Duration(m.rng.IntN(100)) * time.Microsecond)
	}
	if r.Deleted = m.rng.IntN(5) == 0; r.Deleted {
		r.Time = time.Time{}
	} else {
		for range 3 {
			r.Payload = append(r.Payload, "0123??"[m.rng.IntN(6)])
		}
		r.Partial = slices.Contains(r.Payload, '?')
	}
	m.sent = append(m.sent, r)
	return r
}

func (m *model) put(r versions.Row) {
	name := r.Tenant + "|" + string(r.Key)
	if m.rows[name] == nil {
		m.rows[name] = &modelRow{puts: map[string]*modelPut{}}
	}
	p := m.rows[name].puts[identity(r)]
	if p == nil {
		p = &modelPut{r, map[int64]time.Time{}}
		m.rows[name].puts[identity(r)] = p
	}
	p.row.Offset = min(p.row.Offset, r.Offset)
	p.at[r.Offset] = m.c.now()
}

var errRolledBack = errors.New("rolled back")

// step makes one change to the table and to the model. It returns the visible rows before and after
// it.
func (m *model) step(t testing.TB) (before, after map[string]string) {
	t.Helper()
	before = m.visible()
	m.c.advance(time.Duration(m.rng.IntN(600)) * time.Second)
	switch n := m.rng.IntN(20); {
	case n < 14:
		m.transaction(t)
	case n < 16:
		m.erase(t)
	case n < 18:
		m.jump(t)
	default:
		m.replace(t)
	}
	return before, m.visible()
}

// overdue is how long after its expiry Prune removes a deletion.
const overdue = 48 * time.Hour

// jump makes a change while the clock is wrong, or lets time pass in which nothing runs.
func (m *model) jump(t testing.TB) {
	t.Helper()
	by := time.Duration(m.rng.IntN(60*24)) * time.Hour
	if m.rng.IntN(3) == 0 {
		by = 70 * 365 * 24 * time.Hour
	}
	switch m.rng.IntN(4) {
	case 0:
		m.c.advance(by % (4 * 24 * time.Hour))
	case 1:
		m.c.advance(-by)
		m.transaction(t)
		m.c.advance(by)
	default:
		m.c.advance(by)
		m.replace(t)
		m.c.advance(-by)
	}
}

// transaction puts some rows, and rolls back some or all of them.
func (m *model) transaction(t testing.TB) {
	t.Helper()
	var kept []versions.Row
	failed := m.rng.IntN(8) == 0
	err := m.eng.Update(ctx, func(tx *engine.Tx) error {
		in := m.t.In(tx)
		for range m.rng.IntN(6) {
			s, err := tx.Savepoint()
			if err != nil {
				return err
			}
			r := m.draw()
			if r.Deleted && r.Offset == 0 {
				err = in.Delete(r.Tenant, r.Key, r.Version)
			} else {
				err = in.Put(r)
			}
			if err != nil {
				return err
			}
			if m.rng.IntN(6) == 0 {
				if err := tx.RollbackTo(s); err != nil {
					return err
				}
				continue
			}
			kept = append(kept, r)
		}
		if failed {
			return errRolledBack
		}
		return nil
	})
	switch {
	case failed && errors.Is(err, errRolledBack):
	case err != nil:
		t.Fatal(err)
	default:
		for _, r := range kept {
			m.put(r)
		}
	}
}

func (m *model) erase(t testing.TB) {
	t.Helper()
	tenant, key, through := m.pick(modelTenants), m.pick(modelKeys), uint64(m.rng.IntN(12))
	if err := m.t.Erase(ctx, tenant, []byte(key), through); err != nil {
		t.Fatal(err)
	}
	name := tenant + "|" + key
	if m.rows[name] == nil {
		m.rows[name] = &modelRow{puts: map[string]*modelPut{}}
	}
	r := m.rows[name]
	if r.erased != nil {
		through = max(through, *r.erased)
	}
	for _, p := range r.puts {
		through = max(through, p.row.Version)
	}
	r.erased = &through
	clear(r.puts)
}

func (m *model) replace(t testing.TB) {
	t.Helper()
	all := m.rng.IntN(8) == 0
	pass := m.t.Prune
	if all {
		pass = m.t.PruneAllExpired
	}
	if _, err := pass(ctx); err != nil {
		t.Fatal(err)
	}
	for _, r := range m.rows {
		newest := r.newest()
		if len(newest) == 0 || !newest[0].row.Deleted {
			continue
		}
		p := newest[0]
		age := m.c.now().Sub(p.at[p.row.Offset])
		switch {
		case age < 0 && all, age > m.keep+overdue && !all:
			p.at[p.row.Offset] = m.c.now()
		case age > m.keep:
			clear(r.puts)
		}
	}
}

// visible returns the rows that readers must see.
func (m *model) visible() map[string]string {
	rows := map[string]string{}
	for name, r := range m.rows {
		if row, found := r.visible(); found {
			rows[name] = identity(row)
		}
	}
	return rows
}

// firsts returns the newest version of each visible row.
func (m *model) firsts() map[string]string {
	rows := map[string]string{}
	for name, r := range m.rows {
		if _, found := r.visible(); found {
			rows[name] = identity(r.newest()[0].row)
		}
	}
	return rows
}

func collect(t testing.TB, rows iter.Seq2[versions.Row, error]) (got []versions.Row) {
	t.Helper()
	for r, err := range rows {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r)
	}
	return got
}

func named(rows []versions.Row) map[string]string {
	got := map[string]string{}
	for _, r := range rows {
		got[r.Tenant+"|"+string(r.Key)] = identity(r)
	}
	return got
}

// scan is the exact scan of the whole table.
func scan(t testing.TB, table *versions.Table, s versions.Selection) []versions.Row {
	t.Helper()
	rows, err := table.Scan(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	return collect(t, rows.All)
}

// check compares every read with the model.
func (m *model) check(t testing.TB) {
	t.Helper()
	want := m.visible()
	got := scan(t, m.t, versions.Selection{})
	if !maps.Equal(named(got), want) || len(got) != len(want) {
		t.Fatalf("scan:\n%v, want\n%v", named(got), want)
	}
	if !slices.IsSortedFunc(got, func(a, b versions.Row) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), slices.Compare(a.Key, b.Key))
	}) {
		t.Fatalf("not in order: %v", got)
	}
	all, err := m.t.ScanWithOlderVersions(ctx, versions.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	first := map[string]string{}
	for _, r := range collect(t, all.All) {
		if name := r.Tenant + "|" + string(r.Key); first[name] == "" {
			first[name] = identity(r)
		}
	}
	maps.DeleteFunc(first, func(name, _ string) bool { return want[name] == "" })
	if firsts := m.firsts(); !maps.Equal(first, firsts) {
		t.Fatalf("scan with older versions begins rows with\n%v, want\n%v", first, firsts)
	}
	err = m.eng.Update(ctx, func(tx *engine.Tx) error {
		in := m.t.In(tx)
		if got := named(collect(t, in.Scan(versions.Selection{}))); !maps.Equal(got, want) {
			t.Fatalf("scan in a transaction:\n%v, want\n%v", got, want)
		}
		for _, tenant := range modelTenants {
			for _, key := range modelKeys {
				row, found, err := in.Get(tenant, []byte(key))
				if err != nil {
					return err
				}
				a, err := m.t.Get(ctx, tenant, []byte(key))
				if err != nil {
					return err
				}
				name := tenant + "|" + key
				if found != (want[name] != "") || a.Found != found || found && (identity(row) != want[name] || identity(a.Row) != want[name]) {
					t.Fatalf("%q: %v %v, in a transaction %v %v; want %q", name, a.Row, a.Found, row, found, want[name])
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func verify(t testing.TB, e *engine.Engine) {
	t.Helper()
	report, err := e.Admin().Verify(ctx)
	if err != nil || report.Total > 0 {
		t.Fatal(report, err)
	}
}

// Random steps, with power failures, compared with a model.
func TestRandomRunAgreesWithTheModel(t *testing.T) {
	for seed := range uint64(8) {
		m := newModel(seed)
		mem := newMem()
		for range 6 {
			m.open(t, mem)
			for range 30 {
				if m.step(t); m.rng.IntN(4) == 0 {
					m.check(t)
				}
			}
			m.check(t)
			verify(t, m.eng)
			mem = mem.CrashClone(0)
			_ = m.eng.Close()
		}
	}
}

// The power fails before and after every batch of every step: readers see the step whole or not at
// all, and a later pass of Prune changes nothing for them.
func TestPowerFailureAtEveryStep(t *testing.T) {
	for seed := range uint64(4) {
		m := newModel(seed + 100)
		mem := newMem()
		m.open(t, mem)
		clones := make(chan *cut, 10_000)
		watch(mem, clones)
		cuts := 0
		for range 80 {
			before, after := m.step(t)
			for len(clones) > 0 {
				c := <-clones
				cuts++
				checkCut(t, m, c, before, after)
			}
		}
		if cuts < 150 {
			t.Errorf("%d power cuts only", cuts)
		}
	}
}

// A cut is a store as a power failure would leave it.
type cut struct {
	at string
	s  storage.Store
}

func checkCut(t *testing.T, m *model, c *cut, before, after map[string]string) {
	t.Helper()
	e := openEngine(t, c.s, m.c)
	defer e.Close()
	table := mustTable(t, e, versions.Options{KeepDeletions: m.keep, Clock: m.c.now, Fill: fill})
	for _, when := range []string{"after the power failure", "after Prune"} {
		got := named(scan(t, table, versions.Selection{}))
		if !maps.Equal(got, before) && !maps.Equal(got, after) {
			t.Fatalf("%s, %s:\n%v, want\n%v or\n%v", c.at, when, got, before, after)
		}
		if _, err := table.Prune(ctx); err != nil {
			t.Fatal(err)
		}
	}
	verify(t, e)
}
