package pebble

import (
	"bytes"
	"errors"
	"fmt"
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
	var damage storage.DamageError
	look := func(tables []*table) { known = r.unsealed.known.clone(tables) }
	err := r.claims(prefixSpan([]byte{claimSpace}), look, func(tables []*table, c *cursor) (err error) {
		if known.complete {
			found, err = r.knownBuckets(&known, tables, c, &damage)
			return err
		}
		if found, err = r.allBuckets(&known, tables, c, &damage); err == nil && damage.Err == nil {
			r.unsealed.complement(&known, found)
		}
		return err
	})
	if errors.As(err, new(*storage.DamageError)) { // which would mean that all others were found
		return fmt.Errorf("%w: listing the buckets: %v", storage.ErrDamaged, err) //nolint:errorlint // not a DamageError
	}
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
	if damage.Err != nil {
		return &damage
	}
	return nil
}

// knownBuckets returns the buckets of a complete list that have claims, or may have some in the damage.
func (r *claimReader) knownBuckets(list *bucketList, tables []*table, c *cursor, damage *storage.DamageError) (found []string, err error) {
	for prefix, some := range list.claimed {
		if !some {
			if some = r.unsealed.holdsSome(tables, prefix); !some {
				start := spaced(claimSpace, []byte(prefix))
				c.do(func() bool { return c.it.SeekGE(start) })
				if some, err = r.seen(tables, prefix, c); err != nil {
					if c.pass(start, damage) == nil {
						return nil, err
					}
					some = true
				}
			}
		}
		if some {
			found = append(found, prefix)
		}
	}
	return found, c.err
}

// allBuckets returns the buckets that have claims, whether the list has them or not. It passes over
// damaged tables, with all buckets that are only there or between their ends.
func (r *claimReader) allBuckets(list *bucketList, tables []*table, c *cursor, damage *storage.DamageError) (found []string, err error) {
	for prefix := range list.claimed {
		if r.unsealed.holdsSome(tables, prefix) {
			found = append(found, prefix)
		}
	}
	at := []byte{claimSpace}
	for ok := c.do(c.it.First); ; {
		if ok {
			prefix, _ := splitPrefix(c.it.Key()[1:])
			own := string(prefix)
			at = successor(spaced(claimSpace, prefix))
			if some, err := r.seen(tables, own, c); some || err != nil {
				found = append(found, own)
			}
		} else if at = c.pass(at, damage); at == nil {
			return found, c.err
		}
		ok = c.do(func() bool { return c.it.SeekGE(at) })
	}
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
