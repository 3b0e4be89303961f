package pebble

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A bucketList has the buckets with claims in Pebble's tables, by prefixes. Seeking each bucket in
// each run takes long, so that is done once: later buckets come from sealed tables. A bucket is not
// forgotten before it is dropped, so that none is missed; one of which claims were removed is marked,
// as there may be none left. unsealed.mu is held while the list is used.
type bucketList struct {
	complete bool // it has all buckets
	claimed  map[string]bool
	drops    int
}

func newBucketList() bucketList { return bucketList{claimed: make(map[string]bool)} }

// clone returns a list that also has the buckets of tables in memory, of which the newer come first.
func (l *bucketList) clone(tables []*table) bucketList {
	c := *l
	c.claimed = maps.Clone(l.claimed)
	for _, t := range slices.Backward(tables) {
		c.add(t)
	}
	return c
}

// add adds the buckets of a table that is newer than all others.
func (l *bucketList) add(t *table) {
	for i := range t.buckets {
		switch b := &t.buckets[i]; {
		case b.live > 0:
			l.claimed[b.prefix] = true
		case b.removed > 0:
			l.claimed[b.prefix] = false
		}
	}
}

// complement makes the list complete by all buckets that had claims when a clone was made. It does
// nothing if a bucket was dropped since.
func (l *bucketList) complement(clone *bucketList, prefixes []string) {
	if l.drops != clone.drops {
		return
	}
	for _, prefix := range prefixes {
		if _, known := l.claimed[prefix]; !known {
			l.claimed[prefix] = true
		}
	}
	l.complete = true
}

// drop removes buckets, in which nothing is claimed any more.
func (l *bucketList) drop(prefixes []string) {
	l.drops++
	for _, prefix := range prefixes {
		delete(l.claimed, prefix)
	}
}

func (r *claimReader) Buckets(fn func(storage.Bucket) error) error {
	var known bucketList
	walk := bucketWalk{reader: r}
	look := func(tables []*table) { known = r.unsealed.known.clone(tables) }
	err := r.claims(prefixSpan([]byte{claimSpace}), look, func(tables []*table, c *cursor) error {
		walk.tables, walk.cursor = tables, c
		if known.complete {
			return walk.known(&known)
		}
		err := walk.all(&known)
		if err == nil && walk.damage.Err == nil {
			r.unsealed.complement(&known, walk.found)
		}
		return err
	})
	if errors.As(err, new(*storage.DamageError)) { // which would mean that all others were found
		return fmt.Errorf("%w: listing the buckets: %v", storage.ErrDamaged, err) //nolint:errorlint // not a DamageError
	}
	if err != nil {
		return err
	}
	slices.Sort(walk.found)
	for _, prefix := range slices.Compact(walk.found) {
		b, _, err := storage.SplitKey([]byte(prefix))
		if err != nil {
			return err
		}
		if err := fn(b); err != nil {
			return err
		}
	}
	if walk.damage.Err != nil {
		return &walk.damage
	}
	return nil
}

// A bucketWalk finds buckets. What damaged tables hide from it is in damage.
type bucketWalk struct {
	reader *claimReader
	tables []*table // in memory
	cursor *cursor
	found  []string // their prefixes
	damage storage.DamageError
}

// known finds the buckets of a complete list that have claims, or may have some in the damage.
func (w *bucketWalk) known(list *bucketList) error {
	for prefix, some := range list.claimed {
		if !some && !w.reader.unsealed.holdsSome(w.tables, prefix) {
			start := spaced(claimSpace, []byte(prefix))
			w.cursor.limit(successor(start))
			w.cursor.do(func() bool { return w.cursor.it.SeekGE(start) })
			if !w.seen(prefix) {
				continue
			}
			if _, ok := w.cursor.repair(&w.damage); !ok {
				return w.cursor.err
			}
		}
		w.found = append(w.found, prefix)
	}
	return nil
}

// all finds the buckets that have claims, whether the list has them or not.
func (w *bucketWalk) all(list *bucketList) error {
	for prefix := range list.claimed {
		if w.reader.unsealed.holdsSome(w.tables, prefix) {
			w.found = append(w.found, prefix)
		}
	}
	return w.within(prefixSpan([]byte{claimSpace}))
}

// within finds the buckets in Pebble's tables that begin in a range. Any move may meet a damaged table
// after the key it would find, as Pebble merges all tables: what lies before that table is found
// without it. Then the walk goes on after it, without the buckets that are only there or between its ends.
func (w *bucketWalk) within(span pebble.KeyRange) error {
	w.cursor.limit(span.End)
	for at := span.Start; bytes.Compare(at, span.End) < 0; {
		if w.cursor.do(func() bool { return w.cursor.it.SeekGE(at) }) {
			prefix, _ := splitPrefix(w.cursor.it.Key()[1:])
			own := string(prefix)
			at = successor(spaced(claimSpace, prefix))
			if w.seen(own) {
				w.found = append(w.found, own)
			}
			if _, ok := w.cursor.repair(&w.damage); !ok {
				return w.cursor.err
			}
			continue
		}
		cause := w.cursor.err
		if cause == nil {
			return nil
		}
		damaged, ok := w.cursor.repair(&w.damage)
		if !ok || bytes.Compare(damaged.End, at) <= 0 || bytes.Compare(span.End, damaged.Start) <= 0 {
			return cause
		}
		if bytes.Compare(at, damaged.Start) < 0 {
			if err := w.within(pebble.KeyRange{Start: at, End: damaged.Start}); err != nil {
				return err
			}
			w.cursor.limit(span.End)
		}
		at = damaged.End
	}
	return nil
}

// seen reports whether there is a claim at or after the cursor, in the bucket with that prefix, that
// memory does not remove. There may be one if the cursor fails.
func (w *bucketWalk) seen(prefix string) bool {
	start := spaced(claimSpace, []byte(prefix))
	for ok := w.cursor.err == nil && w.cursor.it.Valid(); ok && bytes.HasPrefix(w.cursor.it.Key(), start); ok = w.cursor.do(w.cursor.it.Next) {
		if !w.reader.unsealed.removes(w.tables, w.cursor.it.Key()[1:]) {
			return true
		}
	}
	return w.cursor.err != nil
}
