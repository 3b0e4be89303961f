package pebble

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
	"github.com/hapax-dev/hapax/engine/storage"
)

func (r *claimReader) Buckets(fn func(storage.Bucket) error) error {
	var known memtable.Buckets
	var walk bucketWalk
	look := func(v *memtable.View) { known = v.Buckets() }
	err := r.claims(prefixSpan([]byte{claimSpace}), look, func(v *memtable.View, c *cursor) error {
		walk.view, walk.cursor = v, c
		if known.Complete {
			return walk.known(&known)
		}
		err := walk.all(&known)
		if err == nil && walk.damage.Err == nil {
			v.Complement(&known, walk.found)
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
	view   *memtable.View
	cursor *cursor
	found  []string // their prefixes
	damage storage.DamageError
}

// known finds the buckets of a complete list that have claims, or may have some in the damage.
func (w *bucketWalk) known(list *memtable.Buckets) error {
	for prefix, some := range list.Claimed {
		if !some && !w.view.HoldsSome(prefix) {
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
func (w *bucketWalk) all(list *memtable.Buckets) error {
	for prefix := range list.Claimed {
		if w.view.HoldsSome(prefix) {
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
			prefix, _ := memtable.SplitPrefix(w.cursor.it.Key()[1:])
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
		if !w.view.Removes(w.cursor.it.Key()[1:]) {
			return true
		}
	}
	return w.cursor.err != nil
}
