package bolt

import (
	"bytes"
	"cmp"
	"encoding/binary"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
)

// A journal reads and trims the journal entries of batches.
type journal struct {
	core   *core
	writer *writer
}

// trimTxEntries is the number of journal entries that one transaction of TrimJournal removes.
const trimTxEntries = 512

func (j *journal) TrimJournal(below uint64) error {
	for {
		more, err := j.trimOnce(below)
		if err != nil || !more {
			return err
		}
	}
}

func (j *journal) trimOnce(below uint64) (more bool, err error) {
	// A transaction costs two syncs, so check first whether it is necessary.
	some := false
	err = j.core.view(func(tx *readTx) error {
		t, err := tx.dir(journalDir)
		if err != nil {
			return err
		}
		return t.With(func(c *pages.Cursor) error {
			if err := c.First(); err != nil {
				return err
			}
			some = !c.Done() && binary.BigEndian.Uint64(c.Key()) < below
			return nil
		})
	})
	if err != nil || !some {
		return false, cmp.Or(err, j.core.failed())
	}
	err = j.writer.update(func(w *writeTx) error {
		t, err := w.base.dir(journalDir)
		if err != nil {
			return err
		}
		var changes []change
		err = t.Each(nil, func(c *pages.Cursor) error {
			if binary.BigEndian.Uint64(c.Key()) >= below {
				return pages.ErrStop
			}
			if len(changes) == trimTxEntries {
				more = true
				return pages.ErrStop
			}
			changes = append(changes, change{bytes.Clone(c.Key()), len(c.Key()), true})
			return nil
		})
		if err != nil {
			return err
		}
		return w.dir(journalDir, journalSpace, changes)
	})
	return more, err
}

func (j *journal) Journal(from uint64, fn func(seq uint64, entry []byte) error) error {
	return j.core.view(func(tx *readTx) error {
		t, err := tx.dir(journalDir)
		if err != nil {
			return err
		}
		return t.Each(journalKey(from), func(c *pages.Cursor) error {
			return fn(binary.BigEndian.Uint64(c.Key()), c.Record())
		})
	})
}
