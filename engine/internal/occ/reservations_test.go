package occ

import (
	"slices"
	"testing"

	"github.com/hapax-dev/hapax/weekbucket"
)

// toldWeeks are the weeks that Reservations told, 0 for ReleaseAll.
type toldWeeks []weekbucket.Week

func (w *toldWeeks) Reserve(week weekbucket.Week) { *w = append(*w, week) }
func (w *toldWeeks) ReleaseAll()                  { *w = append(*w, 0) }

func newReservations() (*Reservations, *toldWeeks) {
	r, weeks := &Reservations{}, &toldWeeks{}
	r.Init(weeks)
	return r, weeks
}

func name(n uint64) Name { return Name{Lo: n, Hi: n} }

func mustReserve(t *testing.T, c *Claimant, n uint64, index int) {
	t.Helper()
	if taken, free := c.Reserve(name(n), 1, index, nil); !free || taken.IsHeld() {
		t.Fatalf("claim %d is taken", n)
	}
}

func TestOneTransactionHoldsAClaim(t *testing.T) {
	r, _ := newReservations()
	var ownerA, ownerB Owner
	a, b := r.Claimant(&ownerA), r.Claimant(&ownerB)
	mustReserve(t, &a, 1, 7)
	taken, free := b.Reserve(name(1), 1, 0, nil)
	if _, mine := b.Index(taken); free || mine {
		t.Error("two transactions have one claim")
	}
	if i, mine := a.Index(taken); !mine || i != 7 {
		t.Errorf("the holder has index %d, %t", i, mine)
	}
	if _, free := a.Reserve(name(1), 1, 8, nil); free {
		t.Error("a transaction takes its own claim again")
	}
	if taken.CommitsIn() != 0 || r.CommitsIn(name(2), []Name{name(1)}) != 0 {
		t.Error("an open transaction commits")
	}
	a.Win(5)
	if taken.CommitsIn() != 5 || r.CommitsIn(name(2), []Name{name(1)}) != 5 {
		t.Error("an admitted transaction has no batch")
	}
	a.Release(name(1))
	if r.Get(name(1)).IsHeld() || r.Some() || r.Count() != 0 {
		t.Error("a released claim is held")
	}
	mustReserve(t, &b, 1, 0)
}

func TestAClaimNearKeepsOthersOut(t *testing.T) {
	r, _ := newReservations()
	var ownerA, ownerB Owner
	a, b := r.Claimant(&ownerA), r.Claimant(&ownerB)
	mustReserve(t, &a, 1, 0)
	mustReserve(t, &b, 2, 3)
	taken, free := b.Reserve(name(9), 1, 4, []Name{name(1), name(2)})
	if i, mine := b.Index(taken); free || !mine || i != 3 {
		t.Errorf("the transaction's own claim near is not found before that of another: %d, %t", i, mine)
	}
	if _, free := b.Reserve(name(9), 1, 4, []Name{name(7), name(8)}); !free {
		t.Error("free claims near keep it out")
	}
}

func TestPartsShareAClaimThatTheFirstOneJoins(t *testing.T) {
	r, _ := newReservations()
	var owner, other Owner
	whole, stranger := r.Claimant(&owner), r.Claimant(&other)
	p, q := whole.Part(), whole.Part()
	mustReserve(t, &p, 1, 0)
	mustReserve(t, &q, 1, 0)
	if _, free := stranger.Reserve(name(1), 1, 0, nil); free {
		t.Error("another transaction takes the claim of a part")
	}
	if _, ok := whole.IndexInWhole(r.Get(name(1))); ok {
		t.Error("the transaction has the claim of a part that was not joined")
	}
	if whole.HasClaimedSince([]Name{name(1)}, 0) {
		t.Error("the transaction has claimed before a part was joined")
	}
	p.Join([]Name{name(1)}, 5)
	if i, ok := q.IndexInWhole(r.Get(name(1))); !ok || i != 5 {
		t.Errorf("a joined claim has index %d, %t", i, ok)
	}
	if !q.HasClaimedSince([]Name{name(2), name(1)}, 5) || q.HasClaimedSince([]Name{name(1)}, 6) {
		t.Error("the other part does not see that the transaction has claimed since it began")
	}
	q.Release(name(1))
	if !r.Get(name(1)).IsHeld() {
		t.Error("a discarded part releases the claim of the transaction")
	}
	whole.Release(name(1))
	if r.Some() {
		t.Error("the claim is still held")
	}
}

func TestWeeksAreToldWhenTheyChange(t *testing.T) {
	r, weeks := newReservations()
	var owner Owner
	c := r.Claimant(&owner)
	for i, week := range []weekbucket.Week{3, 3, 4, 3} {
		c.Reserve(name(uint64(i)), week, i, nil)
	}
	c.Release(name(0), name(1))
	c.Release(name(2), name(3))
	c.Reserve(name(1), 3, 0, nil) // the week of the last one, which was forgotten
	if want := []weekbucket.Week{3, 4, 3, 0, 3}; !slices.Equal(*weeks, want) {
		t.Errorf("told %v, want %v", *weeks, want)
	}
}
