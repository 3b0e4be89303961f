package runs

import (
	"bytes"
	"slices"
)

// Runs are divided at the same keys (cuts.go), so the keys of a list are divided into parts there: in
// a part, each run has one table. A table begins with the first claim after the key at which its run was
// divided, so a part begins where the first of them does: the tables before it have ended. Where the
// parts begin concerns only the time of a look-up.

// divide divides the list as the group with the most tables that have filters is divided.
func (l *list) divide() {
	var most group
	for _, g := range l.groups {
		if len(g) > len(most) && g[0].filter.bits != nil {
			most = g
		}
	}
	for i := 1; i < len(most); i++ {
		border := most[i].smallest
		for _, g := range l.groups {
			if j := g.after(most[i-1].largest); j < len(g) && bytes.Compare(g[j].smallest, border) < 0 {
				border = g[j].smallest
			}
		}
		l.borders = append(l.borders, border) // greater than the one before, which is in or before most[i-1]
	}
	bounds := append(append([][]byte{nil}, l.borders...), nil)
	for i := range len(bounds) - 1 {
		var p listPart
		for k, g := range l.groups {
			p.groups = append(p.groups, g.between(bounds[i], bounds[i+1]).split()...)
			if k < l.coverage.newest {
				p.newest = len(p.groups)
			}
		}
		l.parts = append(l.parts, p)
	}
}

// A listPart has the groups in which the keys of a part are searched.
type listPart struct {
	groups []group
	newest int // how many come before all tables omitted
}

// search returns the groups that decide whether there is a key, and whether it is absent if none of
// them has it.
func (l *list) search(key []byte) (groups []group, absent bool) {
	i, found := slices.BinarySearchFunc(l.borders, key, bytes.Compare)
	if found {
		i++
	}
	p := &l.parts[i]
	if l.coverage.mayLack(key) {
		return p.groups[:p.newest], false
	}
	return p.groups, true
}
