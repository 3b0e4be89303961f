package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
)

// A checker reads all data of a readTx, compares it with the checksums and sums, and compares the
// used pages with the list of free ones. It trusts no byte: it terminates, in bounded time and
// memory, whatever the bytes are.
type checker struct {
	ctx    context.Context
	at     *readTx
	report func(error) error
	used   *pages.Used
	broken bool
}

// check calls report for each error, and continues where it can, unless report returns an error.
func (tx *readTx) check(ctx context.Context, freelist uint64, report func(error) error) error {
	k := &checker{ctx: ctx, at: tx, report: report, used: pages.NewUsed(&tx.pages)}
	sums := map[string]sum{}
	var seq uint64
	for _, part := range []func() error{
		k.topDirs,
		func() (err error) { seq, err = k.headAndSums(sums); return err },
		func() error { return k.claims(sums) },
		func() error { return k.entries(stateDir, stateSpace, sums, nil) },
		func() error { return k.journal(sums, seq) },
		func() error { return k.unclaimed(sums) },
		func() error {
			if k.broken {
				return nil // not all used pages are known
			}
			return k.used.CheckFree(freelist)
		},
	} {
		if err := k.problem(part()); err != nil {
			return err
		}
	}
	return nil
}

// problem reports an error. If it returns an error, the check ends.
func (k *checker) problem(err error) error {
	if err == nil {
		return nil
	}
	if cause := k.ctx.Err(); cause != nil {
		return cause
	}
	k.broken = true
	return k.report(err)
}

// walk reads all entries of a tree and marks its pages as used.
func (k *checker) walk(t pages.Tree, fn func(c *pages.Cursor) error) error {
	return t.With(func(c *pages.Cursor) error {
		c.Seen = k.used.Mark
		n := 0
		if err := c.First(); err != nil {
			return err
		}
		for !c.Done() {
			if n++; n%1024 == 0 && k.ctx.Err() != nil {
				return k.ctx.Err()
			}
			if err := fn(c); err != nil {
				return err
			}
			if err := c.Next(); err != nil {
				return err
			}
		}
		return nil
	})
}

func (k *checker) topDirs() error {
	var names [][]byte
	err := k.walk(k.at.pages.Root(), func(c *pages.Cursor) error {
		names = append(names, bytes.Clone(c.Key()))
		return nil
	})
	if err == nil && len(names) != len(topDirs) {
		err = pages.Damaged("%d top-level buckets", len(names))
	}
	return err
}

func (k *checker) headAndSums(sums map[string]sum) (seq uint64, err error) {
	t, err := k.at.dir(metaDir)
	if err != nil {
		return 0, err
	}
	if err := k.walk(t, func(*pages.Cursor) error { return nil }); err != nil {
		return 0, err
	}
	h, err := k.at.head()
	if err != nil {
		return 0, err
	}
	if t, err = k.at.dir(sumsDir); err != nil {
		return 0, err
	}
	var got sum
	err = k.walk(t, func(c *pages.Cursor) error {
		got.add(c.Entry())
		s, err := parseSum(c.Record())
		sums[string(c.Key())] = s
		return err
	})
	if err == nil && got != h.sums {
		err = pages.Damaged("the sums are not those in the head")
	}
	return h.seq, err
}

func (k *checker) claims(sums map[string]sum) error {
	dirs, err := k.at.dir(claimsDir)
	if err != nil {
		return err
	}
	return k.walk(dirs, func(c *pages.Cursor) error {
		name := bytes.Clone(c.Key())
		t := pages.Tree{Tx: &k.at.pages, What: fmt.Sprintf("claims %x", name), Seed: pages.Seed(claimSpace, name)}
		if err := t.Parse(c.Value()); err != nil {
			return k.problem(err)
		}
		return k.problem(k.compare(t, string(sumKey(claimSpace, name)), sums, nil))
	})
}

func (k *checker) entries(dir []byte, space byte, sums map[string]sum, each func(c *pages.Cursor) error) error {
	t, err := k.at.dir(dir)
	if err != nil {
		return err
	}
	return k.compare(t, string(sumKey(space, nil)), sums, each)
}

// compare walks a tree of entries and compares it with its sum, which it removes from sums.
func (k *checker) compare(t pages.Tree, name string, sums map[string]sum, each func(c *pages.Cursor) error) error {
	var got sum
	err := k.walk(t, func(c *pages.Cursor) error {
		got.add(c.Entry())
		if each != nil {
			return each(c)
		}
		return nil
	})
	want, found := sums[name]
	delete(sums, name)
	if err == nil && (!found || got != want) {
		err = pages.Damaged("%s has %d entries that are not the %d that were written", t.What, got.count, want.count)
	}
	return err
}

// journal is compare for the journal. It also checks that the journal has no gap before the newest
// batch.
func (k *checker) journal(sums map[string]sum, seq uint64) error {
	last := uint64(0)
	err := k.entries(journalDir, journalSpace, sums, func(c *pages.Cursor) error {
		if len(c.Key()) != 8 {
			return pages.Damaged("journal key %x", c.Key())
		}
		at := binary.BigEndian.Uint64(c.Key())
		if last != 0 && at != last+1 {
			return pages.Damaged("the journal leaps from batch %d to %d", last, at)
		}
		last = at
		return nil
	})
	if err == nil && last != 0 && last != seq {
		err = pages.Damaged("the journal ends with batch %d, the head says %d", last, seq)
	}
	return err
}

// unclaimed reports the sums of trees that do not exist.
func (k *checker) unclaimed(sums map[string]sum) error {
	if len(sums) > 0 {
		return pages.Damaged("%d buckets are missing", len(sums))
	}
	return nil
}

// errFirst stops a check at its first problem.
func errFirst(err error) error { return err }
