package bench

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter"
)

func TestRecordIsThePaymentOfItsEventInJSON(t *testing.T) {
	log := wholeLog(t, 1000)
	log.Accounts = 3
	for number := range uint64(1000) {
		value := log.value(number)
		var got payment
		if err := json.Unmarshal(value, &got); err != nil || len(value) != valueBytes {
			t.Fatalf("%q of %d bytes: %v", value, len(value), err)
		}
		want := log.payment(number)
		if want.Reference = got.Reference; got != want || got.From == got.To || max(got.From, got.To) >= 3 || got.Amount < 1 {
			t.Errorf("event %d pays %+v, want %+v", number, got, want)
		}
		if n, err := numberOf(&kgo.Record{Value: value}, 1000); n != number || err != nil {
			t.Errorf("event %d is read as %d, %v", number, n, err)
		}
		if _, err := numberOf(&kgo.Record{Value: value}, number); err == nil {
			t.Errorf("event %d is below the limit %d", number, number)
		}
	}
}

func TestBalancesThatTheEventsDoNotAddUpToAreWrong(t *testing.T) {
	const n = 500
	log := wholeLog(t, n)
	log.Accounts = 4
	pays := log.payment(odd)
	for _, work := range []Workload{{}, {PerPartition: true}, {Add: true}} {
		work.Handler, work.Accounts = BalancesHandler, log.Accounts
		for name, tt := range map[string]struct {
			move  func(tx *engine.Tx, rec *kafkaadapter.Record) error // for event odd
			wrong uint64
		}{
			"right":    {work.handle, 0},
			"not done": {func(*engine.Tx, *kafkaadapter.Record) error { return nil }, 2},
			"twice": {func(tx *engine.Tx, rec *kafkaadapter.Record) error {
				if err := work.handle(tx, rec); err != nil {
					return err
				}
				return work.handle(tx, rec)
			}, 2},
			"half": {func(tx *engine.Tx, rec *kafkaadapter.Record) error {
				return work.add(tx, work.account(rec.Partition, pays.From), -pays.Amount)
			}, 1},
		} {
			p := &produced{topic: &topic{Name: "t"}, log: log, ends: []int64{n / 2, n / 2}, distinct: n}
			o := consumeOrder{Kind: adapterWork, Group: "g", Dir: filepath.Join(t.TempDir(), "store"), Weeks: 2, Workload: work}
			plant(t, &o, func(tx *engine.Tx) error {
				for number := range uint64(n) {
					if err := leaveEvent(tx, log, number, false, false); err != nil {
						return err
					}
					move := work.handle
					if number == odd {
						move = tt.move
					}
					rec := &kafkaadapter.Record{Record: &kgo.Record{Partition: int32(number % 2), Value: log.value(number)}}
					if err := move(tx, rec); err != nil {
						return err
					}
				}
				return leaveOffsets(tx, &o, p, p.ends)
			})
			c, err := checkState(t.Context(), &o, p, nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.balancesWrong != tt.wrong || c.mismatches != 0 || (c.first == "") != (tt.wrong == 0) {
				t.Errorf("%+v, %s: %d balances wrong, %d mismatches (first %s), want %d", work, name, c.balancesWrong, c.mismatches, c.first, tt.wrong)
			}
		}
	}
}

func TestSpreadComparesShares(t *testing.T) {
	for _, tt := range []struct {
		next, ends []int64
		want       float64
	}{
		{[]int64{50, 100}, []int64{100, 200}, 1},
		{[]int64{75, 50}, []int64{100, 200}, 3},
		{[]int64{0, 100}, []int64{100, 100}, 100},
		{[]int64{0, 40}, []int64{0, 80}, 1}, // an empty partition is nowhere
	} {
		if got := spread(tt.next, tt.ends); got != tt.want {
			t.Errorf("%v of %v: %v, want %v", tt.next, tt.ends, got, tt.want)
		}
	}
}

func TestEventsOfTheDemoAreRecordedAndGeneratedAndDistinct(t *testing.T) {
	recorded, err := readRecordedLog()
	if err != nil {
		t.Fatal(err)
	}
	src, err := newSource(1, UUIDv4, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	log := &topicLog{source: src, N: 40, recorded: recorded[:2]}
	var found uint64
	ids := make(map[string]bool)
	for n := range uint64(40) {
		ev := log.event(n, nil)
		if ids[string(ev.ID)] {
			t.Errorf("event %d has the id %s of another event", n, ev.ID)
		}
		ids[string(ev.ID)] = true
		if bytes.Equal(ev.ID, recorded[0].ID) || bytes.Equal(ev.ID, recorded[1].ID) {
			found++
		}
		if got := log.recordedAmong(n + 1); got != found {
			t.Errorf("%d of the first %d events are recorded, want %d", got, n+1, found)
		}
	}
	if found != 2 {
		t.Errorf("%d events are recorded, want 2", found)
	}
}
