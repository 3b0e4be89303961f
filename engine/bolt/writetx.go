package bolt

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	bbolt "go.etcd.io/bbolt"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A writeTx is one transaction. It reads existing data without bbolt, which checks nothing: each
// page on the path to a change is checked before bbolt uses it.
type writeTx struct {
	tx   *bbolt.Tx
	txid uint64
	base *readTx
	head head

	removed       []*pages.Removals // removals from trees of entries
	buckets, sums pages.Removals    // removals from the trees with these names
}

func (w *writeTx) run(last uint64, fn func(w *writeTx) error) (err error) {
	if w.txid != last+1 {
		return pages.Damaged("transaction %d follows on %d", w.txid, last)
	}
	w.base.pages.ID = last
	if w.head, err = w.base.head(); err != nil {
		return err
	}
	w.head.txid = w.txid
	if err := fn(w); err != nil {
		return err
	}
	for _, r := range append(w.removed, &w.buckets, &w.sums) {
		if err := r.Check(); err != nil {
			return err
		}
	}
	if err := putSealed(w.tx.Bucket(metaDir), metaSpace, headKey, w.head.encode(), nil); err != nil {
		return err
	}
	return w.tx.Commit()
}

// A change puts the value entry[keySize:] under the key entry[:keySize], or removes that key.
type change struct {
	entry   []byte
	keySize int
	remove  bool
}

func (c *change) key() []byte { return c.entry[:c.keySize] }

func (w *writeTx) claims(writes []storage.ClaimWrite) error {
	order := lastWrites(len(writes), func(i int) []byte { return writes[i].Key })
	size := 0
	for _, i := range order {
		size += len(writes[i].Key) + len(writes[i].Record) + pages.SealSize
	}
	arena := make([]byte, 0, size)
	changes := make([]change, 0, len(order))
	var prefix []byte
	var seed uint32
	for _, i := range order {
		key := writes[i].Key
		if prefix == nil || !bytes.HasPrefix(key, prefix) {
			if err := w.bucket(prefix, changes); err != nil {
				return err
			}
			_, tail, err := storage.SplitKey(key)
			if err != nil {
				return err
			}
			prefix, changes = key[:len(key)-len(tail)], changes[:0]
			seed = pages.Seed(claimSpace, prefix)
		}
		tail := key[len(prefix):]
		if len(tail) == 0 {
			return fmt.Errorf("claim key %x has no id", key)
		}
		from := len(arena)
		arena = pages.AppendEntry(arena, seed, tail, writes[i].Record)
		changes = append(changes, change{arena[from:len(arena):len(arena)], len(tail), writes[i].Record == nil})
	}
	return w.bucket(prefix, changes)
}

// bucket changes the claims under a prefix, and removes the bucket if it becomes empty.
func (w *writeTx) bucket(prefix []byte, changes []change) error {
	if len(changes) == 0 {
		return nil
	}
	t, found, err := w.base.bucket(prefix)
	if err != nil {
		return err
	}
	name := sumKey(claimSpace, prefix)
	before, summed, err := w.base.sum(name)
	if err != nil {
		return err
	}
	if found != summed {
		return pages.Damaged("the bucket with prefix %x has no sum", prefix)
	}
	if !found {
		t = pages.Tree{}
	}
	e, err := tally(t, before, changes)
	if err != nil {
		return err
	}
	if e.after.count == 0 {
		if found {
			if err := w.deleteBucket(prefix); err != nil {
				return err
			}
		}
		return w.putSum(name, before, found, nil)
	}
	b, err := w.tx.Bucket(claimsDir).CreateBucketIfNotExists(prefix)
	if err != nil {
		return err
	}
	if err := w.put(b, changes, e); err != nil {
		return err
	}
	return w.putSum(name, before, found, &e.after)
}

// drop removes a bucket of claims. The caller has checked all its pages.
func (w *writeTx) drop(prefix []byte) error {
	name := sumKey(claimSpace, prefix)
	before, found, err := w.base.sum(name)
	if err != nil {
		return err
	}
	if !found {
		return pages.Damaged("the bucket with prefix %x has no sum", prefix)
	}
	if err := w.deleteBucket(prefix); err != nil {
		return fmt.Errorf("dropping the bucket with prefix %x: %w", prefix, err)
	}
	return w.putSum(name, before, true, nil)
}

// deleteBucket removes a bucket of claims from the list of buckets. The caller has checked all its
// pages.
func (w *writeTx) deleteBucket(prefix []byte) error {
	if err := w.noteRemoval(&w.buckets, claimsDir, prefix); err != nil {
		return err
	}
	return w.tx.Bucket(claimsDir).DeleteBucket(prefix)
}

// noteRemoval records that an entry of a top-level bucket is removed.
func (w *writeTx) noteRemoval(r *pages.Removals, dir, name []byte) (err error) {
	if r.Tree, err = w.base.dir(dir); err != nil {
		return err
	}
	return r.Tree.With(func(c *pages.Cursor) error {
		found, err := c.Seek(name)
		if err == nil && found {
			r.Remove(c)
		}
		return err
	})
}

func (w *writeTx) states(writes []storage.StateWrite) error {
	if len(writes) == 0 {
		return nil
	}
	seed := pages.Seed(stateSpace, nil)
	var changes []change
	for _, i := range lastWrites(len(writes), func(i int) []byte { return writes[i].Key }) {
		key := stateKey(writes[i].Key)
		changes = append(changes, change{pages.AppendEntry(nil, seed, key, writes[i].Value), len(key), writes[i].Value == nil})
	}
	return w.dir(stateDir, stateSpace, changes)
}

func (w *writeTx) journal(seq uint64, entry []byte) error {
	key := journalKey(seq)
	return w.dir(journalDir, journalSpace, []change{{pages.AppendEntry(nil, pages.Seed(journalSpace, nil), key, entry), len(key), false}})
}

// dir changes a top-level bucket of entries.
func (w *writeTx) dir(dir []byte, space byte, changes []change) error {
	t, err := w.base.dir(dir)
	if err != nil {
		return err
	}
	name := sumKey(space, nil)
	before, found, err := w.base.sum(name)
	if err != nil {
		return err
	}
	if !found {
		return pages.Damaged("bucket %s has no sum", dir)
	}
	e, err := tally(t, before, changes)
	if err != nil {
		return err
	}
	if err := w.put(w.tx.Bucket(dir), changes, e); err != nil {
		return err
	}
	return w.putSum(name, before, true, &e.after)
}

// An effect is the effect of changes on a tree.
type effect struct {
	after     sum // the new sum of the tree
	removed   pages.Removals
	appending bool // all changes are after the existing entries
}

// tally returns the effect of changes, which are in key order, on tree t, which may be the zero
// tree.
func tally(t pages.Tree, before sum, changes []change) (*effect, error) {
	e := &effect{after: before, removed: pages.Removals{Tree: t}}
	if t.Tx == nil {
		for _, c := range changes {
			if !c.remove {
				e.after.add(c.entry)
			}
		}
		e.appending = true
		return e, nil
	}
	return e, t.With(func(c *pages.Cursor) error {
		for i := range changes {
			found, err := c.Seek(changes[i].key())
			if err != nil {
				return err
			}
			if i == 0 {
				e.appending = c.Done()
			}
			e.add(c, found, &changes[i])
		}
		return nil
	})
}

// add adds a change. found reports whether the cursor is at an entry with its key.
func (e *effect) add(c *pages.Cursor, found bool, change *change) {
	if found {
		e.after.remove(c.Entry())
		if change.remove {
			e.removed.Remove(c)
		} else {
			e.removed.Replace(c, change.entry)
		}
	}
	if !change.remove {
		e.after.add(change.entry)
	}
}

// put applies the changes, whose effect is e, to a bucket.
func (w *writeTx) put(b *bbolt.Bucket, changes []change, e *effect) error {
	w.removed = append(w.removed, &e.removed)
	if e.appending {
		b.FillPercent = fullPages
	}
	for i := range changes {
		var err error
		if c := &changes[i]; c.remove {
			err = b.Delete(c.key())
		} else {
			err = b.Put(c.key(), c.entry[c.keySize:])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// putSum replaces or removes a sum, and updates the head's sum of the sums.
func (w *writeTx) putSum(name []byte, before sum, existed bool, after *sum) error {
	sums := w.tx.Bucket(sumsDir)
	if existed {
		w.head.sums.remove(pages.AppendEntry(nil, pages.Seed(sumSpace, nil), name, before.encode()))
	}
	if after == nil {
		if err := w.noteRemoval(&w.sums, sumsDir, name); err != nil {
			return err
		}
		return sums.Delete(name)
	}
	return putSealed(sums, sumSpace, name, after.encode(), &w.head.sums)
}

// lastWrites returns the indices of the last write to each key, in key order.
func lastWrites(n int, key func(i int) []byte) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		if c := bytes.Compare(key(a), key(b)); c != 0 {
			return c
		}
		return cmp.Compare(b, a)
	})
	return slices.CompactFunc(order, func(a, b int) bool { return bytes.Equal(key(a), key(b)) })
}
