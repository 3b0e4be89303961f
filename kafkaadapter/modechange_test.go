package kafkaadapter

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// Records that AtMostOnce may have claimed but not handled are not skipped if the next start is
// Transactional.
func TestModeChangedWhileClaimsAreNotHandled(t *testing.T) {
	t.Run("the batch is not in the store", func(t *testing.T) {
		r := newRig(t, 1)
		r.leaveMark(t, 0)
		m := r.start(t, r.work(3, nil))
		r.untilHandled(t, 3)
		r.untilCommitted(t, 4, false)
		m.stop(t)
		r.checkOnce(t, "b", "c", "d")
	})
	t.Run("the batch is in the store", func(t *testing.T) {
		r := newRig(t, 1)
		r.leaveMark(t, 1)
		m := r.start(t, r.work(3, nil))
		if e := m.stoppedOne(t); e.Reason != "position" || !errors.Is(e, ErrModeChanged) {
			t.Errorf("the partition stopped for %v", e)
		}
		m.stop(t)
		r.wantHandled(t)
		m = r.start(t, r.own())
		r.untilCommitted(t, 4, false)
		m.stop(t)
		r.wantHandled(t, "b", "c", "d")
		r.send(t, 0, "b", "e")
		m = r.start(t, r.work(3, nil))
		r.untilCommitted(t, 6, false)
		m.stop(t)
		r.wantHandled(t, "b", "c", "d", "e")
	})
	t.Run("the log no longer contains them", func(t *testing.T) {
		r := newRig(t, 1)
		r.leaveMark(t, 1)
		r.send(t, 0, "e")
		r.removeBelow(t, 4)
		m := r.start(t, r.work(3, nil))
		r.untilCommitted(t, 5, false)
		m.stop(t)
		r.wantHandled(t, "e")
	})
	t.Run("they are skipped if the policy says so", func(t *testing.T) {
		r := newRig(t, 1)
		r.leaveMark(t, 1)
		r.send(t, 0, "e")
		m := r.start(t, r.work(3, nil), func(o *Options) { o.Recovery = Recovery{ErrModeChanged: TrustStore} })
		r.untilCommitted(t, 5, false)
		m.stop(t)
		r.wantHandled(t, "e")
	})
}

func TestModeMayChangeBetweenTwoStarts(t *testing.T) {
	for _, crash := range []bool{false, true} {
		t.Run(fmt.Sprintf("crash=%v", crash), func(t *testing.T) {
			r := newRig(t, 1)
			r.send(t, 0, "a", "b", "c")
			m := r.start(t, r.work(1000, failing(errors.New("down"), "b")))
			r.untilHandled(t, 4) // "b" has failed more than once
			if crash {
				r.crash(t) // before the end, which would withdraw the attempt
			}
			m.cancel()
			kafkatest.Receive(t, m.done)
			r.runs = nil
			m = r.start(t, r.own())
			r.untilCommitted(t, 3, false)
			m.stop(t)
			r.wantHandled(t, "b", "c")
			r.send(t, 0, "b", "d")
			m = r.start(t, r.work(1, nil))
			r.untilCommitted(t, 5, false)
			m.stop(t)
			r.wantHandled(t, "b", "c", "d")
		})
	}
	t.Run("a dead letter is pending", func(t *testing.T) {
		r := newRig(t, 1)
		r.send(t, 0, "a")
		noTopic := func(o *Options) {
			o.Routes[0].DeadLetters = &deadletter.Options{Topic: func(topic string) string { return topic + "-none" }}
		}
		m := r.start(t, r.work(1, failing(errors.New("no"), "a")), noTopic)
		if e := m.stoppedOne(t); e.Reason != "dead_letter" {
			t.Errorf("the partition stopped for %v", e)
		}
		m.stop(t)
		m = r.start(t, r.own())
		if e := m.stoppedOne(t); e.Reason != "dead_letter" || !errors.Is(e, ErrDeadLetter) {
			t.Errorf("the partition stopped for %v", e)
		}
		m.stop(t)
		m = r.start(t, r.own(), withDeadLetters)
		r.letters(t, 1)
		m.stop(t)
	})
}
