package engine

import (
	"math/rand/v2"
	"testing"
)

// Names are chosen so that many share a slot, and chains wrap around the end of the table.
func TestReservationsAreThoseOfAMap(t *testing.T) {
	const names, steps = 2 * minReservations, 200_000
	rnd := rand.New(rand.NewPCG(1, 2))
	var owners [3]owner
	var table reservations
	want := make(map[lockName]reservation)
	grown := 0
	for step := range steps {
		n := rnd.Uint64N(names)
		// All names share a few slots, the last of the table among them; the table grows and is
		// emptied in turns.
		name := lockName{Lo: n%7*uint64(minReservations)/7 - 2, Hi: n}
		if emptying := step/5000%2 == 1; emptying || rnd.IntN(3) == 0 {
			if _, ok := want[name]; ok {
				table.remove(table.at(name))
				delete(want, name)
			}
		} else {
			r := reservation{name: name, owner: &owners[rnd.IntN(len(owners))], claim: int32(step)}
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
				name := lockName{Lo: n%7*uint64(minReservations)/7 - 2, Hi: n}
				if got := table.get(name); got != want[name] {
					t.Fatalf("step %d: name %d is reserved by %v, not %v", step, n, got, want[name])
				}
			}
		}
	}
	if grown <= minReservations {
		t.Error("the table never grew")
	}
}

func TestALargeEmptyTableOfReservationsIsFreed(t *testing.T) {
	var holder owner
	for n, kept := range map[uint64]bool{keptReservations / 2: true, keptReservations/2 + 1: false} {
		var table reservations
		// spread like hashes
		name := func(i uint64) lockName { return lockName{Lo: i * 0x9E3779B97F4A7C15} }
		for i := range n {
			table.add(reservation{name: name(i), owner: &holder})
		}
		for i := range n {
			table.remove(table.at(name(i)))
		}
		if (table.slots != nil) != kept || table.n != 0 {
			t.Errorf("after %d reservations %d slots are kept, %d taken", n, len(table.slots), table.n)
		}
		if other := table.add(reservation{name: lockName{Lo: 1}, owner: &holder}); other.owner != nil {
			t.Error("a name is taken in an empty table")
		}
	}
}

func TestAClaimThatWasPutTwiceInAGroupIsFoundAsItWasPutLast(t *testing.T) {
	var p putClaims
	p.next(0)
	key, other := []byte("a"), []byte("b")
	p.put(key, 1, &ClaimRecord{State: Done, Generation: 1}, 0)
	p.put(other, 1, &ClaimRecord{State: Done, Generation: 7}, 0) // another key with the same hash
	p.put(key, 1, &ClaimRecord{State: Done, Generation: 2}, 0)
	for range 2 {
		if r, found := p.find(key, 1); !found || generationOf(t, r) != 2 {
			t.Errorf("found %x, %v", r, found)
		}
		if r, found := p.find(other, 1); !found || generationOf(t, r) != 7 {
			t.Errorf("found %x, %v", r, found)
		}
		if _, found := p.find([]byte("c"), 1); found {
			t.Error("found a key that was not put")
		}
		p.next(0)
	}
}
