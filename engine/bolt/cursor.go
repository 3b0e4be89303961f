package bolt

import "bytes"

// A cursor walks one tree. Between a branch and its child it checks the rules of bbolt: the child's
// first key is the branch's key, and its last one is below the branch's next key. So a damaged
// pointer or branch key leads to an error, not to another page, and a walk ends.
type cursor struct {
	tree  tree
	stack []frame
	depth int // frames in use; 0 before the first seek
	ended bool

	// seen, if set, is called for each page of the file that is read.
	seen func(id, pages uint64) error
}

type frame struct {
	page page
	i    int
}

func (c *cursor) top() *frame { return &c.stack[c.depth-1] }

// open makes the cursor ready for a tree; its buffers are kept.
func (c *cursor) open(t tree) {
	c.tree, c.depth, c.ended, c.seen = t, 0, false, nil
	for i := range c.stack {
		c.stack[i].page.valid = false
	}
}

// seek moves to the first entry whose key is at least key, and reports whether it is equal. Seeks
// in key order read each page once.
func (c *cursor) seek(key []byte) (found bool, err error) {
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
	// Whether the key could be in the next leaf depends on a branch key: reading that leaf checks
	// it.
	return false, c.settle()
}

// first moves to the first entry.
func (c *cursor) first() error {
	if err := c.enter(0, c.tree.root, nil, nil); err != nil {
		return err
	}
	return c.leftmost()
}

// next moves to the next entry.
func (c *cursor) next() error {
	c.top().i++
	return c.settle()
}

// done reports whether the cursor is at no entry.
func (c *cursor) done() bool { return c.ended }

func (c *cursor) key() []byte { f := c.top(); return f.page.key(f.i) }

// value returns the entry's value with its checksum, or a bucket's.
func (c *cursor) value() []byte { f := c.top(); return f.page.value(f.i) }

// record returns the entry's value without its checksum.
func (c *cursor) record() []byte { v := c.value(); return v[: len(v)-sealSize : len(v)-sealSize] }

func (c *cursor) entry() []byte { f := c.top(); e, _ := f.page.entry(f.i); return e }

// settle moves from a leaf's end to the next leaf.
func (c *cursor) settle() error {
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

func (c *cursor) leftmost() error {
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

// down enters the child that the top frame points to.
func (c *cursor) down() error {
	f := c.top()
	var hi []byte
	for d := c.depth; d > 0 && hi == nil; d-- {
		if up := &c.stack[d-1]; up.i+1 < up.page.n {
			hi = up.page.key(up.i + 1)
		}
	}
	return c.enter(c.depth, f.page.child(f.i), f.page.key(f.i), hi)
}

// descend moves to the branch page at a depth that leads to key.
func (c *cursor) descend(key []byte, depth int) error {
	if err := c.enter(0, c.tree.root, nil, nil); err != nil {
		return err
	}
	for {
		f := c.top()
		if f.page.leaf {
			return damaged("page %d of %s is at the wrong depth", f.page.id, c.tree.what)
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

// beside moves from a child of the top frame, a branch page, to the next one of the same depth, or to
// the previous one if step is -1. The child is not read.
func (c *cursor) beside(step int) (found bool, err error) {
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
				return false, damaged("page %d of %s is at the wrong depth", f.page.id, c.tree.what)
			}
			if step < 0 {
				f.i = f.page.n - 1
			}
		}
		return true, nil
	}
	return false, nil
}

// enter makes page id the frame at depth d. Its first key must be lo and its last one below hi,
// where they are given.
func (c *cursor) enter(d int, id uint64, lo, hi []byte) error {
	if d == maxDepth {
		return damaged("%s is a tree of more than %d levels", c.tree.what, maxDepth)
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
		return damaged("page %d does not begin with the key that page %d says", id, c.stack[d-1].page.id)
	}
	if hi != nil && bytes.Compare(f.page.key(f.page.n-1), hi) >= 0 {
		return damaged("page %d ends behind the key that page %d says", id, c.stack[d-1].page.id)
	}
	return nil
}

func (c *cursor) read(p *page, id uint64) error {
	if id == 0 && c.depth == 1 {
		return p.readInline(&c.tree)
	}
	if err := p.read(&c.tree, id); err != nil {
		return err
	}
	if c.seen != nil {
		return c.seen(id, p.overflow()+1)
	}
	return nil
}
