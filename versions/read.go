package versions

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
)

const readRetries = 100

// A Result is what Get returns.
type Result struct {
	Row   Row
	Found bool // false: there is no row, or its newest version is a deletion

	// LastApplied is the time of the last change of the table that the result certainly contains:
	// see Table.LastApplied.
	LastApplied time.Time
}

// Rows are what a scan returns.
type Rows struct {
	// LastApplied is the time of the last change of the table that the rows certainly contain: see
	// Table.LastApplied.
	LastApplied time.Time

	// All returns the rows in the order of tenants and keys. It reads them in pages while the loop
	// runs; each page is a snapshot at one moment, and the next page at a later one. A row that
	// does not change during the iteration is returned unchanged; for a row that changes, an older
	// or a newer version is returned. The iteration ends with an error, which is its last pair,
	// when the context ends, the engine is closed or the store fails. It may be run again.
	All iter.Seq2[Row, error]
}

// A Selection selects the rows of a table that a scan returns. The zero Selection selects all of
// them.
type Selection struct {
	Tenant       string // rows of this tenant
	TenantPrefix string // rows of tenants whose names begin with it; not together with Tenant
	KeyPrefix    []byte // rows of Tenant whose keys begin with it

	// From and Until select rows whose newest version has a Time at or after From and before Until,
	// all to the microsecond, so that consecutive selections share no row; with either, rows
	// without a time are omitted. There is no index by time: a scan reads all rows that the other
	// fields select.
	From, Until time.Time

	// After continues a scan after the last returned row, of which only Tenant and Key are used.
	// nil: from the beginning.
	After *Row
}

// span returns the range of the selected rows in the key space.
func (s *Selection) span(t *Table) (r engine.Range, err error) {
	switch {
	case len(s.Tenant) > MaxTenantBytes || len(s.TenantPrefix) > MaxTenantBytes:
		return r, &RowError{"selection", fmt.Sprintf("has a tenant of more than %d bytes", MaxTenantBytes)}
	case len(s.KeyPrefix) > MaxKeyBytes:
		return r, &RowError{"selection", fmt.Sprintf("has a prefix of keys of more than %d bytes", MaxKeyBytes)}
	case s.Tenant != "" && s.TenantPrefix != "":
		return r, &RowError{"selection", "has Tenant and TenantPrefix: set one of them"}
	case s.Tenant == "" && len(s.KeyPrefix) > 0:
		return r, &RowError{"selection", "has KeyPrefix and no Tenant: set it"}
	}
	r.Prefix = slices.Clip(t.prefix)
	if s.Tenant == "" {
		r.Prefix = appendEscaped(r.Prefix, s.TenantPrefix)
	} else {
		r.Prefix = appendEscaped(appendPart(r.Prefix, s.Tenant), s.KeyPrefix)
	}
	if s.After != nil {
		if err := checkName(s.After.Tenant, s.After.Key); err != nil {
			return r, err
		}
		// after all its versions
		r.After = appendSuffix(t.rowPrefix(s.After.Tenant, s.After.Key), 0, ^uint64(0))
	}
	return r, nil
}

// holds reports whether the time of a row is selected.
func (s *Selection) holds(r *Row) bool {
	if s.From.IsZero() && s.Until.IsZero() {
		return true
	}
	// as a Row.Time is stored
	from, until := s.From.Truncate(time.Microsecond), s.Until.Truncate(time.Microsecond)
	return !r.Time.IsZero() && !r.Time.Before(from) && (s.Until.IsZero() || r.Time.Before(until))
}

// Get returns the newest durable version of a row, as of one moment. For rows with offsets or missing
// values it needs a transaction, and returns ErrConflict if the row is written too often meanwhile.
func (t *Table) Get(ctx context.Context, tenant string, key []byte) (a Result, err error) {
	if err := checkName(tenant, key); err != nil {
		return Result{}, err
	}
	// read before the row, so that the row is at least as new
	if a.LastApplied, err = t.LastApplied(ctx); err != nil {
		return Result{}, err
	}
	row := t.rowPrefix(tenant, key)
	m, first, err := t.merge(driver.In(t.eng, rowSpace).Scan(ctx, engine.Range{Prefix: row, Limit: 1}))
	if err == nil && (first.offset > 0 || m.partial) {
		m, err = t.snapshot(ctx, row)
	}
	a.Row, a.Found = m.row, m.found
	return a, err
}

// Scan returns the newest durable version of each selected row, without deleted ones. It reads
// every stored version and skips older ones, so that it becomes cheaper after Prune has removed
// them.
func (t *Table) Scan(ctx context.Context, s Selection) (Rows, error) {
	return t.scan(ctx, s, t.exactOutside(ctx))
}

// ScanWithOlderVersions returns every durable stored version of the selected rows, newest first,
// including deletions and older versions that Prune has not removed yet. Partial rows are returned
// as they were put, and repeats are omitted. From and Until select by the time of each version. It
// is a little faster than Scan.
func (t *Table) ScanWithOlderVersions(ctx context.Context, s Selection) (Rows, error) {
	return t.scan(ctx, s, t.stored)
}

type scan func(engine.Range) iter.Seq2[engine.KeyValue, error]

func (t *Table) scan(ctx context.Context, s Selection, rows func(*Selection, scan) iter.Seq2[Row, error]) (Rows, error) {
	if _, err := s.span(t); err != nil {
		return Rows{}, err
	}
	applied, err := t.LastApplied(ctx)
	if err != nil {
		return Rows{}, err
	}
	space := driver.In(t.eng, rowSpace)
	read := func(r engine.Range) iter.Seq2[engine.KeyValue, error] { return space.Scan(ctx, r) }
	return Rows{LastApplied: applied, All: rows(&s, read)}, nil
}

// stored returns all stored versions.
func (t *Table) stored(s *Selection, read scan) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		for g, err := range t.selected(s, read) {
			if err != nil {
				yield(Row{}, err)
				return
			}
			for _, v := range g.all {
				row, err := t.decode(v.place, v.kv.Value)
				if err != nil {
					yield(Row{}, err)
					return
				}
				if s.holds(&row) && !yield(row, nil) {
					return
				}
			}
		}
	}
}

// exact returns each row as readers see it.
func (t *Table) exact(s *Selection, read scan) iter.Seq2[Row, error] {
	return t.visible(s, read, func(_ []byte, m merged) (merged, error) { return m, nil })
}

// exactOutside is exact for a scan whose pages are snapshots of different moments. It reads partial
// rows again, each from one snapshot.
func (t *Table) exactOutside(ctx context.Context) func(*Selection, scan) iter.Seq2[Row, error] {
	return func(s *Selection, read scan) iter.Seq2[Row, error] {
		return t.visible(s, read, func(row []byte, m merged) (merged, error) {
			if !m.partial {
				return m, nil
			}
			return t.snapshot(ctx, row)
		})
	}
}

// visible returns the merged rows, each after finish.
func (t *Table) visible(s *Selection, read scan, finish func(row []byte, m merged) (merged, error)) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		var row []byte // prefix of the current row
		var m merged
		show := func() bool {
			m, err := finish(row, m)
			if err != nil {
				yield(Row{}, err)
				return false
			}
			return !m.found || !s.holds(&m.row) || yield(m.row, nil)
		}
		for g, err := range t.selected(s, read) {
			if err == nil && !bytes.Equal(g.row, row) {
				if !show() {
					return
				}
				row, m = g.row, merged{}
			}
			if err == nil {
				_, err = m.add(t, g)
			}
			if err != nil {
				yield(Row{}, err)
				return
			}
		}
		show()
	}
}

// selected returns the groups of the selected rows.
func (t *Table) selected(s *Selection, read scan) iter.Seq2[*group, error] {
	r, err := s.span(t)
	if err != nil {
		return func(yield func(*group, error) bool) { yield(nil, err) }
	}
	return t.groups(read(r))
}

// snapshot returns a row as readers see it, from one snapshot.
func (t *Table) snapshot(ctx context.Context, row []byte) (m merged, err error) {
	err = t.eng.Update(ctx, func(tx *engine.Tx) (err error) {
		m, err = t.newest(row, driver.TxIn(tx, rowSpace).Scan)
		return err
	}, engine.Retries(readRetries))
	return m, err
}

// newest returns a row as readers see it. It reads the first key of the row. It reads the other
// keys of that version only if the version has offsets, and older versions only if it is partial,
// so that a transaction has as few conflicts as possible.
func (t *Table) newest(row []byte, read scan) (m merged, err error) {
	m, first, err := t.merge(read(engine.Range{Prefix: row, Limit: 1}))
	if err == nil && first.offset > 0 {
		m, _, err = t.merge(read(engine.Range{Prefix: appendVersion(row, first.version)}))
	}
	if err == nil && m.partial {
		m, _, err = t.merge(read(engine.Range{Prefix: row}))
	}
	return m, err
}

// merge merges the keys of one row, and returns the place of the first group's first version.
func (t *Table) merge(keys iter.Seq2[engine.KeyValue, error]) (m merged, first place, err error) {
	for g, err := range t.groups(keys) {
		if err != nil {
			return merged{}, place{}, err
		}
		if first.row == nil {
			first = g.all[0].place
		}
		if _, err := m.add(t, g); err != nil || m.ended {
			return m, first, err
		}
	}
	return m, first, nil
}
