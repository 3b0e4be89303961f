package bench

import (
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter"
)

func TestBalancesThatTheEventsDoNotAddUpToAreWrong(t *testing.T) {
	const n = 500
	log := wholeLog(t, n)
	log.Accounts = 4
	pays := log.Payment(odd)
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
			p := halves(log)
			o := consumer{Kind: adapterWork, Group: "g", Dir: filepath.Join(t.TempDir(), "store"), Weeks: 2, Workload: work}
			plant(t, &o, func(tx *engine.Tx) error {
				for number := range uint64(n) {
					if err := leaveEvent(tx, log, number, false, false); err != nil {
						return err
					}
					move := work.handle
					if number == odd {
						move = tt.move
					}
					rec := &kafkaadapter.Record{Record: &kgo.Record{Partition: int32(number % 2), Value: log.Value(number)}}
					if err := move(tx, rec); err != nil {
						return err
					}
				}
				return leaveOffsets(tx, &o, p, p.Ends)
			})
			c := checked(t, o, p)
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
