package versions

import (
	"bytes"
	"cmp"
	"iter"
	"slices"

	"github.com/hapax-dev/hapax/engine"
)

// A stored version is a key of the table with its value.
type stored struct {
	place place
	kv    engine.KeyValue
}

// A group has everything that is stored for one Version of a row.
type group struct {
	row     []byte // prefix of the row
	version uint64

	// all are the contents of the version, the newest first: an erasure, which hides the others,
	// comes first; the others are ordered by their first offset, and then by tie.
	all []stored
	// repeats are further copies of a content, with offsets greater than its first one.
	repeats []stored
}

// isErased reports whether an erasure hides all other contents.
func (g *group) isErased() bool { return g.all[0].place.tie == tieErasure }

// sort sorts versions, which were added in the order of keys, into the order of a group.
func (g *group) sort() {
	if len(g.all) == 1 {
		return
	}
	slices.SortFunc(g.all, func(a, b stored) int {
		return cmp.Or(cmp.Compare(a.place.tie, b.place.tie), cmp.Compare(a.place.offset, b.place.offset))
	})
	firsts := g.all[:0]
	for _, s := range g.all {
		if n := len(firsts); n > 0 && firsts[n-1].place.tie == s.place.tie {
			g.repeats = append(g.repeats, s)
		} else {
			firsts = append(firsts, s)
		}
	}
	g.all = firsts
	rest := firsts
	if g.isErased() {
		rest = firsts[1:]
	}
	slices.SortFunc(rest, func(a, b stored) int {
		return cmp.Or(cmp.Compare(b.place.offset, a.place.offset), cmp.Compare(a.place.tie, b.place.tie))
	})
}

// groups returns the groups of the keys that a scan of the table yields, row by row, the newest
// first. The scan must begin at the start of a group. A group is valid until the next one. The
// iteration ends with the first error.
func (t *Table) groups(keys iter.Seq2[engine.KeyValue, error]) iter.Seq2[*group, error] {
	return func(yield func(*group, error) bool) {
		g := &group{}
		for kv, err := range keys {
			var p place
			if err == nil {
				p, err = t.place(kv.Key)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if len(g.all) > 0 && (p.version != g.version || !bytes.Equal(p.row, g.row)) {
				if g.sort(); !yield(g, nil) {
					return
				}
				g.all, g.repeats = g.all[:0], g.repeats[:0]
			}
			g.row, g.version = p.row, p.version
			g.all = append(g.all, stored{p, kv})
		}
		if len(g.all) > 0 {
			g.sort()
			yield(g, nil)
		}
	}
}

// A merged row is the row that readers see, merged from the groups that were added to it, the
// newest first.
type merged struct {
	row   Row
	found bool
	ended bool // older groups do not change it
	// partial says that the newest version is partial: the row depends on older ones.
	partial bool
}

// add adds the next group of the row. It reports whether the group is needed: readers see a part of
// it, or it hides older versions that could otherwise become visible.
func (m *merged) add(t *Table, g *group) (needed bool, err error) {
	for i := 0; i < len(g.all) && !m.ended; i++ {
		changed, err := m.addVersion(t, &g.all[i])
		if err != nil {
			return false, err
		}
		needed = needed || changed
	}
	return needed, nil
}

func (m *merged) addVersion(t *Table, s *stored) (changed bool, err error) {
	r, err := t.decode(s.place, s.kv.Value)
	switch {
	case err != nil:
		return false, err
	case r.Deleted:
		m.ended = true
		return true, nil
	case r.Partial && t.opt.Fill == nil:
		return false, &RowError{"table", "has partial rows: set Options.Fill"}
	case !m.found:
		m.row, m.found, m.partial, m.ended = r, true, r.Partial, !r.Partial
		return true, nil
	}
	before := m.row.Payload
	m.row.Payload, m.row.Partial = t.opt.Fill(before, r.Payload)
	m.ended = !m.row.Partial
	return !bytes.Equal(before, m.row.Payload), nil
}
