package pages

import (
	"bytes"

	bbolt "go.etcd.io/bbolt"
)

// When bbolt commits, it merges a page that removals have made small with the previous page, or
// with the next one if it is the first child of its parent. The parent then has one child less, and
// may be merged too. bbolt reads the other page without a check: if that page had a wrong number of
// entries, for example, entries would be lost permanently. So all pages that bbolt may read are
// checked first:
//
//   - a leaf is merged at most once because of its removals, with one of the two adjacent leaves,
//     even if these have another parent, because the parents may be merged first;
//   - a branch page is merged repeatedly while it loses children and is small: with all pages on
//     each side up to the first one that is not small even without the children that it may lose.

// Removals has the leaves of a tree from which a transaction removes entries.
type Removals struct {
	Tree   Tree
	depth  int // depth of the leaves
	leaves level
}

// A level has the pages at one depth of a tree that lose elements.
type level struct {
	pages []*shrunk
	byID  map[uint64]*shrunk
}

// A shrunk is a page as it is at the end of a transaction, without new elements.
type shrunk struct {
	id      uint64
	key     []byte // a key that leads to the page
	n       int
	size    int
	removed bool // elements are removed, not only replaced
}

// small reports whether bbolt may merge a page with n elements in size bytes.
func small(n, size, pageSize int) bool {
	return n <= 2 || size <= int(bbolt.DefaultFillPercent*float64(pageSize))/2
}

// of returns the shrunk of a page to which key leads.
func (l *level) of(p *page, key []byte) *shrunk {
	if last := len(l.pages) - 1; last >= 0 && l.pages[last].id == p.id {
		return l.pages[last]
	}
	s := l.byID[p.id]
	if s == nil {
		s = &shrunk{id: p.id, key: bytes.Clone(key), n: p.n, size: p.size}
		if l.byID == nil {
			l.byID = make(map[uint64]*shrunk)
		}
		l.byID[p.id] = s
		l.pages = append(l.pages, s)
	}
	return s
}

// lose records that element i of a page may be removed.
func (l *level) lose(p *page, i int) {
	s := l.of(p, p.key(i))
	_, k, v := p.span(i)
	s.n--
	s.size -= ElementSize + k + v
	s.removed = true
}

// Remove records that the entry of the cursor is removed.
func (r *Removals) Remove(c *Cursor) {
	f := c.top()
	r.depth = c.depth - 1
	r.leaves.lose(&f.page, f.i)
}

// Replace records that the value of the entry of the cursor is replaced.
func (r *Removals) Replace(c *Cursor, entry []byte) {
	f := c.top()
	r.leaves.of(&f.page, f.page.key(f.i)).size += len(entry) - len(c.Entry())
}

// Check checks all pages of the tree that bbolt may merge.
func (r *Removals) Check() error {
	if r.depth == 0 {
		return nil // nothing was removed, or the tree has a single page
	}
	return r.Tree.With(func(c *Cursor) error {
		lost := r.leaves
		for d := r.depth; d > 0; d-- {
			m := merge{cursor: c, depth: d, leaf: d == r.depth, lost: lost, counted: make(map[uint64]bool)}
			for _, s := range lost.pages {
				if !s.removed || !small(s.n, s.size, r.Tree.Tx.PageSize) {
					continue
				}
				for _, step := range [...]int{-1, 1} {
					if err := m.walk(s, step); err != nil {
						return err
					}
				}
			}
			lost = m.above
		}
		return nil
	})
}

// A merge checks the pages of one depth.
type merge struct {
	cursor  *Cursor
	depth   int
	leaf    bool
	lost    level // pages at the depth
	above   level // elements that the pages above may lose
	counted map[uint64]bool
}

// walk checks the pages on one side of s with which s may be merged. A page that loses elements is
// already checked, and is the start of another walk.
func (m *merge) walk(s *shrunk, step int) error {
	if err := m.cursor.descend(s.key, m.depth-1); err != nil {
		return err
	}
	for {
		parent := m.cursor.top()
		id := parent.page.child(parent.i)
		if !m.counted[id] {
			m.counted[id] = true
			m.above.lose(&parent.page, parent.i)
		}
		if id != s.id {
			if m.lost.byID[id] != nil {
				return nil
			}
			if last, err := m.visit(); err != nil || last {
				return err
			}
		}
		if found, err := m.cursor.beside(step); err != nil || !found {
			return err
		}
	}
}

// visit checks the child of the top frame, and reports whether merging ends there.
func (m *merge) visit() (last bool, err error) {
	if err := m.cursor.down(); err != nil {
		return false, err
	}
	f := m.cursor.top()
	if f.page.leaf != m.leaf {
		return false, Damaged("page %d of %s is at the wrong depth", f.page.id, m.cursor.tree.What)
	}
	m.cursor.depth--
	return m.leaf || !small(f.page.n, f.page.size, m.cursor.tree.Tx.PageSize), nil
}
