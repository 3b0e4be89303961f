package kafkaadapter

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
				r.send(t, 0, "a", "b", "a")
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
// because of it. New rejects it; an engine of Options.FailOpen is opened later.
func TestWindowBeyondTheRetentionEndsRun(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	c, err := New(r.eng, r.options(r.work(1, nil)))
	if err != nil {
		t.Fatal(err)
	}
	c.opt.Routes[0].Window = 29 * 24 * time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := c.Run(ctx); err == nil || !strings.Contains(err.Error(), "retention") {
		t.Errorf("Run ended with %v", err)
	}
	if n, letters := r.stored(t, 0), r.letterCount(t); n > 0 || letters != 0 || len(r.handled()) != 0 {
		t.Errorf("the store is at %d, %d dead letters, %d calls", n, letters, len(r.handled()))
	}
}
