package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
)

// A checker reads all that a readTx contains and compares it with the checksums and sums, and the
// used pages with the list of free ones. It trusts no byte: it ends, within bounds, whatever the
// bytes are.
type checker struct {
	ctx    context.Context
	at     *readTx
	report func(error) error
	used   bitmap
	broken bool
}

// check calls report for each error, and continues where it can unless report returns an error.
func (tx *readTx) check(ctx context.Context, freelist uint64, report func(error) error) error {
	k := &checker{ctx: ctx, at: tx, report: report, used: newBitmap(tx.highWater)}
	sums := map[string]sum{}
	var seq uint64
	for _, part := range []func() error{
		k.topDirs,
		func() (err error) { seq, err = k.headAndSums(sums); return err },
		func() error { return k.claims(sums) },
		func() error { return k.entries(stateDir, stateSpace, sums, nil) },
		func() error { return k.journal(sums, seq) },
		func() error { return k.unclaimed(sums) },
		func() error { return k.freePages(freelist) },
	} {
		if err := k.problem(part()); err != nil {
			return err
		}
	}
	return nil
}

// problem reports an error; the error that it returns ends the check.
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

// walk reads all entries of a tree, and marks its pages as used.
func (k *checker) walk(t tree, fn func(c *cursor) error) error {
	return with(t, func(c *cursor) error {
		c.seen = k.mark
		n := 0
		if err := c.first(); err != nil {
			return err
		}
		for !c.done() {
			if n++; n%1024 == 0 && k.ctx.Err() != nil {
				return k.ctx.Err()
			}
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

func (k *checker) mark(id, pages uint64) error {
	for ; pages > 0; pages-- {
		if !k.used.set(id) {
			return damaged("page %d is used twice", id)
		}
		id++
	}
	return nil
}

func (k *checker) topDirs() error {
	var names [][]byte
	err := k.walk(k.at.rootTree(), func(c *cursor) error {
		names = append(names, bytes.Clone(c.key()))
		return nil
	})
	if err == nil && len(names) != len(topDirs) {
		err = damaged("%d top-level buckets", len(names))
	}
	return err
}

func (k *checker) headAndSums(sums map[string]sum) (seq uint64, err error) {
	t, err := k.at.dir(metaDir)
	if err != nil {
		return 0, err
	}
	if err := k.walk(t, func(*cursor) error { return nil }); err != nil {
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
	err = k.walk(t, func(c *cursor) error {
		got.add(c.entry())
		s, err := parseSum(c.record())
		sums[string(c.key())] = s
		return err
	})
	if err == nil && got != h.sums {
		err = damaged("the sums are not those in the head")
	}
	return h.seq, err
}

func (k *checker) claims(sums map[string]sum) error {
	dirs, err := k.at.dir(claimsDir)
	if err != nil {
		return err
	}
	return k.walk(dirs, func(c *cursor) error {
		name := bytes.Clone(c.key())
		t := tree{at: k.at, what: fmt.Sprintf("claims %x", name), seed: seedOf(claimSpace, name)}
		if err := t.parseDir(c.value()); err != nil {
			return k.problem(err)
		}
		return k.problem(k.compare(t, string(sumKey(claimSpace, name)), sums, nil))
	})
}

func (k *checker) entries(dir []byte, space byte, sums map[string]sum, each func(c *cursor) error) error {
	t, err := k.at.dir(dir)
	if err != nil {
		return err
	}
	return k.compare(t, string(sumKey(space, nil)), sums, each)
}

// compare walks a tree of entries and compares it with its sum, which it takes out of sums.
func (k *checker) compare(t tree, name string, sums map[string]sum, each func(c *cursor) error) error {
	var got sum
	err := k.walk(t, func(c *cursor) error {
		got.add(c.entry())
		if each != nil {
			return each(c)
		}
		return nil
	})
	want, found := sums[name]
	delete(sums, name)
	if err == nil && (!found || got != want) {
		err = damaged("%s has %d entries that are not the %d that were written", t.what, got.count, want.count)
	}
	return err
}

// journal also checks that there is no gap up to the newest batch.
func (k *checker) journal(sums map[string]sum, seq uint64) error {
	last := uint64(0)
	err := k.entries(journalDir, journalSpace, sums, func(c *cursor) error {
		if len(c.key()) != 8 {
			return damaged("journal key %x", c.key())
		}
		at := binary.BigEndian.Uint64(c.key())
		if last != 0 && at != last+1 {
			return damaged("the journal leaps from batch %d to %d", last, at)
		}
		last = at
		return nil
	})
	if err == nil && last != 0 && last != seq {
		err = damaged("the journal ends with batch %d, the head says %d", last, seq)
	}
	return err
}

// unclaimed finds the sums of trees that do not exist.
func (k *checker) unclaimed(sums map[string]sum) error {
	if len(sums) > 0 {
		return damaged("%d buckets are missing", len(sums))
	}
	return nil
}

// freePages checks that each page is either used or free, because a page allocated twice would
// overwrite claims.
func (k *checker) freePages(freelist uint64) error {
	if k.broken {
		return nil // the used pages are unknown
	}
	tx := k.at
	head := make([]byte, pageHeader+8)
	if freelist < 2 || freelist >= tx.highWater {
		return damaged("the list of free pages is said to be at page %d", freelist)
	}
	if err := tx.readAt(head, freelist); err != nil {
		return err
	}
	pages := uint64(native.Uint32(head[12:])) + 1
	if native.Uint64(head) != freelist || native.Uint16(head[8:]) != freelistFlag || pages > tx.highWater-freelist {
		return damaged("page %d is not the list of free pages", freelist)
	}
	count, at := uint64(native.Uint16(head[10:])), uint64(pageHeader)
	if count == 0xFFFF {
		count, at = native.Uint64(head[pageHeader:]), pageHeader+8
	}
	if count > tx.highWater || at+count*8 > pages*uint64(tx.pageSize) {
		return damaged("the list of free pages is said to have %d", count)
	}
	if err := k.mark(freelist, pages); err != nil {
		return err
	}
	list := make([]byte, pages*uint64(tx.pageSize))
	if err := tx.readAt(list, freelist); err != nil {
		return err
	}
	for last := uint64(1); count > 0; count-- {
		id := native.Uint64(list[at:])
		if id <= last || id >= tx.highWater {
			return damaged("the list of free pages has page %d after %d", id, last)
		}
		if !k.used.set(id) {
			return damaged("page %d is in use and on the list of free pages", id)
		}
		last, at = id, at+8
	}
	if id, found := k.used.firstUnset(2); found {
		return damaged("page %d is neither in use nor on the list of free pages", id)
	}
	return nil
}

// errFirst stops a check at its first problem.
func errFirst(err error) error { return err }

type bitmap struct {
	words []uint64
	n     uint64
}

func newBitmap(n uint64) bitmap { return bitmap{make([]uint64, (n+63)/64), n} }

// set sets a bit and reports whether it was unset before.
func (b bitmap) set(i uint64) bool {
	if i >= b.n || b.words[i/64]&(1<<(i%64)) != 0 {
		return false
	}
	b.words[i/64] |= 1 << (i % 64)
	return true
}

func (b bitmap) firstUnset(from uint64) (uint64, bool) {
	for i := from; i < b.n; i++ {
		if b.words[i/64]&(1<<(i%64)) == 0 {
			return i, true
		}
	}
	return 0, false
}
