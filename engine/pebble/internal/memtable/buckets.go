package memtable

import (
	"maps"
	"slices"
)

// Buckets lists the buckets whose claims are no longer in memory, by prefix. Seeking each bucket in
// each run takes long, so that is done once; later buckets are added from sealed tables. A bucket
// is not removed before it is dropped, so none is missed.
type Buckets struct {
	Complete bool            // the list has all buckets
	Claimed  map[string]bool // false if claims of the bucket were removed, and none may be left
	drops    int
}

func newBuckets() Buckets { return Buckets{Claimed: make(map[string]bool)} }

// clone returns a copy of the list with the buckets of tables in memory, newer tables first.
func (l *Buckets) clone(tables []*Table) Buckets {
	c := *l
	c.Claimed = maps.Clone(l.Claimed)
	for _, t := range slices.Backward(tables) {
		c.add(t)
	}
	return c
}

// add adds the buckets of a table that is newer than all others.
func (l *Buckets) add(t *Table) {
	for i := range t.buckets {
		switch b := &t.buckets[i]; {
		case b.live > 0:
			l.Claimed[b.prefix] = true
		case b.removed > 0:
			l.Claimed[b.prefix] = false
		}
	}
}

// complement completes the list with all buckets that had claims when a clone was made. It does
// nothing if a bucket was dropped since.
func (l *Buckets) complement(clone *Buckets, prefixes []string) {
	if l.drops != clone.drops {
		return
	}
	for _, prefix := range prefixes {
		if _, known := l.Claimed[prefix]; !known {
			l.Claimed[prefix] = true
		}
	}
	l.Complete = true
}

// drop removes buckets. No later claims are in them.
func (l *Buckets) drop(prefixes []string) {
	l.drops++
	for _, prefix := range prefixes {
		delete(l.Claimed, prefix)
	}
}
