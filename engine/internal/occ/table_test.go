package occ

import (
	"math/rand/v2"
	"testing"
)

// Names are chosen so that many share a slot, and chains wrap around the end of the table.
func TestReservationsAreThoseOfAMap(t *testing.T) {
	const names, steps = 2 * minSlots, 200_000
	rnd := rand.New(rand.NewPCG(1, 2))
	var owners [3]Owner
	var table table
	want := make(map[Name]Reservation)
	grown := 0
	for step := range steps {
		n := rnd.Uint64N(names)
		// All names share a few slots, the last of the table among them; the table grows and is
		// emptied in turns.
		name := Name{Lo: n%7*uint64(minSlots)/7 - 2, Hi: n}
		if emptying := step/5000%2 == 1; emptying || rnd.IntN(3) == 0 {
			if _, ok := want[name]; ok {
				table.remove(table.at(name))
				delete(want, name)
			}
		} else {
			r := Reservation{name: name, owner: &owners[rnd.IntN(len(owners))], claim: int32(step)}
			other := table.add(r)
			if had := want[name]; other != had {
				t.Fatalf("step %d: adding found %v, not %v", step, other, had)
			}
			if other.owner == nil {
				want[name] = r
			}
		}
		grown = max(grown, len(table.slots))
		if table.n != len(want) {
			t.Fatalf("step %d: %d reservations, not %d", step, table.n, len(want))
		}
		if got := table.get(name); got != want[name] {
			t.Fatalf("step %d: %v, not %v", step, got, want[name])
		}
		if step%97 == 0 {
			for n := range uint64(names) {
				name := Name{Lo: n%7*uint64(minSlots)/7 - 2, Hi: n}
				if got := table.get(name); got != want[name] {
					t.Fatalf("step %d: name %d is reserved by %v, not %v", step, n, got, want[name])
				}
			}
		}
	}
	if grown <= minSlots {
		t.Error("the table never grew")
	}
}

func TestALargeEmptyTableOfReservationsIsFreed(t *testing.T) {
	var holder Owner
	for n, kept := range map[uint64]bool{keptSlots / 2: true, keptSlots/2 + 1: false} {
		var table table
		// spread like hashes
		name := func(i uint64) Name { return Name{Lo: i * 0x9E3779B97F4A7C15} }
		for i := range n {
			table.add(Reservation{name: name(i), owner: &holder})
		}
		for i := range n {
			table.remove(table.at(name(i)))
		}
		if (table.slots != nil) != kept || table.n != 0 {
			t.Errorf("after %d reservations %d slots are kept, %d taken", n, len(table.slots), table.n)
		}
		if other := table.add(Reservation{name: Name{Lo: 1}, owner: &holder}); other.owner != nil {
			t.Error("a name is taken in an empty table")
		}
	}
}
