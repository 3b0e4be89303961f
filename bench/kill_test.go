package bench

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/bench/internal/runner"
	"github.com/hapax-dev/hapax/engine"
)

func TestKilledProcessLosesNothing(t *testing.T) {
	for _, store := range []StoreName{Pebble, Bolt} {
		for _, mode := range []Mode{Own, Work} {
			t.Run(string(store)+" "+string(mode), func(t *testing.T) {
				t.Parallel()
				r, err := Kill(context.Background(), KillOptions{Common: Common{Store: store}, Kills: 3, Mode: mode, brief: true})
				if err != nil || r.Kills != 3 || r.Acked < 50 || r.Lost+r.ClaimedTwice+r.StateMismatch != 0 {
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
	}
}

// The books have to notice what is wrong.
func TestBooksNoticeABrokenRule(t *testing.T) {
	tests := []struct {
		fault fault
		mode  Mode
		seen  func(*KillReport) uint64
	}{
		{ackEarly, Own, func(r *KillReport) uint64 { return r.Lost }},
		{ackEarly, Work, func(r *KillReport) uint64 { return r.Lost }},
		{ackEarly, Work, func(r *KillReport) uint64 { return r.ClaimedTwice }},
		{claimTwice, Own, func(r *KillReport) uint64 { return r.ClaimedTwice }},
		{claimApart, Work, func(r *KillReport) uint64 { return r.StateMismatch }},
	}
	for _, tt := range tests {
		t.Run(string(tt.fault)+", "+string(tt.mode), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			// A kill need not hit the wrong moment; some of a few do.
			for {
				r, err := Kill(ctx, KillOptions{Kills: 4, Mode: tt.mode, fault: tt.fault, brief: true})
				if tt.seen(&r) > 0 && err != nil {
					return
				}
				if ctx.Err() != nil {
					t.Fatalf("not noticed: %+v, %v", r, err)
				}
			}
		})
	}
}

func TestBooks(t *testing.T) {
	r := newClaimRun(&Common{}, wholeLog(t, 8), 1)
	hear := runner.Hears(r.acknowledged)
	say := func(value string) error { return hear([]byte(value)) }
	for _, verdict := range []string{"c", "d"} {
		if err := say(`{"Partition":0,"At":0,"Verdicts":"` + verdict + `"}`); err != nil {
			t.Fatal(err)
		}
	}
	_, twice := r.ledger.done()
	if r.ledger.acked != 1 || twice != 0 || r.worker.From[0] != 1 || r.sent != 2 || r.claimed != 1 {
		t.Errorf("%+v", r)
	}
	for range 3 {
		if err := say(`{"Partition":0,"At":0,"Verdicts":"c"}`); err != nil {
			t.Fatal(err)
		}
	}
	if _, twice = r.ledger.done(); twice != 1 || r.ledger.acked != 1 || r.ledger.first == "" {
		t.Errorf("%d twice, %+v", twice, r)
	}
	if err := say(`{"Partition":0,"At":4,"Verdicts":"dd"}`); err != nil || r.worker.From[0] != 6 || r.ledger.acked != 3 {
		t.Errorf("%d were told, %d acknowledged, %v", r.worker.From[0], r.ledger.acked, err)
	}
	if below := r.below(r.worker.From); below[7] || below[6] || !below[5] || !below[3] {
		t.Errorf("%v is before the end of the partition", below)
	}
	for _, value := range []string{
		`{"Partition":0,"At":7,"Verdicts":"cc"}`, `{"Partition":1,"At":0,"Verdicts":"c"}`, `{"Partition":-1,"At":0,"Verdicts":"c"}`,
		`{"Partition":0,"At":18446744073709551615,"Verdicts":"c"}`, `{"Partition":0,"At":1,"Verdicts":"x"}`, "0", "",
	} {
		if err := say(value); err == nil {
			t.Errorf("%q was taken", value)
		}
	}
}

func TestWhatIsClaimedAgainWasNotThere(t *testing.T) {
	log := wholeLog(t, 8)
	o := consumer{Dir: filepath.Join(t.TempDir(), "store"), Weeks: 2}
	plant(t, &o, func(tx *engine.Tx) error {
		for _, n := range []uint64{0, 1, 3, 4, 5} {
			if _, err := tx.TryClaim(eventOfLog(log, n)); err != nil {
				return err
			}
		}
		return nil
	})
	e, err := o.openStore(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Engine.Close()
	deal := log.Deal(2)
	if n, err := claimAgain(t.Context(), e, &deal, []uint64{3, 2}); n != 1 || err != nil { // 0, 2 and 4; 1 and 3
		t.Errorf("%d are claimed, %v; want event 2 alone", n, err)
	}
}
