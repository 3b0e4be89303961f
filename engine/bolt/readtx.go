package bolt

import "github.com/hapax-dev/hapax/engine/bolt/internal/pages"

// A readTx reads the buckets of the store as of one transaction.
type readTx struct{ pages pages.Tx }

// dir opens a top-level bucket, all of which exist.
func (tx *readTx) dir(name []byte) (pages.Tree, error) {
	t := pages.Tree{Tx: &tx.pages, What: string(name)}
	switch string(name) {
	case string(claimsDir):
		t.Dirs = true
	case string(journalDir):
		t.Seed = pages.Seed(journalSpace, nil)
	case string(metaDir):
		t.Seed = pages.Seed(metaSpace, nil)
	case string(stateDir):
		t.Seed = pages.Seed(stateSpace, nil)
	case string(sumsDir):
		t.Seed = pages.Seed(sumSpace, nil)
	}
	found, err := t.OpenIn(tx.pages.Root(), name)
	if err == nil && !found {
		err = pages.Damaged("bucket %s is missing", name)
	}
	return t, err
}

// bucket opens the claims under a prefix. If there are none, it checks that the sums agree, because
// names of buckets have no checksum.
func (tx *readTx) bucket(prefix []byte) (t pages.Tree, found bool, err error) {
	claims, err := tx.dir(claimsDir)
	if err != nil {
		return pages.Tree{}, false, err
	}
	t = pages.Tree{Tx: &tx.pages, What: string(claimsDir), Seed: pages.Seed(claimSpace, prefix)}
	if found, err = t.OpenIn(claims, prefix); err != nil || found {
		return t, found, err
	}
	if _, summed, err := tx.sum(sumKey(claimSpace, prefix)); err != nil {
		return pages.Tree{}, false, err
	} else if summed {
		return pages.Tree{}, false, pages.Damaged("the bucket with prefix %x is missing", prefix)
	}
	return pages.Tree{}, false, nil
}

func (tx *readTx) sum(key []byte) (s sum, found bool, err error) {
	sums, err := tx.dir(sumsDir)
	if err != nil {
		return sum{}, false, err
	}
	err = sums.With(func(c *pages.Cursor) error {
		if found, err = c.Seek(key); err != nil || !found {
			return err
		}
		s, err = parseSum(c.Record())
		return err
	})
	return s, found, err
}

// head reads the head and checks that it is of the same transaction.
func (tx *readTx) head() (h head, err error) {
	t, err := tx.dir(metaDir)
	if err != nil {
		return head{}, err
	}
	err = t.With(func(c *pages.Cursor) error {
		found, err := c.Seek(headKey)
		if err != nil {
			return err
		}
		if !found {
			return pages.Damaged("the head is missing")
		}
		h, err = parseHead(c.Record())
		return err
	})
	if err == nil && h.txid != tx.pages.ID {
		err = pages.Damaged("the head is of transaction %d, the meta page of %d", h.txid, tx.pages.ID)
	}
	return h, err
}
