package pebble

import (
	"bytes"
	"slices"
)

// The tables of runs begin at about the same keys (cuts.go), so the keys of a list are divided into
// parts there: in a part, most groups have one table. Where the parts begin concerns only the time of
// a look-up.

// divide divides the list as the group with the most tables that have filters is divided.
func (l *runList) divide() {
	var most tableGroup
	for _, g := range l.groups {
		if len(g) > len(most) && g[0].filter.bits != nil {
			most = g
		}
	}
	for i := 1; i < len(most); i++ {
		l.borders = append(l.borders, most[i].smallest)
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
	groups []tableGroup
	newest int // how many come before all tables omitted
}

// search returns the groups that decide whether there is a key, and whether it is absent if none of
// them has it.
func (l *runList) search(key []byte) (groups []tableGroup, absent bool) {
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
