package bench

import (
	"context"
	"path/filepath"
	"testing"
	"time"

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
		fault killFault
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
	log := wholeLog(t, 8)
	b := newBooks(log, 1)
	l := lives{hear: b.hear()}
	say := func(value string) error { return l.heard(never, "ack", []byte(value)) }
	for _, verdict := range []string{"c", "d"} {
		if err := say(`{"Partition":0,"At":0,"Verdicts":"` + verdict + `"}`); err != nil {
			t.Fatal(err)
		}
	}
	if b.acked != 1 || b.twice != 0 || b.told[0] != 1 || b.sent != 2 || b.claimed != 1 {
		t.Errorf("%+v", b)
	}
	for range 3 {
		if err := say(`{"Partition":0,"At":0,"Verdicts":"c"}`); err != nil {
			t.Fatal(err)
		}
	}
	if b.twice != 1 || b.acked != 1 || b.first == "" {
		t.Errorf("%+v", b)
	}
	if err := say(`{"Partition":0,"At":4,"Verdicts":"dd"}`); err != nil || b.told[0] != 6 || b.acked != 3 {
		t.Errorf("%d were told, %d acknowledged, %v", b.told[0], b.acked, err)
	}
	if below := b.below(b.told); below[7] || below[6] || !below[5] || !below[3] {
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
	if err := l.heard(never, "what", []byte("0")); err == nil {
		t.Error("an unknown word was taken")
	}
}

func TestWhatIsClaimedAgainWasNotThere(t *testing.T) {
	log := wholeLog(t, 8)
	o := consumeOrder{Dir: filepath.Join(t.TempDir(), "store"), Weeks: 2}
	plant(t, &o, func(tx *engine.Tx) error {
		for _, n := range []uint64{0, 1, 3, 4, 5} {
			if _, err := tx.TryClaim(log.event(n, nil)); err != nil {
				return err
			}
		}
		return nil
	})
	e, err := o.openStore(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	b := newBooks(log, 2)
	if n, err := claimAgain(t.Context(), e, b, []uint64{3, 2}); n != 1 || err != nil { // 0, 2 and 4; 1 and 3
		t.Errorf("%d are claimed, %v; want event 2 alone", n, err)
	}
}

func TestDealtLogRepeatsEarlierEventsOnly(t *testing.T) {
	log := wholeLog(t, 40_000)
	log.Dup, log.Recent = killRepeats, killRecent
	d := log.deal(killParts)
	var fresh, near, repeats uint64
	for i := range uint64(log.N) {
		n := d.number(int(i%killParts), i/killParts)
		switch {
		case n == fresh:
			fresh++
			continue
		case n > fresh:
			t.Fatalf("record %d is event %d of %d", i, n, fresh)
		case fresh-n <= killRecent:
			near++
		}
		repeats++
	}
	if repeats < 7200 || repeats > 8800 || near < repeats/3 || near > repeats*2/3 {
		t.Errorf("%d of %d are repeats, %d of recent events", repeats, log.N, near)
	}
	log.Dup = 0
	if d := log.deal(killParts); d.number(2, 5) != 22 || d.ends != 10_000 {
		t.Errorf("without repeats: event %d, %d of a partition", d.number(2, 5), d.ends)
	}
}

func TestKilledProcessIsHeardToItsLastWholeLine(t *testing.T) {
	advance, line, err := wholeLines([]byte("ack 0 0 c\nack 0 1"), true)
	if advance != 10 || string(line) != "ack 0 0 c" || err != nil {
		t.Errorf("%d %q %v", advance, line, err)
	}
	if advance, line, err = wholeLines([]byte("ack 0 1"), true); advance != 7 || line != nil || err != nil {
		t.Errorf("%d %q %v", advance, line, err)
	}
}
