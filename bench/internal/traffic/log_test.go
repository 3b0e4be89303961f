package traffic

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func newLog(t *testing.T, n int, dup float64) *Log {
	t.Helper()
	src, err := NewSource(1, UUIDv4, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	return &Log{Source: src, N: n, Dup: dup}
}

func TestRecordIsThePaymentOfItsEventInJSON(t *testing.T) {
	log := newLog(t, 1000, 0)
	log.Accounts = 3
	for number := range uint64(1000) {
		value := log.Value(number)
		var got Payment
		if err := json.Unmarshal(value, &got); err != nil || len(value) != ValueBytes {
			t.Fatalf("%q of %d bytes: %v", value, len(value), err)
		}
		want := log.Payment(number)
		if want.Reference = got.Reference; got != want || got.From == got.To || max(got.From, got.To) >= 3 || got.Amount < 1 {
			t.Errorf("event %d pays %+v, want %+v", number, got, want)
		}
		if n, err := NumberOf(&kgo.Record{Value: value}, 1000); n != number || err != nil {
			t.Errorf("event %d is read as %d, %v", number, n, err)
		}
		if _, err := NumberOf(&kgo.Record{Value: value}, number); err == nil {
			t.Errorf("event %d is below the limit %d", number, number)
		}
	}
}

func TestTruthIsThatOfTheRecords(t *testing.T) {
	log := newLog(t, 20_000, 0.2)
	log.Accounts = 10
	seen, balances := map[string]bool{}, map[int]int64{}
	s := log.Begin()
	for range log.N {
		r := s.Record("t")
		var p Payment
		if err := json.Unmarshal(r.Value, &p); err != nil {
			t.Fatal(err)
		}
		if id := string(IDOf(r)); !seen[id] {
			seen[id] = true
			balances[p.From] -= p.Amount
			balances[p.To] += p.Amount
		}
	}
	events, want := log.Truth()
	if events != uint64(len(seen)) || s.Distinct() != events || !maps.Equal(balances, want) {
		t.Errorf("%d events with %v, the truth is %d with %v", len(seen), balances, events, want)
	}
}

func TestShorterLogIsAPrefix(t *testing.T) {
	a, b := newLog(t, 1000, 0.5).Begin(), newLog(t, 10, 0.5).Begin()
	for range 10 {
		n, repeat := a.Next()
		if m, again := b.Next(); m != n || again != repeat {
			t.Fatal(n, repeat, m, again)
		}
	}
}

func TestDealtLogRepeatsEarlierEventsOnly(t *testing.T) {
	const parts, recent = 4, 400
	log := newLog(t, 40_000, 0.2)
	log.Recent = recent
	d := log.Deal(parts)
	var fresh, near, repeats uint64
	for i := range uint64(log.N) {
		n := d.Number(int(i%parts), i/parts)
		switch {
		case n == fresh:
			fresh++
			continue
		case n > fresh:
			t.Fatalf("record %d is event %d of %d", i, n, fresh)
		case fresh-n <= recent:
			near++
		}
		repeats++
	}
	if repeats < 7200 || repeats > 8800 || near < repeats/3 || near > repeats*2/3 {
		t.Errorf("%d of %d are repeats, %d of recent events", repeats, log.N, near)
	}
	log.Dup = 0
	if d := log.Deal(parts); d.Number(2, 5) != 22 || d.Ends != 10_000 {
		t.Errorf("without repeats: event %d, %d of a partition", d.Number(2, 5), d.Ends)
	}
}
