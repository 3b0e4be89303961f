package kafkaadapter

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
		r.send(t, 0, "a", "b\n", "c")
		end := make(chan struct{})
		var calls atomic.Int64
		m := r.start(t, r.work(1, func(ctx context.Context, tx *engine.Tx, rec *Record) error {
			select {
			case <-end:
				return nil
			default:
			}
			if string(rec.Event.ID) != "b\n" {
				return nil
			}
			calls.Add(1)
			return r.eng.Update(ctx, func(outside *engine.Tx) error { return outside.Put(countKey(string(rec.Event.ID)), []byte{1}) })
		}), soon)
		e := m.stoppedOne(t)
		conflict, ok := errors.AsType[*engine.ConflictError](e)
		if e.Reason != "conflict" || !errors.Is(e, ErrSelfConflict) || !ok || string(conflict.Key) != string(countKey("b\n")) {
			t.Errorf("stopped: %v", e)
		}
		if text := e.Error(); !strings.Contains(text, `b\n`) || strings.Contains(text, "\n") || !strings.Contains(text, "offset 1") {
			t.Errorf("the error names neither key nor offset, or is no single line: %s", text)
		}
		if n := calls.Load(); n > 25 {
			t.Errorf("it stopped after %d calls", n)
		}
		r.untilStored(t, 0, 1) // the record before it
		m.counts(t, 1, "partition_stopped", "conflict")
		if err := m.Ready(); !errors.Is(err, ErrSelfConflict) {
			t.Errorf("Ready: %v", err)
		}
		if n := r.letterCount(t); n != 0 {
			t.Errorf("%d dead letters of a conflict", n)
		}
		close(end)
		r.untilStored(t, 0, 3)
		m.untilReady(t)
		m.stop(t)
	})
	t.Run("a batch is not committed", func(t *testing.T) {
		r := newRig(t, 1)
		if r.mem == nil {
			t.Skip("the store is not in memory")
		}
		r.send(t, 0, "a")
		m := r.start(t, r.work(1, nil), soon)
		r.untilStored(t, 0, 1)
		r.mem.HoldSyncs()
		r.send(t, 0, "b")
		m.checkStands(t, "0", "commit")
		r.mem.ReleaseSyncs()
		r.untilStored(t, 0, 2)
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

// A handler takes longer than the longest turn, and another partition changes its key all the time. It commits
// after a few calls, and the other partition continues.
func TestLongHandlerCommitsAlthoughAnotherPartitionSharesItsKey(t *testing.T) {
	r := newRig(t, 2)
	shared := []byte("shared")
	change := func(tx *engine.Tx) error {
		_, _, err := tx.Get(shared)
		return errors.Join(err, tx.Put(shared, nil))
	}
	var calls atomic.Int64
	committed := make(chan struct{}) // by the other partition, since the call began
	m := r.start(t, r.work(1, func(_ context.Context, tx *engine.Tx, rec *Record) error {
		if string(rec.Event.ID) != "long" {
			select {
			case committed <- struct{}{}: // those before it have committed
			default:
			}
			return change(tx)
		}
		calls.Add(1)
		err := change(tx)
		for range 2 {
			select {
			case <-committed:
			case <-time.After(500 * time.Millisecond): // the others wait; their longest turn is 16 ms
			}
		}
		return err
	}), func(o *Options) { o.batchTime, o.MaxBatch = time.Millisecond, 1 })
	r.send(t, 0, "long")
	sent := 0
	kafkatest.Until(t, "the long handler's commit", func() bool {
		r.send(t, 1, numbered("short"+strconv.Itoa(sent)+"-", 50)...)
		sent += 50
		return r.effects(t, "long") == 1 || calls.Load() > 20
	})
	if n := calls.Load(); n > 8 {
		t.Errorf("it was called %d times", n)
	}
	r.untilStored(t, 1, int64(sent))
	m.stop(t)
}
