package outbox

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/entry"
)

func TestCommitWakesTheRelay(t *testing.T) {
	r := newRig(t)
	r.run(r.relay(Options{}))
	for n := range 3 { // the clock does not move: polling finds nothing
		r.produce(ids("m", 3)[n])
		r.broker.await(t, n+1)
	}
	r.drained()
	wantIDs(t, r.broker.ids(), "m0", "m1", "m2")
}

func TestMessagesAreRemovedOnlyWhenAcknowledged(t *testing.T) {
	r := newRig(t)
	r.broker.setHold(true)
	r.produce("a", "b")
	r.run(r.relay(Options{}))
	r.broker.awaitHeld(2)
	if n := pending(t, r.eng); n != 2 {
		t.Errorf("%d messages are pending while two are in flight", n)
	}
	r.broker.release()
	r.drained()
}

func TestMessageDueLaterIsPublishedThen(t *testing.T) {
	r := newRig(t)
	r.produceDue(r.clock.Now().Add(time.Hour), "2")
	r.produceDue(r.clock.Now().Add(time.Minute), "1")
	r.run(r.relay(Options{}))
	r.produce("0")
	r.broker.await(t, 1)
	for len(r.broker.ids()) < 3 {
		r.clock.next()
		until(t, "a timer or a record", func() bool { return len(r.broker.ids()) == 3 || r.clock.waiting() })
		if now, n := r.clock.Now(), len(r.broker.ids()); n == 2 && now.Sub(start) < time.Minute || n == 3 && now.Sub(start) < time.Hour {
			t.Fatalf("%d were published after %v", n, now.Sub(start))
		}
	}
	wantIDs(t, r.broker.ids(), "0", "1", "2")
}

func TestBacklogIsPublishedByDueTime(t *testing.T) {
	r := newRig(t)
	r.produceDue(r.clock.Now().Add(90*time.Second), "at 90")
	r.produce("at 0")
	r.clock.advance(time.Minute)
	r.produce("at 60")
	r.clock.advance(time.Minute)
	r.produce("at 120")
	r.run(r.relay(Options{}))
	r.broker.await(t, 4)
	wantIDs(t, r.broker.ids(), "at 0", "at 60", "at 90", "at 120")
}

func TestFailedMessageHoldsBackThoseOfItsKey(t *testing.T) {
	r := newRig(t)
	fail := true
	r.broker.setAnswer(func(rec *kgo.Record, _ int) error {
		if fail && idOf(rec) == "a1" {
			return errBad
		}
		return nil
	})
	r.produce("a1@a", "a2@a", "b1@b", "x", "y")
	r.run(r.relay(Options{Batch: Batch{Entries: 2}}))
	r.broker.await(t, 3)
	r.produce("a3@a", "b2@b")
	r.broker.await(t, 4)
	until(t, "a3 behind a1 and a2", func() bool { return len(entries(t, r.eng, entry.HeldPrefix)) == 3 })
	for _, id := range r.broker.ids() {
		if id[0] == 'a' {
			t.Fatalf("%s was published before a1", id)
		}
	}
	head := entries(t, r.eng, entry.HeldPrefix)[0]
	if head.ID != "a1" || head.Attempts != 1 || head.LastError != errBad.Error() || head.NotBefore <= r.clock.Now().UnixMilli() {
		t.Errorf("%+v", head)
	}
	r.broker.setAnswer(nil)
	r.backOff("all of them", func() bool { return len(r.broker.ids()) == 7 })
	r.drained()
	if got := r.broker.ids()[4:]; len(got) == 3 {
		wantIDs(t, got, "a1", "a2", "a3")
	}
}

func TestMessageThatCommitsAfterItsDueTimeIsPublished(t *testing.T) {
	r := newRig(t)
	r.run(r.relay(Options{}))
	if err := r.eng.Update(ctx, func(tx *engine.Tx) error {
		if _, err := tx.Produce(engine.Message{ID: "late", Topic: "out", Due: r.clock.Now().Add(time.Second)}); err != nil {
			return err
		}
		r.produceDue(r.clock.Now().Add(2*time.Second), "in time")
		r.backOff("the other one", func() bool { return len(r.broker.ids()) == 1 })
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	committed := r.clock.Now()
	r.backOff("the late one", func() bool { return len(r.broker.ids()) == 2 })
	if waited := r.clock.Now().Sub(committed); waited > DefaultInterval {
		t.Errorf("published %v after the commit", waited)
	}
}
