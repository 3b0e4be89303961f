package versions

import (
	"iter"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
)

// A TxTable is a table as a transaction sees it: a snapshot from the start of the transaction, with
// its own writes. Reads of it have no LastApplied: a transaction that commits has seen the newest
// versions, or is in conflict. Its writes commit with the claims, the offsets and all other writes
// of the transaction, or not at all. Methods return the errors of engine.Tx: ErrNoTransaction,
// ErrConflict, ErrLimit.
type TxTable struct {
	t       *Table
	rows    driver.TxKeys
	changed driver.TxKeys // see appliedSpace
}

// In returns the table as a transaction sees it.
func (t *Table) In(tx *engine.Tx) TxTable {
	return TxTable{t, driver.TxIn(tx, rowSpace), driver.TxIn(tx, appliedSpace)}
}

// Put writes one version of a row. It reads nothing, so it costs as much as a write and never
// conflicts with another Put. Neither the order in which versions arrive nor their number matters.
// Slices are copied.
//
// The winning version depends only on the set of versions that were put. It is the one with the
// greatest Version, and among these the one with the greatest Offset. A repeat of a version with
// the same Time and Payload, or of a deletion, counts with the lowest offset with which it was put,
// so that a source that sends changes again never sets a row back. If versions and offsets are
// equal, a deletion wins over rows, and among different rows the one whose encoding has the lowest
// hash (XXH3) wins, whichever came first. A Put of a version that is already stored changes
// nothing.
func (t TxTable) Put(r Row) error {
	if err := r.check(&t.t.opt); err != nil {
		return err
	}
	value, tie := r.encode(t.t.opt.Clock)
	p := place{t.t.rowPrefix(r.Tenant, r.Key), r.Version, tie, r.Offset}
	if err := t.rows.Put(p.key(), value); err != nil {
		return err
	}
	return t.applied()
}

// Delete puts a version that is a deletion: readers do not see the row until a Put of a greater
// version. Options.KeepDeletions says how long the deletion is kept. Use Put with Row.Deleted for a
// deletion that has an offset.
func (t TxTable) Delete(tenant string, key []byte, version uint64) error {
	return t.Put(Row{Tenant: tenant, Key: key, Version: version, Deleted: true})
}

// applied writes the time of the commit.
func (t TxTable) applied() error { return t.changed.PutCommitTime(t.t.name) }

// Get returns the newest version of a row, including the transaction's own writes. The transaction
// conflicts with a Put of a version that Get would have returned instead. If Get returns a row with
// an offset, it also conflicts with each Put of the same Version; if the row is partial, with each
// Put of a version that Get has read past. It conflicts with no other Put.
func (t TxTable) Get(tenant string, key []byte) (row Row, found bool, err error) {
	if err := checkName(tenant, key); err != nil {
		return Row{}, false, err
	}
	m, err := t.t.newest(t.t.rowPrefix(tenant, key), t.rows.Scan)
	return m.row, m.found, err
}

// Scan returns an iterator over the newest versions of the selected rows, without deleted ones, in
// the order of tenants and keys, from one snapshot. The transaction conflicts with every Put to the
// part of the table that the iteration has passed, and to the row that follows.
func (t TxTable) Scan(s Selection) iter.Seq2[Row, error] {
	return t.t.exact(&s, t.rows.Scan)
}
