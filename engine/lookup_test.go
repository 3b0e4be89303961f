package engine

import (
	"testing"

	"github.com/hapax-dev/hapax/weekbucket"
)

// A candidate can be found in its own week, with a claim that is free, and in each other one. The
// shares have room for all of these, and none has the room of another.
func TestSharesHaveRoomForAllThatIsFound(t *testing.T) {
	r := claimSet{found: make([]foundClaim, 1, 2), near: make([]place, 3), arena: []byte("keys")}
	for i := range 240 {
		c := candidate{absent: i%5 == 0}
		c.place.week = weekbucket.Week(i)
		if i < 100 && i%3 == 0 {
			c.nearAt, c.nearEnd = 0, len(r.near)
		}
		r.claims = append(r.claims, c)
	}
	shares := r.share()
	if len(shares) < 4 {
		t.Fatalf("%d shares", len(shares))
	}
	next := 0
	for i := range shares {
		s := &shares[i]
		looked := 0
		for k := range s.set.claims {
			c := &s.set.claims[k]
			if &r.claims[next] != c {
				t.Fatalf("share %d has another candidate than %d", i, next)
			}
			next++
			if c.absent {
				continue
			}
			looked++
			for range 1 + c.nearEnd - c.nearAt {
				s.set.found = append(s.set.found, foundClaim{hash: uint64(c.place.week)})
			}
		}
		if looked > shareOfLookUps {
			t.Errorf("share %d has %d look-ups", i, looked)
		}
		s.set.looked, s.set.epoch = true, uint64(100-i)
	}
	if next != len(r.claims) {
		t.Fatalf("the shares have %d candidates", next)
	}
	var want []uint64
	for i := range r.claims {
		if c := &r.claims[i]; !c.absent {
			for range 1 + c.nearEnd - c.nearAt {
				want = append(want, uint64(c.place.week))
			}
		}
	}
	want = append(want[:1], want[len(shares[0].set.found):]...)
	shares[0].set.found = shares[0].set.found[:1] // the others move up
	r.join(shares)
	for i, f := range r.found[len(r.found):shares[len(shares)-1].end] {
		if f.hash != 0 {
			t.Errorf("a record that was found is left at %d", i)
		}
	}
	if !r.looked || r.epoch != uint64(101-len(shares)) {
		t.Errorf("looked: %v, as of epoch %d", r.looked, r.epoch)
	}
	if len(r.found) != 1+len(want) {
		t.Fatalf("%d claims were found, want %d", len(r.found)-1, len(want))
	}
	for i, f := range r.found[1:] {
		if f.hash != want[i] {
			t.Fatalf("found %d is that of candidate %d, want %d", i, f.hash, want[i])
		}
	}
}
