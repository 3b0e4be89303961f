package traffic

import (
	"bytes"
	"math"
	"testing"

	"github.com/google/uuid"

	"github.com/hapax-dev/hapax/weekbucket"
)

func TestIDsAreReproducibleAndDistinct(t *testing.T) {
	for _, kind := range []IDKind{UUIDv4, Prefixed, ULID, Numeric, URL} {
		a, err := NewSource(7, kind, 3, 4)
		if err != nil {
			t.Fatal(err)
		}
		b := a
		other, _ := NewSource(8, kind, 3, 4)
		seen := make(map[string]bool)
		for n := range uint64(10_000) {
			x, _ := a.Event(n, nil)
			y, _ := b.Event(n, nil)
			z, _ := other.Event(n, nil)
			if !bytes.Equal(x.ID, y.ID) || x.Scope != y.Scope || !x.Time.Equal(y.Time) {
				t.Fatalf("%s: event %d is %v and %v", kind, n, x, y)
			}
			if bytes.Equal(x.ID, z.ID) {
				t.Fatalf("%s: event %d has id %s with both seeds", kind, n, x.ID)
			}
			if seen[string(x.ID)] {
				t.Fatalf("%s: id %s comes twice", kind, x.ID)
			}
			seen[string(x.ID)] = true
		}
	}
}

func TestUUIDsAreOfVersion4(t *testing.T) {
	s, _ := NewSource(1, UUIDv4, 1, 1)
	for n := range uint64(1000) {
		id := string(s.AppendID(nil, n*100))
		u, err := uuid.Parse(id)
		if err != nil || u.Version() != 4 || u.Variant() != uuid.RFC4122 || u.String() != id {
			t.Fatalf("%s: version %v, variant %v, %v", id, u.Version(), u.Variant(), err)
		}
	}
}

func TestEventsAreSpreadEvenly(t *testing.T) {
	s, _ := NewSource(1, UUIDv4, 5, 4)
	const n = 40_000
	weeks, scopes := map[weekbucket.Week]float64{}, map[string]float64{}
	for i := range uint64(n) {
		ev, _ := s.Event(i, nil)
		week, err := weekbucket.Of(ev.Time)
		if err != nil {
			t.Fatal(err)
		}
		weeks[week] += 4.0 / n
		scopes[ev.Scope] += 5.0 / n
	}
	if len(weeks) != 4 || len(scopes) != 5 {
		t.Fatalf("%d weeks, %d scopes", len(weeks), len(scopes))
	}
	for w, share := range weeks {
		if share < 0.95 || share > 1.05 {
			t.Errorf("%s has %.3f of its share", w, share)
		}
	}
	for scope, share := range scopes {
		if share < 0.95 || share > 1.05 {
			t.Errorf("%s has %.3f of its share", scope, share)
		}
	}
}

func TestTrafficRepeatsTheShareAskedFor(t *testing.T) {
	for _, tt := range []struct {
		repeats          Repeats
		share            float64
		leastOld, atMost float64 // share of the repeats that are of old events
	}{
		{"", 0, 0, 0},
		{RepeatMixed, 0.05, 0.2, 0.6},
		{RepeatMixed, 0.5, 0.2, 0.6},
		{RepeatMixed, 0.9, 0, 0.1}, // few events are old
		{RepeatRecent, 0.5, 0, 0},
		{RepeatAll, 0.5, 0.4, 0.6},
	} {
		share := tt.share
		traffic := Numbers{Seed: 3, Share: share, Repeats: tt.repeats}
		const n = 100_000
		seen := make([]bool, n)
		var fresh, repeats, old float64
		for range n {
			before := traffic.fresh
			k, repeat := traffic.Next()
			if repeat != seen[k] {
				t.Fatalf("event %d is said to be a repeat: %v", k, repeat)
			}
			switch {
			case !seen[k]:
				fresh++
			case before-k > recentWindow:
				old++
				fallthrough
			default:
				repeats++
			}
			seen[k] = true
		}
		if math.Abs(repeats/n-share) > 0.01 || uint64(fresh) != traffic.fresh {
			t.Errorf("share %v: %v repeats, %v new, %d counted", share, repeats/n, fresh, traffic.fresh)
		}
		if old < tt.leastOld*repeats || old > tt.atMost*repeats {
			t.Errorf("%s, share %v: %v of %v repeats are old", tt.repeats, share, old, repeats)
		}
	}
}
