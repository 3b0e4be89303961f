package bench

import (
	"errors"
	"strings"
	"testing"
)

func TestMissingSpaceIsJudgedByWhatCanBeSeen(t *testing.T) {
	const much, little = 8 * leastDropped, leastDropped
	tests := []struct {
		name  string
		store StoreName
		r     DropReport
		note  string
		held  bool
	}{
		{"all is back", Pebble, DropReport{LateVerdict: "too_old", BytesBefore: much, ReclaimS: 2}, "", true},
		{"few claims", Pebble, DropReport{LateVerdict: "too_old", BytesBefore: little, ReclaimS: -1}, "too few claims", true},
		{"many claims", Pebble, DropReport{LateVerdict: "too_old", BytesBefore: much, ReclaimS: -1}, "", false},
		{"a file that does not shrink", Bolt, DropReport{LateVerdict: "too_old", BytesBefore: much, ReclaimS: -1}, "does not shrink", true},
		{"a late event is claimed", Pebble, DropReport{LateVerdict: "claimed", BytesBefore: little, ReclaimS: 2}, "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.r.ExpectedShare = 0.25
			d := dropping{DropOptions: DropOptions{Common: Common{Store: tt.store}}, report: &tt.r}
			if err := d.verdict(); errors.Is(err, ErrNotHeld) == tt.held || (err == nil) != tt.held {
				t.Errorf("judged as %v", err)
			}
			if !strings.Contains(tt.r.Note, tt.note) || (tt.note == "") != (tt.r.Note == "") {
				t.Errorf("the note is %q", tt.r.Note)
			}
		})
	}
}

func TestClaimsTooFewForTheWeeksAreRefused(t *testing.T) {
	r, err := Drop(t.Context(), DropOptions{Common: Common{Store: Bolt}, N: 3, Weeks: 40, Scopes: 1})
	if err == nil || !strings.Contains(err.Error(), "give more claims") || r.Error != err.Error() {
		t.Errorf("3 claims in 40 weeks: %v", err)
	}
}
