package outbox

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// During an outage, and when its messages are parked, the outbox has room up to its cap.
func TestOutboxHasRoomAgainWhenItsMessagesAreGone(t *testing.T) {
	for name, once := range map[string]*ExactlyOnce{"at least once": nil, "exactly once": exactlyOnce} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{Clock: r.clock.Now, MaxOutboxBytes: 10_000, ExpectedPerWeek: 1000})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = eng.Close() })
			r.eng = eng
			relay := r.relay(Options{Retry: Retry{Attempts: 2}, ExactlyOnce: once})
			s := r.session(relay)
			room := func() (n int) {
				for ; ; n++ {
					if err := eng.Update(ctx, func(tx *engine.Tx) error {
						_, err := tx.Produce(engine.Message{Topic: "out", Value: make([]byte, 1000)})
						return err
					}); errors.Is(err, engine.ErrOutboxFull) {
						return n
					} else if err != nil {
						t.Fatal(err)
					}
				}
			}
			size := func(want bool) {
				t.Helper()
				if f, err := relay.shared.figures(ctx); err != nil || f.maxBytes != 10_000 || f.bytes > 0 != want {
					t.Errorf("%+v, %v", f, err)
				}
			}
			most := room()
			r.broker.setAnswer(func(*kgo.Record, int) error { return errDown })
			for range 3 {
				r.step(s)
				r.clock.advance(DefaultMaxBackoff)
			}
			if n := room(); most == 0 || n != 0 {
				t.Errorf("%d messages have room, %d more after failed attempts", most, n)
			}
			r.broker.setAnswer(func(*kgo.Record, int) error { return errBad })
			for len(parkedIDs(t, relay)) < most {
				r.step(s)
				r.clock.advance(DefaultMaxBackoff)
			}
			if n := room(); n != 0 {
				t.Errorf("%d more after %d were parked", n, most)
			}
			size(true)
			r.broker.setAnswer(nil)
			ids := parkedIDs(t, relay)
			if err := relay.Drop(ctx, ids[0]); err != nil {
				t.Fatal(err)
			}
			if n := room(); n != 1 {
				t.Errorf("%d more after one was dropped", n)
			}
			if _, err := relay.RedriveAll(ctx); err != nil {
				t.Fatal(err)
			}
			for pending(t, eng) > 0 {
				r.step(s)
				r.clock.advance(DefaultInterval)
			}
			size(false)
			if n := room(); n != most {
				t.Errorf("%d messages have room after all were published, %d at first", n, most)
			}
		})
	}
}
