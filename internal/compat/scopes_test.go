package compat

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

// A scope with a shorter retention than the others, on both stores, across a clean close.
func TestAScopeWithAShorterRetentionOnEachStore(t *testing.T) {
	for kind, openStore := range goldenKinds {
		t.Run(kind, func(t *testing.T) {
			dir, now := filepath.Join(t.TempDir(), "store"), time.Date(2026, 3, 18, 12, 0, 0, 0, time.UTC)
			open := func(o engine.Options) *engine.Engine {
				t.Helper()
				store, err := openStore(dir)
				if err != nil {
					t.Fatal(err)
				}
				o.RetentionWeeks, o.ExpectedPerWeek, o.Clock = 4, 1000, func() time.Time { return now }
				e, err := engine.Open(store, o)
				if err != nil {
					t.Fatal(err)
				}
				return e
			}
			judge := func(e *engine.Engine, scope string, weeks int) engine.Verdict {
				t.Helper()
				ev := engine.Event{Scope: scope, ID: []byte("a"), Time: now.AddDate(0, 0, -7*weeks), Origin: engine.Origin{Topic: "in"}}
				res, err := e.TryClaim(context.Background(), ev)
				if err != nil {
					t.Fatal(err)
				}
				return res.Verdict
			}
			e := open(engine.Options{ScopeRetention: map[string]int{"mail": 1}})
			for weeks := range 5 {
				judge(e, "mail", weeks)
				judge(e, "billing", weeks)
			}
			for range 2 {
				if _, err := e.Retention().DropExpired(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			for _, last := range []bool{false, true} {
				for weeks := range 5 {
					want := engine.Duplicate
					if weeks > 1 {
						want = engine.TooOld
					}
					if got := judge(e, "mail", weeks); got != want {
						t.Errorf("mail, %d weeks ago: %v, want %v", weeks, got, want)
					}
					if got := judge(e, "billing", weeks); got != engine.Duplicate {
						t.Errorf("billing, %d weeks ago: %v", weeks, got)
					}
				}
				if r, err := e.Admin().Verify(context.Background()); err != nil || r.Total != 0 || r.Claims != 7 {
					t.Errorf("verify: %+v, %v", r, err)
				}
				if err := e.Close(); err != nil {
					t.Fatal(err)
				}
				if !last {
					e = open(engine.Options{})
				}
			}
		})
	}
}
