package kafkaadapter

import (
	"context"
	"errors"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// checkStands waits until a partition is reported for a reason, in Ready, the gauge and the log.
func (m *member) checkStands(t *testing.T, partition, reason string) {
	t.Helper()
	kafkatest.Until(t, "partition "+partition+" to stand because of "+reason, func() bool {
		return m.metric(t, "partition_stopped", reason, partition) == 1
	})
	if err := m.Ready(); !errors.Is(err, ErrNotReady) || !errors.Is(err, ErrNoProgress) {
		t.Errorf("Ready: %v", err)
	}
	m.counts(t, 0, "ready")
	kafkatest.Until(t, "the log", func() bool { return m.logs.has("partition makes no progress") && m.logs.has("reason="+reason) })
}

func (m *member) untilReady(t *testing.T) {
	t.Helper()
	kafkatest.Until(t, "ready", func() bool { return m.Ready() == nil })
	m.counts(t, 0, "partition_stopped")
}

// What stands still is reported as long as it lasts.
func TestWhatStandsStillIsReported(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	t.Run("a handler hangs, and its copy waits", func(t *testing.T) {
		r := newRig(t, 2)
		mode, began, release, _ := r.stuck("a")
		m := r.start(t, mode, soon)
		r.send(t, 0, "a")
		kafkatest.Receive(t, began)
		r.send(t, 1, "a")
		m.checkStands(t, "0", "handler")
		m.checkStands(t, "1", "in_flight")
		close(release)
		r.untilStored(t, 0, 1)
		r.untilStored(t, 1, 1)
		m.untilReady(t)
		m.stop(t)
	})
	t.Run("a handler conflicts with itself", func(t *testing.T) {
		r := newRig(t, 1)
		r.send(t, 0, "a")
		end := make(chan struct{})
		m := r.start(t, r.work(1, func(ctx context.Context, tx *engine.Tx, rec *Record) error {
			select {
			case <-end:
				return nil
			default:
			}
			return r.eng.Update(ctx, func(outside *engine.Tx) error { return outside.Put(countKey(string(rec.Event.ID)), []byte{1}) })
		}), soon)
		m.checkStands(t, "0", "conflict")
		if n := r.letterCount(t); n != 0 {
			t.Errorf("%d dead letters of a conflict", n)
		}
		close(end)
		r.untilStored(t, 0, 1)
		m.untilReady(t)
		m.stop(t)
	})
	t.Run("a record fails", func(t *testing.T) {
		r := newRig(t, 1)
		r.send(t, 0, "a")
		end := make(chan struct{})
		m := r.start(t, r.work(1e6, func(context.Context, *engine.Tx, *Record) error {
			select {
			case <-end:
				return nil
			default:
				return errHandler
			}
		}), soon)
		m.checkStands(t, "0", "failing")
		close(end)
		r.untilStored(t, 0, 1)
		m.untilReady(t)
		m.stop(t)
	})
}
