package pebble

import (
	"bytes"
	"maps"
	"slices"

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
	var found []string
	look := func(tables []*table) { known = r.unsealed.known.clone(tables) }
	err := r.claims(prefixSpan([]byte{claimSpace}), look, func(tables []*table, c *cursor) (err error) {
		if known.complete {
			found, err = r.knownBuckets(&known, tables, c)
			return err
		}
		if found, err = r.allBuckets(&known, tables, c); err == nil {
			r.unsealed.complement(&known, found)
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Sort(found)
	for _, prefix := range slices.Compact(found) {
		b, _, err := storage.SplitKey([]byte(prefix))
		if err != nil {
			return err
		}
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

// knownBuckets returns the buckets of a complete list that have claims.
func (r *claimReader) knownBuckets(list *bucketList, tables []*table, c *cursor) (found []string, err error) {
	for prefix, some := range list.claimed {
		if !some {
			if some = r.unsealed.holdsSome(tables, prefix); !some {
				c.do(func() bool { return c.it.SeekGE(spaced(claimSpace, []byte(prefix))) })
				if some, err = r.seen(tables, prefix, c); err != nil {
					return nil, err
				}
			}
		}
		if some {
			found = append(found, prefix)
		}
	}
	return found, c.err
}

// allBuckets returns the buckets that have claims, whether the list has them or not.
func (r *claimReader) allBuckets(list *bucketList, tables []*table, c *cursor) (found []string, err error) {
	for prefix := range list.claimed {
		if r.unsealed.holdsSome(tables, prefix) {
			found = append(found, prefix)
		}
	}
	for ok := c.do(c.it.First); ok; {
		prefix, _ := splitPrefix(c.it.Key()[1:])
		own := string(prefix)
		if some, err := r.seen(tables, own, c); err != nil {
			return nil, err
		} else if some {
			found = append(found, own)
		}
		next := successor(spaced(claimSpace, []byte(own)))
		ok = c.do(func() bool { return c.it.SeekGE(next) })
	}
	return found, c.err
}

// seen reports whether there is a claim at or after c, in the bucket with that prefix, that memory
// does not remove.
func (r *claimReader) seen(tables []*table, prefix string, c *cursor) (bool, error) {
	start := spaced(claimSpace, []byte(prefix))
	for ok := c.it.Valid(); ok && bytes.HasPrefix(c.it.Key(), start); ok = c.do(c.it.Next) {
		if !r.unsealed.removes(tables, c.it.Key()[1:]) {
			return true, c.err
		}
	}
	return false, c.err
}
