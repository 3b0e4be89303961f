package bolt

import "sync"

var cursors = sync.Pool{New: func() any { return new(cursor) }}

// with runs fn with a cursor on a tree.
func with(t tree, fn func(c *cursor) error) error {
	c := cursors.Get().(*cursor)
	c.open(t)
	err := fn(c)
	c.open(tree{}) // keeps no reference to the readTx
	cursors.Put(c)
	return err
}

func (tx *readTx) rootTree() tree {
	return tree{at: tx, what: "root", root: tx.root, dirs: true}
}

// dir opens a top-level bucket, all of which exist.
func (tx *readTx) dir(name []byte) (tree, error) {
	t := tree{at: tx, what: string(name)}
	switch string(name) {
	case string(claimsDir):
		t.dirs = true
	case string(journalDir):
		t.seed = seedOf(journalSpace, nil)
	case string(metaDir):
		t.seed = seedOf(metaSpace, nil)
	case string(stateDir):
		t.seed = seedOf(stateSpace, nil)
	case string(sumsDir):
		t.seed = seedOf(sumSpace, nil)
	}
	found, err := t.openIn(tx.rootTree(), name)
	if err == nil && !found {
		err = damaged("bucket %s is missing", name)
	}
	return t, err
}

// openIn looks the tree up in a tree of buckets.
func (t *tree) openIn(dirs tree, name []byte) (found bool, err error) {
	err = with(dirs, func(c *cursor) error {
		found, err = c.seek(name)
		if err != nil || !found {
			return err
		}
		if err := t.parseDir(c.value()); err != nil {
			return err
		}
		t.inline = append([]byte(nil), t.inline...)
		return nil
	})
	return found, err
}

// bucket opens the claims under a prefix. If there are none, the sums must agree: names of buckets
// have no checksum.
func (tx *readTx) bucket(prefix []byte) (t tree, found bool, err error) {
	claims, err := tx.dir(claimsDir)
	if err != nil {
		return tree{}, false, err
	}
	t = tree{at: tx, what: string(claimsDir), seed: seedOf(claimSpace, prefix)}
	if found, err = t.openIn(claims, prefix); err != nil || found {
		return t, found, err
	}
	if _, summed, err := tx.sum(sumKey(claimSpace, prefix)); err != nil {
		return tree{}, false, err
	} else if summed {
		return tree{}, false, damaged("the bucket with prefix %x is missing", prefix)
	}
	return tree{}, false, nil
}

func (tx *readTx) sum(key []byte) (s sum, found bool, err error) {
	sums, err := tx.dir(sumsDir)
	if err != nil {
		return sum{}, false, err
	}
	err = with(sums, func(c *cursor) error {
		if found, err = c.seek(key); err != nil || !found {
			return err
		}
		s, err = parseSum(c.record())
		return err
	})
	return s, found, err
}

// head reads the head, which must be of the same transaction.
func (tx *readTx) head() (h head, err error) {
	t, err := tx.dir(metaDir)
	if err != nil {
		return head{}, err
	}
	err = with(t, func(c *cursor) error {
		found, err := c.seek(headKey)
		if err != nil {
			return err
		}
		if !found {
			return damaged("the head is missing")
		}
		h, err = parseHead(c.record())
		return err
	})
	if err == nil && h.txid != tx.txid {
		err = damaged("the head is of transaction %d, the meta page of %d", h.txid, tx.txid)
	}
	return h, err
}

// get returns a copy of the record under key.
func (t tree) get(key []byte) (record []byte, found bool, err error) {
	err = with(t, func(c *cursor) error {
		if found, err = c.seek(key); err != nil || !found {
			return err
		}
		record = append(make([]byte, 0, len(c.record())), c.record()...)
		return nil
	})
	return record, found, err
}

// each calls fn for each entry from key on, until it returns an error.
func (t tree) each(from []byte, fn func(c *cursor) error) error {
	return with(t, func(c *cursor) error {
		if len(from) == 0 {
			if err := c.first(); err != nil {
				return err
			}
		} else if _, err := c.seek(from); err != nil {
			return err
		}
		for !c.done() {
			if err := fn(c); err != nil {
				return err
			}
			if err := c.next(); err != nil {
				return err
			}
		}
		return nil
	})
}
