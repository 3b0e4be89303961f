package outbox

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// All messages of a Kafka transaction are sent at once, so that one can be parked while an earlier
// one of its ordering key remains.
func TestMessageIsParkedBehindOneThatRemains(t *testing.T) {
	r := newRig(t)
	bad := map[string]error{"m1": errDown}
	r.broker.setAnswer(func(rec *kgo.Record, _ int) error { return bad[idOf(rec)] })
	relay := r.relay(Options{Retry: Retry{Attempts: 1, Max: time.Minute}, ExactlyOnce: &ExactlyOnce{ProgressTopic: "progress"}})
	s := r.session(relay)
	step := func() {
		t.Helper()
		r.step(s)
		r.clock.advance(2 * time.Second)
	}
	r.produce("m1@k", "m2@k", "m3@k")
	step() // all are held
	bad = map[string]error{"m2": kerr.InvalidRecord}
	step() // m2 is parked
	r.produce("m4@k")
	step()
	step()
	wantIDs(t, r.broker.ids(), "m1", "m3", "m4")

	bad = map[string]error{"m5": errDown}
	r.produce("m5@k", "m6@k")
	step()
	bad = map[string]error{"m6": kerr.InvalidRecord} // the last one of its group
	step()
	r.produce("m7@k")
	step()
	step()
	wantIDs(t, r.broker.ids(), "m1", "m3", "m4", "m5", "m7")
	if n := len(s.queue.groups); n != 0 {
		t.Errorf("%d groups without entries", n)
	}
	wantIDs(t, parkedIDs(t, relay), "m2", "m6")
}
