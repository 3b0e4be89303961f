package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/hapax-dev/hapax/kafkaadapter/internal/owner"
)

var errAway = errors.New("the schema registry is unavailable")

// payloadID reads the id from the value unless away is set.
func payloadID(away *atomic.Bool) func(*kgo.Record) ([]byte, time.Time, error) {
	return func(rec *kgo.Record) ([]byte, time.Time, error) {
		if away.Load() && string(rec.Value) != "value-a" {
			return nil, time.Time{}, Transient(errAway)
		}
		return rec.Value[len("value-"):], time.Time{}, nil
	}
}

// checkWaits fails the test unless partition 0 stops for a transient error, want, at offset 1 and
// continues afterwards.
func checkWaits(t *testing.T, r *rig, m *member, away *atomic.Bool, want error) {
	t.Helper()
	if e := m.stoppedOne(t); e.Reason != "transient" || !errors.Is(e, want) {
		t.Errorf("stopped: %v", e)
	}
	if err := m.Ready(); err == nil || !strings.Contains(err.Error(), "offset 1") {
		t.Errorf("Ready does not name the offset: %v", err)
	}
	if n := r.stored(t, 0); n != 1 {
		t.Errorf("the store is at %d", n)
	}
	if a := r.attemptsAt(t, 0); a != (owner.Attempts{}) {
		t.Errorf("attempts %+v", a)
	}
	away.Store(false)
	r.untilStored(t, 0, 3)
	m.stop(t)
	r.checkOnce(t, "a", "b", "c")
	if r.letterCount(t) != 0 {
		t.Error("a transient error made a dead letter")
	}
}

func TestTransientErrorOfIdentificationWaits(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b", "c")
	var away atomic.Bool
	away.Store(true)
	m := r.start(t, r.work(1, nil), func(o *Options) { o.Routes[0].Identify.Payload = payloadID(&away) })
	checkWaits(t, r, m, &away, errAway)
}

func TestTransientErrorOfAHandlerCountsNoAttempt(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b", "c")
	var away atomic.Bool
	away.Store(true)
	m := r.start(t, r.work(1, func(_ context.Context, _ *engine.Tx, rec *Record) error {
		if away.Load() && string(rec.Event.ID) == "b" {
			return Transient(errAway)
		}
		return nil
	}))
	checkWaits(t, r, m, &away, errAway)
}

// A full outbox is full for all records alike: during an outage of Kafka, consumers whose handlers
// produce wait, and lose no record to the dead letters.
func TestFullOutboxWaitsAndCountsNoAttempt(t *testing.T) {
	r := newRig(t, 1)
	r.mem = storetest.NewMem(storage.Identity{})
	r.eng = openEngine(t, r.mem, engine.Options{MaxOutboxBytes: 1500})
	r.send(t, 0, "a")
	var full atomic.Bool // for b: the message of a takes most of the outbox
	full.Store(true)
	m := r.start(t, r.work(1, func(_ context.Context, tx *engine.Tx, rec *Record) error {
		if string(rec.Event.ID) == "a" || full.Load() {
			if _, err := tx.Produce(engine.Message{Topic: "receipts", Value: make([]byte, 1000)}); err != nil {
				return fmt.Errorf("writing a receipt: %w", err)
			}
		}
		return nil
	}))
	r.untilStored(t, 0, 1)
	r.send(t, 0, "b", "c")
	checkWaits(t, r, m, &full, engine.ErrOutboxFull)
}

// The records after it may take long.
func TestStopEndsWithTheRecordThatItWaitedFor(t *testing.T) {
	r := newRig(t, 1)
	var away atomic.Bool
	away.Store(true)
	began, release := make(chan struct{}), make(chan struct{})
	m := r.start(t, r.work(1, func(_ context.Context, _ *engine.Tx, rec *Record) error {
		switch {
		case away.Load():
			return Transient(errAway)
		case string(rec.Event.ID) == "b":
			close(began)
			<-release
		}
		return nil
	}), func(o *Options) { o.batchTime = time.Nanosecond }) // batches of one record
	m.pause(t, r.topic)
	r.send(t, 0, "a", "b", "c")
	if err := m.Resume(r.topic); err != nil {
		t.Fatal(err)
	}
	if e := m.stoppedOne(t); e.Reason != "transient" {
		t.Errorf("stopped: %v", e)
	}
	away.Store(false)
	kafkatest.Receive(t, began)
	if n := r.stored(t, 0); n != 1 {
		t.Errorf("the store is at %d, want 1", n)
	}
	if err := m.Ready(); err != nil || len(m.Stopped()) > 0 {
		t.Errorf("ready: %v, stopped: %v", err, m.Stopped())
	}
	m.counts(t, 0, "partition_stopped")
	close(release)
	m.stop(t)
}

// The application's function is called before the headers are read, which may name a conversation.
func TestPayloadIDsUnderOneHeaderAreDifferentEvents(t *testing.T) {
	r := newRig(t, 1)
	same := kgo.RecordHeader{Key: "message_id", Value: []byte("conversation")}
	r.Produce(t, r.event(0, "a", same), r.event(0, "b", same), r.event(0, "c", same))
	m := r.start(t, r.work(1, nil), func(o *Options) { o.Routes[0].Identify.Payload = payloadID(new(atomic.Bool)) })
	r.untilStored(t, 0, 3)
	m.stop(t)
	if got := r.handledIDs(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("handled %q", got)
	}
}

// With AtMostOnce, identification can be retried. A handler cannot: the claim of its event is
// durable, and the event is lost.
func TestTransientErrorsOfAtMostOnce(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b", "c")
	var away atomic.Bool
	away.Store(true)
	mode := AtMostOnce(func(ctx context.Context, rec *Record) error {
		r.note(ctx, rec)
		if string(rec.Event.ID) == "c" {
			return Transient(errAway)
		}
		return nil
	})
	m := r.start(t, mode, func(o *Options) { o.Routes[0].Identify.Payload = payloadID(&away) })
	if e := m.stoppedOne(t); e.Reason != "transient" || !errors.Is(e, errAway) {
		t.Errorf("stopped: %v", e)
	}
	if n := r.stored(t, 0); n != 1 {
		t.Errorf("the store is at %d", n)
	}
	away.Store(false)
	r.untilStored(t, 0, 3)
	m.counts(t, 1, "lost_total")
	m.stop(t)
	if got := r.handledIDs(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("handled %q", got)
	}
}
