package kafkaadapter

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// onClock opens a new store of an engine whose clock is ahead by the returned duration.
func (r *rig) onClock(t *testing.T) (ahead *atomic.Int64) {
	t.Helper()
	ahead = new(atomic.Int64)
	r.mem = storetest.NewMem(storage.Identity{})
	r.eng = openMem(t, r.mem, engine.Options{Clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	return ahead
}

func TestEventIsHandledAgainOnlyAfterTheWindow(t *testing.T) {
	for name, mode := range map[string]func(*rig) Mode{
		"transactional": func(r *rig) Mode { return r.work(1, nil) },
		"at most once":  func(r *rig) Mode { return r.noting() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			ahead := r.onClock(t)
			m := r.start(t, mode(r), func(o *Options) { o.Routes[0].Window = 24 * time.Hour })
			for _, step := range []struct {
				ahead time.Duration
				want  []string
			}{
				{0, []string{"a", "b"}},
				{23 * time.Hour, []string{"a", "b"}},
				{25 * time.Hour, []string{"a", "b", "a", "b"}},
				{48 * time.Hour, []string{"a", "b", "a", "b"}}, // counted from the second claim
			} {
				ahead.Store(int64(step.ahead))
				next := r.Log(t, r.topic, 0).End
				recs := []*kgo.Record{r.event(0, "a"), r.event(0, "b"), r.event(0, "a")}
				for _, rec := range recs { // in the past, because brokers reject later times
					rec.Timestamp = time.Now().Add(step.ahead - 48*time.Hour)
				}
				r.Produce(t, recs...)
				r.untilStored(t, 0, next+3)
				kafkatest.Until(t, "the handlers of at most once", func() bool { return len(r.handled()) >= len(step.want) })
				if got := r.handledIDs(); !slices.Equal(got, step.want) {
					t.Errorf("%v after the first: handled are %q, want %q", step.ahead, got, step.want)
				}
			}
			m.counts(t, 0, "reopened_total") // no dead letter was replayed
			m.stop(t)
		})
	}
}

// A window that the engine cannot keep is a configuration error: no record becomes a dead letter
// because of it. New rejects it; an engine of Options.ReopenStore is opened later.
func TestWindowBeyondTheRetentionEndsRun(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	c, err := New(r.eng, r.options(r.work(1, nil)))
	if err != nil {
		t.Fatal(err)
	}
	c.shared.opt.Routes[0].Window = 29 * 24 * time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := c.Run(ctx); err == nil || !strings.Contains(err.Error(), "retention") {
		t.Errorf("Run ended with %v", err)
	}
	if n, letters := r.stored(t, 0), r.letterCount(t); n > 0 || letters != 0 || len(r.handled()) != 0 {
		t.Errorf("the store is at %d, %d dead letters, %d calls", n, letters, len(r.handled()))
	}
}

// Copies are read seconds apart, but have times days apart, times that cannot be read, or none.
func TestWindowNeedsNoTime(t *testing.T) {
	now := time.Now()
	header := func(text string) kgo.RecordHeader { return kgo.RecordHeader{Key: "ce_time", Value: []byte(text)} }
	for name, mode := range map[string]func(*rig) Mode{
		"transactional": func(r *rig) Mode { return r.work(1, nil) },
		"at most once":  func(r *rig) Mode { return r.noting() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			m := r.start(t, mode(r), func(o *Options) { o.Routes[0].Window = time.Hour })
			copies := []*kgo.Record{
				r.event(0, "a", header(now.Format(time.RFC3339))),
				r.event(0, "a", header(now.AddDate(0, 0, -9).Format(time.RFC3339))),
				r.event(0, "a", header(now.AddDate(0, 0, -90).Format(time.RFC3339))), // would be too old
				r.event(0, "a", header(now.AddDate(0, 0, +9).Format(time.RFC3339))),  // would be too new
				r.event(0, "a", header("soon")),
				r.event(0, "a"),
				r.event(0, "a"),
			}
			copies[5].Timestamp = now.AddDate(0, 0, -9)
			copies[6].Timestamp = time.UnixMilli(-1) // none
			r.Produce(t, copies...)
			none := r.event(0, "b")
			none.Timestamp = time.UnixMilli(-1)
			r.Produce(t, none)
			r.untilStored(t, 0, int64(len(copies)+1))
			r.untilHandled(t, 2)
			m.stop(t)
			if got := r.handledIDs(); !slices.Equal(got, []string{"a", "b"}) {
				t.Errorf("handled are %q", got)
			}
			if n := r.letterCount(t); n != 0 {
				t.Errorf("%d dead letters", n)
			}
		})
	}
}

// The consumer is down between two copies that were sent together, for longer than the window and
// across a Monday. An event that was sent after the window is new.
func TestOutageLongerThanTheWindow(t *testing.T) {
	for name, mode := range map[string]func(*rig) Mode{
		"transactional": func(r *rig) Mode { return r.work(1, nil) },
		"at most once":  func(r *rig) Mode { return r.noting() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			ahead := r.onClock(t)
			hour := func(o *Options) { o.Routes[0].Window = time.Hour }
			sent := time.Now().AddDate(0, 0, -8)
			send := func(id string, at time.Time) {
				rec := r.event(0, id)
				rec.Timestamp = at
				r.Produce(t, rec)
			}
			m := r.start(t, mode(r), hour)
			send("a", sent)
			r.untilStored(t, 0, 1)
			r.untilHandled(t, 1)
			m.stop(t)
			send("a", sent.Add(5*time.Second))
			send("a", sent.Add(2*time.Hour))
			ahead.Store(int64(8 * 24 * time.Hour))
			m = r.start(t, mode(r), hour)
			r.untilStored(t, 0, 3)
			r.untilHandled(t, 2)
			m.stop(t)
			got := r.handled()
			if len(got) != 2 || got[0].offset != 0 || got[1].offset != 2 {
				t.Errorf("handled are %+v", got)
			}
		})
	}
}

// The hold keeps the weeks of claims whose copies are not read yet: a clean-up after an outage that
// is longer than the retention does not drop them.
func TestHoldKeepsTheClaimsOfAWindow(t *testing.T) {
	const day = 24 * time.Hour
	r := newRig(t, 1)
	ahead := r.onClock(t)
	began := time.Now()
	run := func(at time.Duration, until int64) {
		ahead.Store(int64(at))
		m := r.start(t, r.work(1, nil), func(o *Options) { o.Routes[0].Window = 14 * day })
		r.untilStored(t, 0, until)
		m.stop(t)
	}
	send := func(id string, at time.Duration) {
		rec := r.event(0, id)
		rec.Timestamp = began.Add(at)
		r.Produce(t, rec)
	}
	send("a", -13*day)
	run(-13*day, 1)
	send("b", 0)
	run(0, 2)
	send("a", -day)
	ahead.Store(int64(20 * 7 * day))
	if _, err := r.eng.Retention().DropAllExpired(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(20*7*day, 3)
	r.checkOnce(t, "a", "b")
}

// A dead letter of a route with a window has the time at which its event was claimed, and reopens
// that claim.
func TestReplayOfADeadLetterInAWindow(t *testing.T) {
	r := newRig(t, 1)
	hour := func(o *Options) { o.Routes[0].Window = time.Hour }
	m := r.start(t, r.work(1, failing(errHandler, "a")), hour)
	first := r.event(0, "a")
	first.Timestamp = time.UnixMilli(-1)
	r.Produce(t, first)
	letter := r.letters(t, 1)[0]
	m.stop(t)
	m = r.start(t, r.work(1, nil), hour)
	for range 2 {
		r.Produce(t, &kgo.Record{Topic: r.topic, Key: letter.Key, Value: letter.Value, Headers: letter.Headers})
	}
	r.untilStored(t, 0, 3)
	m.stop(t)
	r.checkOnce(t, "a")
	if got := r.handled(); len(got) != 2 || !got[1].reopened {
		t.Errorf("handled are %+v", got)
	}
}
