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
		var groups []tableGroup
		for _, g := range l.groups {
			groups = append(groups, g.between(bounds[i], bounds[i+1]).split()...)
		}
		l.parts = append(l.parts, groups)
	}
}

// part returns the groups in which a key is searched.
func (l *runList) part(key []byte) []tableGroup {
	i, found := slices.BinarySearchFunc(l.borders, key, bytes.Compare)
	if found {
		i++
	}
	return l.parts[i]
}
