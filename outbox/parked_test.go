package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/entry"
)

// park produces messages that are all parked, and returns the relay, which has ended.
func (r *rig) park(messages ...string) *Relay {
	r.t.Helper()
	r.broker.setAnswer(func(*kgo.Record, int) error { return errBad })
	relay := r.relay(Options{Retry: Retry{Attempts: 1}})
	r.produce(messages...)
	stop := r.run(relay)
	until(r.t, "parked messages", func() bool { return len(parkedIDs(r.t, relay)) == len(messages) })
	if err := stop(); err != nil {
		r.t.Fatal(err)
	}
	r.broker.setAnswer(nil)
	return relay
}

// Each call of Redrive conflicts with the transaction that removes a published batch.
func TestPublishedBatchIsRemovedDespiteManyConflicts(t *testing.T) {
	r := newRig(t)
	const conflicts = 3 * leaseRetries
	relay := r.park(ids("parked", conflicts)...)
	if _, err := relay.shared.lease.take(ctx, r.eng); err != nil {
		t.Fatal(err)
	}
	r.produce("published")
	published := &change{deleted: [][]byte{entry.ReadyKey(conflicts + 1)}, gone: entry.Gone{Entries: 1}}
	n := 0
	apply := func(tx *engine.Tx) error {
		if n < conflicts {
			if err := relay.Redrive(ctx, fmt.Sprint("parked", n)); err != nil {
				t.Fatal(err)
			}
			n++
		}
		return published.apply(tx)
	}
	if err := relay.shared.lease.update(ctx, r.eng, apply); err != nil {
		t.Fatalf("after %d conflicts: %v", n, err)
	}
	if left := entries(t, r.eng, entry.ReadyPrefix); len(left) != 0 {
		t.Errorf("%+v", left)
	}
	if f, err := relay.shared.figures(ctx); err != nil || f.pending != conflicts || f.parked != 0 {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestConflictsOfTheRelayEndWithItsContext(t *testing.T) {
	r := newRig(t)
	relay := r.relay(Options{})
	if _, err := relay.shared.lease.take(ctx, r.eng); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(ctx)
	n := 0
	err := relay.shared.lease.update(ended, r.eng, func(tx *engine.Tx) error {
		if n++; n == 2*leaseRetries {
			end()
		}
		if _, _, err := tx.Get([]byte("k")); err != nil {
			return err
		}
		if err := r.eng.Update(ctx, func(tx *engine.Tx) error { return tx.Put([]byte("k"), nil) }); err != nil {
			t.Fatal(err)
		}
		return tx.Put([]byte("k"), nil)
	})
	if !errors.Is(err, engine.ErrConflict) || n < 2*leaseRetries || n > 4*leaseRetries {
		t.Errorf("after %d attempts: %v", n, err)
	}
}

func TestRedriveAllMakesFewTransactionsInTheOrderOfParking(t *testing.T) {
	r := newRig(t)
	const n = 2*unparkMost + 1
	parked := ids("m", n)
	relay := r.park(parked...)
	before := r.mem.Calls(storetest.OpApply)
	if redriven, err := relay.RedriveAll(ctx); redriven != n || err != nil {
		t.Fatal(redriven, err)
	}
	if batches := r.mem.Calls(storetest.OpApply) - before; batches != 3 {
		t.Errorf("%d messages were redriven in %d transactions", n, batches)
	}
	var got []string
	for _, e := range entries(t, r.eng, entry.DelayedPrefix) {
		got = append(got, e.ID)
	}
	if !slices.Equal(got, parked) {
		t.Errorf("the order is %q", got)
	}
	if f, err := relay.shared.figures(ctx); err != nil || f.pending != n || f.due != n || f.parked != 0 {
		t.Errorf("%+v, %v", f, err)
	}
}

// The relay commits while RedriveAll is in its transaction: RedriveAll continues with fewer messages.
func TestRedriveAllOutlastsConflicts(t *testing.T) {
	r := newRig(t)
	const n = 3 * unparkLeast
	relay := r.park(ids("m", n)...)
	conflicts := 2 * leaseRetries
	relay.shared.opt.Clock = &hookedClock{r.clock, func() {
		if conflicts--; conflicts >= 0 {
			if err := r.eng.Update(ctx, func(tx *engine.Tx) error {
				return updateGone(tx, func(*entry.Gone) error { return nil })
			}); err != nil {
				t.Fatal(err)
			}
		}
	}}
	if redriven, err := relay.RedriveAll(ctx); redriven != n || err != nil || conflicts > 0 {
		t.Errorf("%d of %d, %v", redriven, n, err)
	}
	if left := pending(t, r.eng); left != n || len(parkedIDs(t, relay)) != 0 {
		t.Errorf("%d messages are in the outbox, %d are parked", left, len(parkedIDs(t, relay)))
	}
}

// A message of 4 MiB is the largest one; a transaction has at most 32 MiB.
func TestRedriveAllOfLargeMessages(t *testing.T) {
	r := newRig(t)
	r.broker.setAnswer(func(*kgo.Record, int) error { return errBad })
	relay := r.relay(Options{Retry: Retry{Attempts: 1}})
	const n = 12
	for range n {
		if err := r.eng.Update(ctx, func(tx *engine.Tx) error {
			_, err := tx.Produce(engine.Message{Topic: "out", Value: make([]byte, 3<<20)})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	r.run(relay)
	until(t, "parked messages", func() bool { return pending(t, r.eng) == 0 })
	r.broker.setAnswer(nil)
	if redriven, err := relay.RedriveAll(ctx); redriven != n || err != nil {
		t.Fatalf("%d of %d, %v", redriven, n, err)
	}
	r.broker.await(t, n)
}

func TestMessageRedrivenWhileTheClockIsAheadIsPublished(t *testing.T) {
	r := newRig(t)
	relay := r.park("bad")
	const ahead = 100 * time.Hour
	r.clock.advance(ahead)
	if err := relay.Redrive(ctx, "bad"); err != nil {
		t.Fatal(err)
	}
	r.clock.setBack(ahead)
	r.run(r.relay(Options{}))
	began := r.clock.Now()
	late := func() bool { return r.clock.Now().Sub(began) > time.Minute }
	r.backOff("the message", func() bool { return len(r.broker.ids()) == 1 || late() })
	wantIDs(t, r.broker.ids(), "bad")
}

// Messages that became due after the redriven one were published before.
func TestRedrivenMessageIsPublishedAtOnce(t *testing.T) {
	r := newRig(t)
	s := r.session(r.relay(Options{Retry: Retry{Attempts: 1}}))
	r.refuse("bad", errBad)
	r.produce("bad")
	r.step(s)
	r.refuse("none", nil)
	r.produceDue(r.clock.Now().Add(time.Second), "delayed")
	r.clock.advance(2 * time.Second)
	r.step(s)
	if err := (&Relay{shared: s.connection.shared}).Redrive(ctx, "bad"); err != nil {
		t.Fatal(err)
	}
	r.step(s)
	wantIDs(t, r.broker.ids(), "delayed", "bad")
}

// The one that was parked first is due later, since the clock was set back in between.
func TestRedriveAllKeepsTheOrderOfParkingWhateverTheDueTimes(t *testing.T) {
	r := newRig(t)
	r.clock.advance(time.Hour)
	r.park("first@k")
	r.clock.setBack(time.Hour)
	r.broker.setAnswer(func(*kgo.Record, int) error { return errBad })
	relay := r.relay(Options{Retry: Retry{Attempts: 1}})
	r.produce("second@k")
	stop := r.run(relay)
	until(t, "two parked messages", func() bool { return len(parkedIDs(t, relay)) == 2 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	r.broker.setAnswer(nil)
	r.clock.advance(2 * time.Hour)
	if n, err := relay.RedriveAll(ctx); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	r.run(r.relay(Options{}))
	r.broker.await(t, 2)
	wantIDs(t, r.broker.ids(), "first", "second")
}

// parkOutOfOrder parks three messages: the one of another key first, although it is due last.
func (r *rig) parkOutOfOrder() *Relay {
	r.t.Helper()
	s := r.session(r.relay(Options{Retry: Retry{Attempts: 1, Max: time.Second}}))
	r.refuse("k", errDown)
	r.produce("k1@k", "published")
	r.step(s)
	r.refuse("", errBad)
	r.clock.advance(250 * time.Millisecond)
	r.produce("k2@k")
	r.clock.advance(250 * time.Millisecond)
	r.produce("other")
	for range 3 {
		r.step(s)
		r.clock.advance(time.Second)
	}
	r.broker.setAnswer(nil)
	relay := &Relay{shared: s.connection.shared}
	var order []string
	for place := range uint64(3) {
		for _, id := range []string{"k1", "k2", "other"} {
			if _, found, err := driver.In(r.eng, entry.Space).Get(ctx, entry.ParkedKey(id, place+1)); err != nil {
				r.t.Fatal(err)
			} else if found {
				order = append(order, id)
			}
		}
	}
	if !slices.Equal(order, []string{"other", "k1", "k2"}) {
		r.t.Fatalf("parked in the order %q", order)
	}
	return relay
}

// Also if a transaction of it conflicts with one of the relay.
func TestRedriveAllKeepsDueTimes(t *testing.T) {
	r := newRig(t)
	relay := r.parkOutOfOrder()
	reads := 0
	relay.shared.opt.Clock = &hookedClock{r.clock, func() {
		if reads++; reads == 1 {
			if err := r.eng.Update(ctx, func(tx *engine.Tx) error {
				return updateGone(tx, func(*entry.Gone) error { return nil })
			}); err != nil {
				t.Fatal(err)
			}
		}
	}}
	if n, err := relay.RedriveAll(ctx); n != 3 || err != nil || reads != 6 {
		t.Fatal(n, err, reads)
	}
	for _, e := range entries(t, r.eng, entry.DelayedPrefix) {
		if e.Due != e.Created {
			t.Errorf("%s is due %d ms after it was produced", e.ID, e.Due-e.Created)
		}
	}
}

// The process dies, or the context ends, between two transactions of RedriveAll. It is called again
// before anything is published.
func TestInterruptedRedriveAllKeepsTheOrderOfAKey(t *testing.T) {
	r := newRig(t)
	relay := r.parkOutOfOrder()
	first := [][]byte{entry.ParkedKey("other", 1), entry.ParkedKey("k1", 2)}
	if taken, _, err := relay.unparkSome(ctx, first, newRedrive()); taken != 2 || err != nil {
		t.Fatal(taken, err)
	}
	if n, err := relay.RedriveAll(ctx); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	var got []string
	for _, e := range entries(t, r.eng, entry.DelayedPrefix) {
		got = append(got, e.ID)
	}
	if !slices.Equal(got, []string{"k1", "k2", "other"}) {
		t.Errorf("the order is %q", got)
	}
}
