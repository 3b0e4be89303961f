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
	if errors.As(err, new(*storage.DamageError)) { // a DamageError would mean that all other buckets were found
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

// A bucketWalk finds buckets. damage has the damaged tables that it could not read.
type bucketWalk struct {
	view   *memtable.View
	cursor *cursor
	found  []string // prefixes of the buckets
	damage storage.DamageError
}

// known finds the buckets of a complete list that have claims, or may have claims in the damage.
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

// all finds all buckets that have claims, without a list.
func (w *bucketWalk) all(list *memtable.Buckets) error {
	for prefix := range list.Claimed {
		if w.view.HoldsSome(prefix) {
			w.found = append(w.found, prefix)
		}
	}
	return w.within(prefixSpan([]byte{claimSpace}))
}

// within finds the buckets in Pebble's tables that begin in a range. Pebble merges all tables, so
// any move may meet a damaged table after the key that it would find. Then within reads the part
// before that table separately, and continues after it, without the buckets that begin between the
// table's ends.
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

// seen reports whether the bucket with that prefix has a claim at or after the cursor that is not
// removed in memory. If the cursor fails, there may be one.
func (w *bucketWalk) seen(prefix string) bool {
	start := spaced(claimSpace, []byte(prefix))
	for ok := w.cursor.err == nil && w.cursor.it.Valid(); ok && bytes.HasPrefix(w.cursor.it.Key(), start); ok = w.cursor.do(w.cursor.it.Next) {
		if !w.view.Removes(w.cursor.it.Key()[1:]) {
			return true
		}
	}
	return w.cursor.err != nil
}
