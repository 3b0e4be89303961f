package versions

import (
	"iter"

	"github.com/hapax-dev/hapax/engine"
)

// A TxTable is a table as a transaction sees it: a snapshot from the start of the transaction, with
// its own writes. Reads of it have no LastApplied: a transaction that commits has seen the newest
// versions, or is in conflict. Its writes commit with the claims, the offsets and all other writes
// of the transaction, or not at all. Methods return the errors of engine.Tx: ErrNoTransaction,
// ErrConflict, ErrLimit.
type TxTable struct {
	t       *Table
	rows    engine.TxSpaceKeys
	changed engine.TxSpaceKeys // see appliedSpace
}

// In returns the table as a transaction sees it.
func (t *Table) In(tx *engine.Tx) TxTable { return TxTable{t, tx.In(rowSpace), tx.In(appliedSpace)} }

// Put writes one version of a row. It reads nothing, so that it costs as much as a write and never
// conflicts with another Put; neither the order in which versions arrive nor their number matters.
// Slices are copied.
//
// Which version wins depends only on the set of versions that were put: the one with the greatest
// Version, and of these the one with the greatest Offset. A repeat of a version with the same Time
// and Payload, or of a deletion, counts with the least offset that it was put with, so that a source
// that sends changes again never sets a row back. Of equal versions and offsets, a deletion wins
// over rows, and of different rows the one whose encoding has the least hash (XXH3), whichever came
// first. A Put of a version that is already stored changes nothing.
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

// Get returns the newest version of a row, with the transaction's own writes. The transaction
// conflicts with a Put of a version that Get would have returned instead, and with no other; if it
// returns a row with an offset, with each Put of that version; and if that is partial, with each Put
// of a version that Get has read past.
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
