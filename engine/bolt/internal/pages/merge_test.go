package pages

import (
	"fmt"
	"strings"
	"testing"
)

// Branch pages whose keys became short have few bytes, and nothing merges them until one loses a child.
// Then bbolt merges it with the page before it, and as long as children are removed, the result with one
// page after the other: also with those that are not beside a page that loses any.
func TestPagesBeyondTheFirstNeighbourAreChecked(t *testing.T) {
	f := newFile(t)
	put, shorten := map[string][]byte{}, map[string][]byte{}
	for i := range 80 { // leaves, each with a long key before the others
		long := fmt.Sprintf("%04d%s", i, strings.Repeat("a", 1900))
		put[long], shorten[long] = []byte("v"), nil
		for j := range 30 {
			put[fmt.Sprintf("%04db%02d", i, j)] = make([]byte, 20)
		}
	}
	for _, writes := range []map[string][]byte{put, shorten} {
		if err := f.change(writes); err != nil {
			t.Fatal(err)
		}
	}

	pages := lowestBranches(t, f.newest())
	const first, last = 15, 20 // of those that are emptied
	remove := map[string][]byte{}
	for _, p := range pages[first : last+1] {
		for _, k := range p.keys {
			remove[k] = nil
		}
	}
	f.changeChecked("removal", remove)
	remain := map[uint64]bool{}
	for _, p := range lowestBranches(t, f.newest()) {
		remain[p.id] = true
	}
	if remain[pages[first-3].id] && remain[pages[last+3].id] {
		t.Error("no page that far from the emptied ones was merged: the test checks nothing")
	}
}

// A branchPage is a branch page, and the keys below it.
type branchPage struct {
	id   uint64
	keys []string
}

// lowestBranches returns the branch pages above the leaves, in order.
func lowestBranches(t *testing.T, tree Tree) (pages []branchPage) {
	t.Helper()
	err := tree.Each(nil, func(c *Cursor) error {
		id := c.stack[c.depth-2].page.id
		if len(pages) == 0 || pages[len(pages)-1].id != id {
			pages = append(pages, branchPage{id: id})
		}
		p := &pages[len(pages)-1]
		p.keys = append(p.keys, string(c.Key()))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}
