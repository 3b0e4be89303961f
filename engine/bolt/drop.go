package bolt

import (
	"bytes"
	"context"
	"slices"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A dropper drops buckets.
type dropper struct {
	core   *core
	writer *writer
}

// dropTxPages is the maximum number of pages that one transaction of Drop frees, unless a single
// bucket has more. It is limited because Apply waits for the transaction.
const dropTxPages = 4096

func (d *dropper) Drop(buckets []storage.Bucket) error {
	if err := d.core.failed(); err != nil {
		return err
	}
	var prefixes [][]byte
	for _, b := range buckets {
		prefixes = append(prefixes, b.AppendPrefix(nil))
	}
	slices.SortFunc(prefixes, bytes.Compare)
	prefixes = slices.CompactFunc(prefixes, bytes.Equal)

	var group [][]byte
	pages := uint64(0)
	for _, prefix := range prefixes {
		size, err := d.verified(prefix)
		if err != nil {
			return err
		}
		if size == 0 {
			continue
		}
		group = append(group, prefix)
		if pages += size/uint64(d.core.pageSize) + 1; pages >= dropTxPages {
			if err := d.drop(group); err != nil {
				return err
			}
			group, pages = group[:0], 0
		}
	}
	if err := d.drop(group); err != nil {
		return err
	}
	return d.core.syncCopy()
}

// verified reads and checks a whole bucket and returns the estimated size of its claims, 0 if there
// are none.
func (d *dropper) verified(prefix []byte) (size uint64, err error) {
	err = d.core.view(func(tx *readTx) error {
		t, found, err := tx.bucket(prefix)
		if err != nil || !found {
			return err
		}
		want, _, err := tx.sum(sumKey(claimSpace, prefix))
		if err != nil {
			return err
		}
		k := checker{ctx: context.Background(), at: tx, used: pages.NewUsed(&tx.pages)}
		sums := map[string]sum{"": want}
		size = want.bytes
		return k.compare(t, "", sums, nil)
	})
	return size, err
}

func (d *dropper) drop(prefixes [][]byte) error {
	if len(prefixes) == 0 {
		return nil
	}
	return d.writer.update(func(w *writeTx) error {
		for _, prefix := range prefixes {
			if err := w.drop(prefix); err != nil {
				return err
			}
		}
		return nil
	})
}
