package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/hapax-dev/hapax/engine/storage"
)

const (
	// dropTxPages bounds the pages that one transaction of Drop frees, unless one bucket alone has
	// more: Apply waits for it.
	dropTxPages = 4096

	// trimTxEntries is the number of journal entries that one transaction of TrimJournal removes.
	trimTxEntries = 512
)

// TrimJournal forgets the entries of batches below a number, some hundred of them in a transaction.
func (s *Store) TrimJournal(below uint64) error {
	for {
		more, err := s.trimOnce(below)
		if err != nil || !more {
			return err
		}
	}
}

func (s *Store) trimOnce(below uint64) (more bool, err error) {
	// A look before: a transaction costs two syncs.
	some := false
	err = s.view(func(m *moment) error {
		t, err := m.dir(journalDir)
		if err != nil {
			return err
		}
		return with(t, func(c *cursor) error {
			if err := c.first(); err != nil {
				return err
			}
			some = !c.done() && binary.BigEndian.Uint64(c.key()) < below
			return nil
		})
	})
	if err != nil || !some {
		return false, errOr(err, s.failed())
	}
	err = s.update(func(w *writer) error {
		t, err := w.base.dir(journalDir)
		if err != nil {
			return err
		}
		var changes []change
		err = t.each(nil, func(c *cursor) error {
			if binary.BigEndian.Uint64(c.key()) >= below {
				return errEnough
			}
			if len(changes) == trimTxEntries {
				more = true
				return errEnough
			}
			changes = append(changes, change{bytes.Clone(c.key()), len(c.key()), true})
			return nil
		})
		if err := enough(err); err != nil {
			return err
		}
		return w.dir(journalDir, journalSpace, changes)
	})
	return more, err
}

func (s *Store) failed() error {
	if f := s.failure.Load(); f != nil {
		return f.err
	}
	return nil
}

func errOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// Drop removes the claims of the buckets, some thousand pages in a transaction. Before that it
// reads a bucket whole, while Apply may run, and compares it with its sum: bbolt frees the pages
// that a damaged one points to, even if they belong to another tree.
func (s *Store) Drop(buckets []storage.Bucket) error {
	if err := s.failed(); err != nil {
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
		size, err := s.verified(prefix)
		if err != nil {
			return err
		}
		if size == 0 {
			continue
		}
		group = append(group, prefix)
		if pages += size/uint64(s.pageSize) + 1; pages >= dropTxPages {
			if err := s.drop(group); err != nil {
				return err
			}
			group, pages = group[:0], 0
		}
	}
	return s.drop(group)
}

// verified reads a bucket whole and returns the estimated size of its claims, 0 if there are none.
func (s *Store) verified(prefix []byte) (size uint64, err error) {
	err = s.view(func(m *moment) error {
		t, found, err := m.bucket(prefix)
		if err != nil || !found {
			return err
		}
		want, _, err := m.sum(sumKey(claimSpace, prefix))
		if err != nil {
			return err
		}
		k := checker{ctx: context.Background(), at: m, used: newBitmap(m.highWater)}
		sums := map[string]sum{"": want}
		if m.unchecked {
			size = 1
			return nil
		}
		size = want.bytes
		return k.compare(t, "", sums, nil)
	})
	return size, err
}

func (s *Store) drop(prefixes [][]byte) error {
	if len(prefixes) == 0 {
		return nil
	}
	return s.update(func(w *writer) error {
		for _, prefix := range prefixes {
			name := sumKey(claimSpace, prefix)
			before, found, err := w.base.sum(name)
			if err != nil {
				return err
			}
			if !found {
				return damaged("the bucket with prefix %x has no sum", prefix)
			}
			if err := w.tx.Bucket(claimsDir).DeleteBucket(prefix); err != nil {
				return fmt.Errorf("dropping the bucket with prefix %x: %w", prefix, err)
			}
			if err := w.putSum(name, before, true, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// Reclaim returns at once. The pages of a dropped bucket are used again by the next batches, but
// the file never shrinks by itself: a Backup is a copy without free pages.
func (s *Store) Reclaim(context.Context, []storage.Bucket) error { return nil }

// ReclaimState returns at once, for the same reason. The bytes of removed states stay in free pages
// of the file until these are used again.
func (s *Store) ReclaimState(context.Context, storage.Span) error { return nil }
