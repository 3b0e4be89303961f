package bench

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestLayersHoldThroughAKill(t *testing.T) {
	for _, store := range []StoreName{Pebble, Bolt} {
		t.Run(string(store), func(t *testing.T) {
			t.Parallel()
			r, err := Layers(t.Context(), LayersOptions{Common: Common{Store: store}, N: 300, Kills: 2})
			if err != nil || r.Kills != 2 || r.Requests != 300 || r.Retries == 0 || r.OutboxSent != 600 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// The ledger has to notice what is wrong, and nothing else.
func TestLayersNoticeABrokenRule(t *testing.T) {
	for broken, figures := range map[fault]func(*LayersReport) []*uint64{
		forgetKeys:  func(r *LayersReport) []*uint64 { return []*uint64{&r.ExecutedTwice} },
		forgetIDs:   func(r *LayersReport) []*uint64 { return []*uint64{&r.HandledTwice} },
		arrivalWins: func(r *LayersReport) []*uint64 { return []*uint64{&r.WrongVersion} },
		noOutbox:    func(r *LayersReport) []*uint64 { return []*uint64{&r.OutboxLost, &r.OutboxDoubled} },
	} {
		t.Run(string(broken), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			seen := make([]uint64, len(figures(&LayersReport{})))
			for { // a kill need not hit the wrong moment; some of a few do
				r, err := Layers(ctx, LayersOptions{N: 300, Kills: 1, fault: broken})
				if ctx.Err() != nil {
					t.Fatalf("not noticed: %+v, %v", r, err)
				}
				all := true
				for i, figure := range figures(&r) {
					seen[i] += *figure
					*figure = 0
					all = all && seen[i] > 0
				}
				wrong := r.ExecutedTwice + r.HandledTwice + r.WrongVersion + r.OutboxLost + r.OutboxDoubled
				if wrong > 0 || err != nil && !errors.Is(err, ErrNotHeld) {
					t.Fatalf("%+v, %v", r, err)
				}
				if all {
					if err == nil {
						t.Error("the run is said to hold")
					}
					return
				}
			}
		})
	}
}

func TestLedgerOfAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		answers  []answer // executed stands for an answer that is no replay
		replayed uint64
		twice    bool
	}{
		"replays":                {[]answer{{body: []byte("a"), executed: true}, {body: []byte("a")}, {body: []byte("a")}}, 2, false},
		"a replay comes first":   {[]answer{{body: []byte("a")}, {body: []byte("a"), executed: true}}, 1, false},
		"the first one is lost":  {[]answer{{body: []byte("a")}, {body: []byte("a")}}, 1, false},
		"two runs, same answer":  {[]answer{{body: []byte("a"), executed: true}, {body: []byte("a"), executed: true}}, 0, true},
		"two runs, one replayed": {[]answer{{body: []byte("a"), executed: true}, {body: []byte("b")}}, 0, true},
	} {
		l := newClientsLedger(1)
		var r LayersReport
		for _, a := range tt.answers {
			l.answered(0, a.body, !a.executed, &r)
		}
		if r.Requests != 1 || r.Retries != uint64(len(tt.answers)-1) || r.ReplayedIdentical != tt.replayed || l.answers[0].twice != tt.twice {
			t.Errorf("%s: %+v, twice %v", name, r, l.answers[0].twice)
		}
	}
}
