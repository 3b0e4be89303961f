package listener_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/listener"
	"github.com/hapax-dev/hapax/telemetry"
)

// wantWait checks how long a delivery has waited, by dedup_listener_oldest_wait_seconds.
func (r *rig) wantWait(waitsFor string, want time.Duration) {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	found := false
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "dedup_listener_oldest_wait_seconds" && l.GetName() == "waits_for" && l.GetValue() == waitsFor {
					found = true
					if got := m.GetGauge().GetValue(); got != want.Seconds() {
						r.t.Errorf("a delivery has waited for the %s for %v s, want %v", waitsFor, got, want)
					}
				}
			}
		}
	}
	if !found {
		r.t.Errorf("no series for the %s", waitsFor)
	}
}

// wantLines checks the lines about deliveries that have not returned.
func (r *rig) wantLines(waitsFor string, want int) {
	r.t.Helper()
	n := 0
	for _, line := range r.log.lines(r.t) {
		if line["msg"] == "listener: a delivery has not returned" {
			n++
			if line["level"] != "WARN" || line["waits_for"] != waitsFor || line["correlation_id"] != "a" || line["queue"] != "prizes" {
				r.t.Errorf("the line is %v", line)
			}
		}
	}
	if n != want {
		r.t.Errorf("%d lines, want %d", n, want)
	}
}

func TestADeliveryThatDoesNotReturnIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		waitsFor string
		change   func(o *listener.Options[message])
	}{
		"handler":               {"handler", nil},
		"handler, at most once": {"handler", func(o *listener.Options[message]) { o.AtMostOnce = true }},
		"claim":                 {"store", func(o *listener.Options[message]) { o.Lease = 20 * time.Minute }},
		"end of the claim":      {"store", func(o *listener.Options[message]) { o.Lease = 20 * time.Minute }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				returns := make(chan error)
				f := r.wrap(func(context.Context, message) error {
					if c.waitsFor == "handler" {
						return <-returns
					}
					if name != "claim" {
						r.mem.HoldSyncs()
					}
					return nil
				}, c.change)
				if name == "claim" {
					r.mem.HoldSyncs()
				}
				r.wantWait(c.waitsFor, 0)
				done := make(chan error, 1)
				go func() { done <- f(ctx, message{"a"}) }()
				synctest.Wait()
				time.Sleep(30*time.Second - 1)
				synctest.Wait()
				r.wantLines(c.waitsFor, 0)
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				r.wantLines(c.waitsFor, 1)
				r.wantWait(c.waitsFor, 30*time.Second)
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				r.wantLines(c.waitsFor, 11)
				r.wantWait(c.waitsFor, 10*time.Minute+30*time.Second)
				if c.waitsFor == "handler" {
					returns <- nil
				}
				r.mem.ReleaseSyncs()
				if err := <-done; err != nil {
					t.Error(err)
				}
				r.wantWait("store", 0)
				r.wantWait("handler", 0)
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				r.wantLines(c.waitsFor, 11)
				r.eng.Close()
			})
		})
	}
}

// Without a deadline of the caller, a delivery does not wait forever.
func TestADeliveryEndsWhenTheStoreStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var h counting
		f := r.wrap(h.handle, nil)
		r.mem.HoldSyncs()
		began := time.Now()
		err := f(ctx, message{"a"})
		if took := time.Since(began); took != 30*time.Second || !errors.Is(err, listener.ErrStalled) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %v: %v", took, err)
		}
		r.wantCount("store_error", 1)
		h.want(t, 0)
		r.mem.ReleaseSyncs()
		synctest.Wait()
		wantNil(t, f(ctx, message{"a"})) // its claim was withdrawn
		h.want(t, 1)
		r.eng.Close()
	})
}

func TestListenersThatShareARegistryShareTheGauge(t *testing.T) {
	r := newRig(t)
	var h counting
	r.wrap(h.handle, nil)
	r.wrap(h.handle, nil)
	r.wrap(h.handle, func(o *listener.Options[message]) { o.Queue = "others" })
	r.wantWait("store", 0)
	other := prometheus.NewRegistry()
	if err := other.Register(prometheus.NewGauge(prometheus.GaugeOpts{Name: "dedup_listener_oldest_wait_seconds"})); err != nil {
		t.Fatal(err)
	}
	if _, err := listener.Wrap(r.eng, h.handle, listener.Options[message]{ID: idOf, Telemetry: telemetry.Options{Registerer: other}}); err == nil {
		t.Error("another metric with the name is no error")
	}
}

// The count of a group is also read from the store.
func TestADeliveryEndsWhenTheStoreStallsAtItsGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var h counting
		stall := true
		f := r.wrap(h.handle, func(o *listener.Options[message]) {
			o.MaxPerGroup, o.Group = 2, func(message) string {
				if stall {
					stall = false
					r.mem.HoldSyncs()
					go func() {
						if err := r.eng.Update(ctx, func(tx *engine.Tx) error { return tx.Put([]byte("k"), nil) }); err != nil {
							t.Error(err)
						}
					}()
					synctest.Wait()
				}
				return "all"
			}
		})
		began := time.Now()
		done := make(chan error, 1)
		go func() { done <- f(ctx, message{"a"}) }()
		select {
		case err := <-done:
			if !errors.Is(err, listener.ErrStalled) {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
		case <-time.After(time.Hour):
			t.Error("a delivery has waited for an hour")
		}
		h.want(t, 0)
		r.mem.ReleaseSyncs()
		synctest.Wait()
		if t.Failed() {
			return
		}
		time.Sleep(listener.DefaultLease)
		wantNil(t, f(ctx, message{"a"}))
		h.want(t, 1)
		r.eng.Close()
	})
}
