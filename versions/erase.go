package versions

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
)

// AllVersions makes Erase hide every later Put of the row.
const AllVersions = math.MaxUint64

const eraseRetries = 100

// Erase removes all versions of a row permanently, durably on return, and makes the store reclaim
// their space. A mark without content remains: table, tenant, key and the version through, or the
// newest stored version if that is greater. The mark is never removed. A version that is not
// greater than the mark's is not visible to Get and Scan, whenever it arrives, and the next pass of
// Prune removes it. A Put of a greater version creates the row again. So set through to the newest
// version that the source may still send, or to AllVersions.
//
// The erased versions can no longer be read, not even by ScanWithOlderVersions. Pebble has removed
// them from its tables. A log file that it keeps for reuse contains old bytes until it is
// overwritten or the store is closed. bbolt has them in free pages until these are reused, or the
// file is replaced by a Backup of it. Erase does not affect backups or the topic from which the
// rows come. If the key itself must not remain, use a keyed hash of it as the key.
//
// If Erase returns an error, or the process dies, the row may be erased already but its space not
// reclaimed; call Erase again. For a row that is written continuously, Erase may return
// ErrConflict.
func (t *Table) Erase(ctx context.Context, tenant string, key []byte, through uint64) error {
	if err := checkName(tenant, key); err != nil {
		return err
	}
	row := t.rowPrefix(tenant, key)
	mark, err := t.mark(ctx, row, through)
	if err != nil {
		return fmt.Errorf("hapax: versions: erasing a row: %w", err)
	}
	for more := true; more; {
		if more, err = t.removeAfter(ctx, row, mark); err != nil {
			return fmt.Errorf("hapax: versions: erasing a row, which is marked as erased: %w", err)
		}
	}
	if err := driver.In(t.eng, rowSpace).Reclaim(ctx, row); err != nil {
		return fmt.Errorf("hapax: versions: reclaiming the space of an erased row: %w", err)
	}
	return nil
}

// mark hides all versions of a row up to through and returns the key of the mark.
func (t *Table) mark(ctx context.Context, row []byte, through uint64) (mark []byte, err error) {
	err = t.eng.Update(ctx, func(tx *engine.Tx) error {
		in := t.In(tx)
		version := through
		for kv, err := range in.rows.Scan(engine.Range{Prefix: row, Limit: 1}) {
			if err != nil {
				return err
			}
			newest, err := t.place(kv.Key)
			if err != nil {
				return err
			}
			version = max(version, newest.version)
		}
		mark = appendSuffix(append([]byte{}, row...), version, tieErasure)
		return errors.Join(in.rows.Put(mark, []byte{kindErasure}), in.applied())
	}, engine.Retries(eraseRetries))
	return mark, err
}

// removeAfter removes versions of a row that its mark hides, and reports whether there may be more
// of them.
func (t *Table) removeAfter(ctx context.Context, row, mark []byte) (more bool, err error) {
	var keys [][]byte
	for kv, err := range driver.In(t.eng, rowSpace).Scan(ctx, engine.Range{Prefix: row, After: mark, Limit: pruneKeys}) {
		if err != nil {
			return false, err
		}
		keys = append(keys, kv.Key)
	}
	if len(keys) == 0 {
		return false, nil
	}
	err = t.eng.Update(ctx, func(tx *engine.Tx) error {
		rows := driver.TxIn(tx, rowSpace)
		for _, key := range keys {
			if err := rows.Delete(key); err != nil { // the mark remains, so that they remain hidden
				return err
			}
		}
		return nil
	})
	return err == nil && len(keys) == pruneKeys, err
}
