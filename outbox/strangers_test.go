package outbox

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/hostile"
	"github.com/hapax-dev/hapax/redact"
	"github.com/hapax-dev/hapax/telemetry"
)

func TestLogAndErrorsShowIDsAsTheOptionSays(t *testing.T) {
	for name, how := range hostile.IDs {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.broker.setAnswer(func(*kgo.Record, int) error { return fmt.Errorf("%s: %w", hostile.Text, kerr.InvalidRecord) })
			var log hostile.Log
			relay := r.relay(Options{Retry: Retry{Attempts: 2}, Telemetry: telemetry.Options{Logger: log.Logger(), IDs: how}})
			r.produce(hostile.ID)
			r.run(relay)
			r.backOff("a parked message", func() bool { return len(parkedIDs(t, relay)) == 1 })
			until(t, "its line in the log", func() bool { return strings.Contains(strings.Join(log.Lines(), "\n"), "a message is parked") })
			log.Check(t, how, hostile.ID)
			for m, err := range relay.Parked(ctx) {
				if err != nil || m.ID != hostile.ID {
					t.Errorf("%q %v", m.ID, err)
				}
				hostile.CheckText(t, m.LastError, redact.Plain())
			}
			err := relay.Redrive(ctx, hostile.ID+"b")
			if !errors.Is(err, ErrNotParked) {
				t.Error(err)
			}
			hostile.CheckText(t, err.Error(), how, hostile.ID)
		})
	}
	if _, err := New(newRig(t).eng, Options{Disabled: true, Telemetry: telemetry.Options{IDs: redact.Hashed(nil)}}); err == nil {
		t.Error("a short secret is accepted")
	}
}

// A nilError is used as a nil pointer, whose methods panic: as the error of a dialer of the application
// could.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

func TestErrorOfTheClientThatPanicsIsAFailedAttempt(t *testing.T) {
	r := newRig(t)
	r.broker.setAnswer(func(*kgo.Record, int) error { return (*nilError)(nil) })
	relay := r.relay(Options{})
	r.produce("a")
	r.run(relay)
	until(t, "a try", func() bool { return r.broker.tried() > 0 })
	r.broker.setAnswer(nil)
	r.backOff("the message", func() bool { return len(r.broker.ids()) == 1 })
}
