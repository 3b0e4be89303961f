package traffic

import (
	"maps"
	"testing"
	"time"
)

func TestTruthIsThatOfTheRecords(t *testing.T) {
	log := Log{Seed: 7, N: 20_000, Dup: 0.2, Accounts: 10}
	seen, balances, repeats := map[[16]byte]bool{}, map[int]int64{}, 0
	s := log.Begin()
	for range log.N {
		r := s.Record("t", time.Unix(0, 0))
		id, err := IDOf(r)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Decode(r.Value)
		if err != nil || len(r.Value) != ValueBytes || p.From == p.To || p.From >= log.Accounts || p.To >= log.Accounts {
			t.Fatalf("%q: %+v, %v", r.Value, p, err)
		}
		if seen[id] {
			repeats++
			continue
		}
		seen[id] = true
		balances[p.From] -= p.Amount
		balances[p.To] += p.Amount
	}
	events, want := log.Truth()
	if events != uint64(len(seen)) || s.Events() != events || !maps.Equal(balances, want) {
		t.Errorf("%d events with %v, the truth is %d with %v", len(seen), balances, events, want)
	}
	if share := float64(repeats) / float64(log.N); share < 0.17 || share > 0.23 {
		t.Errorf("%.3f of the records are repeats", share)
	}
}

func TestShorterLogIsAPrefix(t *testing.T) {
	long, short := Log{Seed: 1, N: 1000, Dup: 0.5}, Log{Seed: 1, N: 10, Dup: 0.5}
	a, b := long.Begin(), short.Begin()
	for range short.N {
		n, repeat := a.Next()
		if m, again := b.Next(); m != n || again != repeat {
			t.Fatal(n, repeat, m, again)
		}
	}
}
