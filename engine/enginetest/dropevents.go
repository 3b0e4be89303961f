package enginetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

var dropNow = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

const (
	dropFirst = -4 // the first week with claims, counted from that of dropNow
	dropEach  = 10 // claims of a week, in two scopes
)

func dropEvent(id, scope, topic string, week int) engine.Event {
	return engine.Event{Scope: scope, ID: []byte(id), Time: dropNow.AddDate(0, 0, 7*week), Origin: engine.Origin{Topic: topic}}
}

func dropEvents() (events []engine.Event) {
	for week := dropFirst; week <= 0; week++ {
		for i := range dropEach {
			events = append(events, dropEvent(fmt.Sprint(week, " ", i), []string{"billing", "mail"}[i%2], "orders", week))
		}
	}
	return events
}

func dropOptions(retention map[string]int) engine.Options {
	return engine.Options{
		RetentionWeeks: 4, ScopeRetention: retention, MaxWeeksPerRun: 9, ExpectedPerWeek: 100,
		Clock: func() time.Time { return dropNow },
	}
}

// wantVerdicts judges all events and returns the violations.
func wantVerdicts(e *engine.Engine, events []engine.Event, want func(*engine.Event) engine.Verdict) error {
	results, err := e.TryClaimBatch(context.Background(), events)
	if err != nil {
		return err
	}
	for i, r := range results {
		if r.Err != nil {
			return fmt.Errorf("%q of %s: %w", events[i].ID, events[i].Scope, r.Err)
		}
		if w := want(&events[i]); r.Verdict != w {
			return fmt.Errorf("%q of %s in week %v: %v, want %v", events[i].ID, events[i].Scope, events[i].Time, r.Verdict, w)
		}
	}
	return nil
}

func wantVerified(t *testing.T, e *engine.Engine, claims uint64) {
	t.Helper()
	if r, err := e.Admin().Verify(context.Background()); err != nil || r.Total != 0 || r.Claims != claims {
		t.Errorf("verify: %+v, %v; want %d claims", r, err, claims)
	}
}
