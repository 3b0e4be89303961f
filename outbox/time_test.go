package outbox

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/correlation"
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

const sixWeeks = 6 * 7 * 24 * time.Hour

// timeOf returns the event time in the headers of a record.
func timeOf(t testing.TB, r *kgo.Record) time.Time {
	t.Helper()
	for _, h := range r.Headers {
		if h.Key == correlation.MessageTime {
			at, err := time.Parse(time.RFC3339Nano, string(h.Value))
			if err != nil {
				t.Fatal(err)
			}
			return at
		}
	}
	t.Fatalf("%s has no event time", idOf(r))
	return time.Time{}
}

// one produces a message and returns its record after one step of the relay.
func (r *rig) one(s *session, m engine.Message) *kgo.Record {
	r.t.Helper()
	m.Topic = "out"
	send(r.t, r.eng, m)
	if wait := m.Due.Sub(r.clock.Now()); wait > 0 {
		r.clock.advance(wait)
	}
	r.step(s)
	return r.last()
}

// last returns the record that the broker has accepted last.
func (r *rig) last() *kgo.Record {
	r.t.Helper()
	r.broker.mu.Lock()
	defer r.broker.mu.Unlock()
	if len(r.broker.log) == 0 {
		r.t.Fatal("nothing was published")
	}
	return r.broker.log[len(r.broker.log)-1]
}

// byClient is the timestamp of a record that the client sets when it sends it.
var byClient time.Time

func (r *rig) wantTimes(rec *kgo.Record, event, stamp time.Time) {
	r.t.Helper()
	if at := timeOf(r.t, rec); !at.Equal(event) || !rec.Timestamp.Equal(stamp) {
		r.t.Errorf("%s has the event time %v and the timestamp %v, want %v and %v", idOf(rec), at, rec.Timestamp, event, stamp)
	}
}

func TestTimesOfARecord(t *testing.T) {
	for name, once := range map[string]*ExactlyOnce{"at least once": nil, "exactly once": exactlyOnce} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := r.session(r.relay(Options{ExactlyOnce: once}))
			r.wantTimes(r.one(s, engine.Message{ID: "at once"}), start, byClient)
			due := r.clock.Now().Add(sixWeeks)
			r.wantTimes(r.one(s, engine.Message{ID: "delayed", Due: due}), due, byClient)
			at := start.Add(-sixWeeks)
			r.wantTimes(r.one(s, engine.Message{ID: "forwarded", Time: at}), at, at)
			r.wantTimes(r.one(s, engine.Message{ID: "delayed and forwarded", Time: at, Due: r.clock.Now().Add(time.Hour)}), at, at)
		})
	}
}

// The timestamp is that of the attempt, the event time is not.
func TestEventTimeIsUnchangedByRetryAndRedrive(t *testing.T) {
	r := newRig(t)
	relay := r.relay(Options{Retry: Retry{Attempts: 3}})
	s := r.session(relay)
	r.refuse("m", errBad)
	due := start.Add(time.Hour)
	r.produceDue(due, "m")
	r.clock.advance(time.Hour)
	var seen []time.Time
	r.broker.setAnswer(func(rec *kgo.Record, _ int) error {
		r.wantTimes(rec, due, byClient)
		seen = append(seen, timeOf(t, rec))
		return errBad
	})
	for len(parkedIDs(t, relay)) == 0 {
		r.step(s)
		r.clock.advance(DefaultMaxBackoff)
	}
	if len(seen) != 3 {
		t.Fatalf("%d attempts", len(seen))
	}
	r.clock.setBack(90 * time.Minute) // before the due time: Redrive makes the message due at once
	if err := relay.Redrive(ctx, "m"); err != nil {
		t.Fatal(err)
	}
	r.broker.setAnswer(nil)
	r.step(s)
	r.wantTimes(r.last(), due, byClient)
}

// Messages that have waited for longer than the retention of their topic are not removed when they
// are published. One with the timestamp of an old record is: so the topic has removed what it would.
// (The broker dates the marker of a transaction itself, so that it keeps the records before it.)
func TestMessageThatHasWaitedOutlivesTheRetention(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	hour := map[string]string{"retention.ms": "3600000"}
	waited, expired := b.CreateTopic(t, 1, hour), b.CreateTopic(t, 1, hour)
	clock := newFakeClock()
	clock.now = time.Now().Add(-sixWeeks)
	eng := openEngine(t, newMemDisk().open(t), clock)
	send(t, eng, engine.Message{ID: "at once", Topic: waited}, engine.Message{ID: "delayed", Topic: waited, Due: clock.now.Add(time.Hour)})
	_, stop := startRelay(t, eng, modes(t, b)["at least once"]) // by the clock of the machine, six weeks later
	defer stop()
	b.ConsumeTopic(t, waited, 2)
	for range 2 { // when the second one is gone, the check that has removed the first one is over
		send(t, eng, engine.Message{Topic: expired, Time: clock.now})
		until(t, "an empty outbox", func() bool { return pending(t, eng) == 0 })
		b.UntilExpired(t, expired)
	}
	for _, r := range b.ConsumeTopic(t, waited, 2) {
		want := clock.now.Truncate(time.Millisecond)
		if idOf(r) == "delayed" {
			want = want.Add(time.Hour)
		}
		if at := timeOf(t, r); !at.Equal(want) {
			t.Errorf("%s has the event time %v, want %v", idOf(r), at, want)
		}
	}
}
