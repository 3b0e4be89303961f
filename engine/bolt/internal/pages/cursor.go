package pages

import (
	"bytes"
	"errors"
	"sync"
)

// A Cursor walks one tree. It checks the rules of bbolt for a branch and its child: the child's
// first key is the branch's key, and its last key is less than the branch's next key. So a damaged
// pointer or branch key causes an error, not a jump to another page, and every walk ends.
type Cursor struct {
	tree  Tree
	stack []frame
	depth int // frames in use; 0 before the first seek
	ended bool

	// Seen, if not nil, is called for each page of the file that is read.
	Seen func(id, pages uint64) error
}

type frame struct {
	page page
	i    int
}

func (c *Cursor) top() *frame { return &c.stack[c.depth-1] }

// open prepares the cursor for a tree. It reuses the buffers.
func (c *Cursor) open(t Tree) {
	c.tree, c.depth, c.ended, c.Seen = t, 0, false, nil
	for i := range c.stack {
		c.stack[i].page.valid = false
	}
}

// Seek moves to the first entry whose key is at least key, and reports whether it is equal to key.
// Seeks in key order read each page once.
func (c *Cursor) Seek(key []byte) (found bool, err error) {
	if err := c.enter(0, c.tree.root, nil, nil); err != nil {
		return false, err
	}
	for !c.top().page.leaf {
		f := c.top()
		f.i = f.page.floor(key)
		if err := c.down(); err != nil {
			return false, err
		}
	}
	f := c.top()
	f.i = f.page.ceil(key)
	if f.i < f.page.n {
		return bytes.Equal(f.page.key(f.i), key), nil
	}
	// The next leaf is read to check the branch key that says where the key could be.
	return false, c.settle()
}

// First moves to the first entry.
func (c *Cursor) First() error {
	if err := c.enter(0, c.tree.root, nil, nil); err != nil {
		return err
	}
	return c.leftmost()
}

// Next moves to the next entry.
func (c *Cursor) Next() error {
	c.top().i++
	return c.settle()
}

// Done reports whether the cursor has no entry.
func (c *Cursor) Done() bool { return c.ended }

// Key returns the key of the entry. The results of Key, Value, Record and Entry are valid until the
// cursor moves.
func (c *Cursor) Key() []byte { f := c.top(); return f.page.key(f.i) }

// Value returns the value of the entry with its checksum, or the value of a bucket.
func (c *Cursor) Value() []byte { f := c.top(); return f.page.value(f.i) }

// Record returns the value of the entry without its checksum.
func (c *Cursor) Record() []byte { v := c.Value(); return v[: len(v)-SealSize : len(v)-SealSize] }

// Entry returns key and value, which are adjacent in the page.
func (c *Cursor) Entry() []byte { f := c.top(); e, _ := f.page.entry(f.i); return e }

// settle moves from the end of a leaf to the next leaf.
func (c *Cursor) settle() error {
	if f := c.top(); f.i < f.page.n {
		return nil
	}
	for d := c.depth - 1; d > 0; d-- {
		if up := &c.stack[d-1]; up.i+1 < up.page.n {
			up.i++
			c.depth = d
			if err := c.down(); err != nil {
				return err
			}
			return c.leftmost()
		}
	}
	c.ended = true
	return nil
}

func (c *Cursor) leftmost() error {
	for !c.top().page.leaf {
		c.top().i = 0
		if err := c.down(); err != nil {
			return err
		}
	}
	c.top().i = 0
	c.ended = c.top().page.n == 0 // only a tree without entries has an empty leaf
	return nil
}

// down enters the current child of the top frame.
func (c *Cursor) down() error {
	f := c.top()
	var hi []byte
	for d := c.depth; d > 0 && hi == nil; d-- {
		if up := &c.stack[d-1]; up.i+1 < up.page.n {
			hi = up.page.key(up.i + 1)
		}
	}
	return c.enter(c.depth, f.page.child(f.i), f.page.key(f.i), hi)
}

// descend moves to the branch page at the given depth on the way to key.
func (c *Cursor) descend(key []byte, depth int) error {
	if err := c.enter(0, c.tree.root, nil, nil); err != nil {
		return err
	}
	for {
		f := c.top()
		if f.page.leaf {
			return Damaged("page %d of %s is at the wrong depth", f.page.id, c.tree.What)
		}
		f.i = f.page.floor(key)
		if c.depth > depth {
			return nil
		}
		if err := c.down(); err != nil {
			return err
		}
	}
}

// beside moves from the current child of the top frame, a branch page, to the next page of the
// child's depth, or to the previous one if step is -1. It does not read that page.
func (c *Cursor) beside(step int) (found bool, err error) {
	depth := c.depth
	for d := depth - 1; d >= 0; d-- {
		up := &c.stack[d]
		if up.i+step < 0 || up.i+step >= up.page.n {
			continue
		}
		up.i += step
		for c.depth = d + 1; c.depth < depth; {
			if err := c.down(); err != nil {
				return false, err
			}
			f := c.top()
			if f.page.leaf {
				return false, Damaged("page %d of %s is at the wrong depth", f.page.id, c.tree.What)
			}
			if step < 0 {
				f.i = f.page.n - 1
			}
		}
		return true, nil
	}
	return false, nil
}

// enter reads page id into the frame at depth d. If lo and hi are given, the first key must be lo,
// and the last one less than hi.
func (c *Cursor) enter(d int, id uint64, lo, hi []byte) error {
	if d == maxDepth {
		return Damaged("%s is a tree of more than %d levels", c.tree.What, maxDepth)
	}
	if d == len(c.stack) {
		c.stack = append(c.stack, frame{})
	}
	c.depth, c.ended = d+1, false
	f := &c.stack[d]
	if !f.page.valid || f.page.id != id || id == 0 {
		if err := c.read(&f.page, id); err != nil {
			return err
		}
	}
	f.i = 0
	if lo != nil && (f.page.n == 0 || !bytes.Equal(f.page.key(0), lo)) {
		return Damaged("page %d does not begin with the key that page %d says", id, c.stack[d-1].page.id)
	}
	if hi != nil && bytes.Compare(f.page.key(f.page.n-1), hi) >= 0 {
		return Damaged("page %d ends behind the key that page %d says", id, c.stack[d-1].page.id)
	}
	return nil
}

func (c *Cursor) read(p *page, id uint64) error {
	if id == 0 && c.depth == 1 {
		return p.readInline(&c.tree)
	}
	if err := p.read(&c.tree, id); err != nil {
		return err
	}
	if c.Seen != nil {
		return c.Seen(id, p.overflow()+1)
	}
	return nil
}

var cursors = sync.Pool{New: func() any { return new(Cursor) }}

// With runs fn with a cursor on the tree.
func (t Tree) With(fn func(c *Cursor) error) error {
	c := cursors.Get().(*Cursor)
	c.open(t)
	err := fn(c)
	c.open(Tree{}) // keeps no reference to the Tx
	cursors.Put(c)
	return err
}

// OpenIn looks up a tree by its name in a tree of buckets.
func (t *Tree) OpenIn(dirs Tree, name []byte) (found bool, err error) {
	err = dirs.With(func(c *Cursor) error {
		found, err = c.Seek(name)
		if err != nil || !found {
			return err
		}
		if err := t.Parse(c.Value()); err != nil {
			return err
		}
		t.inline = append([]byte(nil), t.inline...)
		return nil
	})
	return found, err
}

// Get returns a copy of the record under key.
func (t Tree) Get(key []byte) (record []byte, found bool, err error) {
	err = t.With(func(c *Cursor) error {
		if found, err = c.Seek(key); err != nil || !found {
			return err
		}
		record = append(make([]byte, 0, len(c.Record())), c.Record()...)
		return nil
	})
	return record, found, err
}

// ErrStop ends Each without an error when fn returns it.
var ErrStop = errors.New("enough")

// Each calls fn for each entry whose key is at least from, until fn returns an error.
func (t Tree) Each(from []byte, fn func(c *Cursor) error) error {
	err := t.With(func(c *Cursor) error {
		if len(from) == 0 {
			if err := c.First(); err != nil {
				return err
			}
		} else if _, err := c.Seek(from); err != nil {
			return err
		}
		for !c.Done() {
			if err := fn(c); err != nil {
				return err
			}
			if err := c.Next(); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, ErrStop) {
		return nil
	}
	return err
}
