package bench

import (
	"context"
	"testing"
	"time"
)

func TestKilledProcessLosesNothing(t *testing.T) {
	for _, store := range []StoreName{Pebble, Bolt} {
		for _, mode := range []KillMode{KillOwn, KillWork} {
			t.Run(string(store)+" "+string(mode), func(t *testing.T) {
				t.Parallel()
				r, err := Kill(context.Background(), KillOptions{Kills: 3, Store: store, Mode: mode, brief: true})
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
		mode  KillMode
		seen  func(*KillReport) uint64
	}{
		{ackEarly, KillOwn, func(r *KillReport) uint64 { return r.Lost }},
		{ackEarly, KillWork, func(r *KillReport) uint64 { return r.Lost }},
		{claimTwice, KillOwn, func(r *KillReport) uint64 { return r.ClaimedTwice }},
		{claimApart, KillWork, func(r *KillReport) uint64 { return r.StateMismatch }},
	}
	for _, tt := range tests {
		t.Run(string(tt.fault)+", "+string(tt.mode), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
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
	src, err := newSource(1, UUIDv4, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	log := &killLog{source: src, Parts: 1}
	b := newBooks(log)
	say := func(word, rest string) {
		t.Helper()
		if err := b.take(word, rest); err != nil {
			t.Fatal(err)
		}
	}
	say("ack", "0 0 c")
	say("ack", "0 0 d")
	if b.acked() != 1 || b.claimedTwice() != 0 || b.parts[0].Told != 1 {
		t.Errorf("acked %d, twice %d, told %d", b.acked(), b.claimedTwice(), b.parts[0].Told)
	}
	say("ack", "0 0 c")
	say("lost", "0 0")
	say("lost", "0 0")
	say("mismatch", "0 0 counted 2 times")
	if b.claimedTwice() != 1 || len(b.lost) != 1 || b.mismatches != 1 {
		t.Errorf("twice %d, lost %d, mismatches %d", b.claimedTwice(), len(b.lost), b.mismatches)
	}
	for _, line := range [][2]string{{"ack", "0 5 c"}, {"ack", "1 0 c"}, {"ack", "0 1 x"}, {"ack", "0"}, {"what", "0 0"}} {
		if b.take(line[0], line[1]) == nil {
			t.Errorf("%q was taken", line)
		}
	}
}

func TestKillLogRepeatsEarlierEventsOnly(t *testing.T) {
	src, _ := newSource(1, UUIDv4, 1, 1)
	log := &killLog{source: src, Parts: 4}
	repeats := 0
	for at := range uint64(10_000) {
		n := log.number(2, at)
		if n == 2<<partShift|at {
			continue
		}
		repeats++
		if n&(1<<partShift-1) >= at || log.number(int(n>>partShift), n&(1<<partShift-1)) != n {
			t.Fatalf("position %d has event %x", at, n)
		}
	}
	if repeats < 1800 || repeats > 2200 {
		t.Errorf("%d of 10000 are repeats", repeats)
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
