package listener_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/internal/hostile"
	"github.com/hapax-dev/hapax/listener"
	"github.com/hapax-dev/hapax/redact"
	"github.com/hapax-dev/hapax/telemetry"
)

// TestLogAndErrorsShowIDsOfStrangersAsTheOptionSays: duplicates, messages that are in progress or
// cannot be judged, and those that are handled without a claim.
func TestLogAndErrorsShowIDsOfStrangersAsTheOptionSays(t *testing.T) {
	for name, how := range hostile.IDs {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var log hostile.Log
			fingerprint := "first"
			options := func(o *listener.Options[message]) {
				o.Telemetry.Logger, o.Telemetry.IDs = log.Logger(), how
				o.Fingerprint = func(message) string { return fingerprint }
				o.Group, o.MaxPerGroup = func(message) string { return "all" }, 2
			}
			check := func(err error, id string) {
				t.Helper()
				if err == nil {
					t.Fatal("no error")
				}
				hostile.CheckText(t, err.Error(), how, id)
				if !how.Omits() && !strings.Contains(err.Error(), how.Text(id)) {
					t.Errorf("the error does not name the message: %.300q", err)
				}
			}
			var f func(context.Context, message) error
			busy := func(ctx context.Context, m message) error {
				err := f(ctx, m)
				check(err, hostile.ID)
				if bare := (&listener.InProgressError{ID: hostile.ID}); !errors.Is(err, listener.ErrInProgress) || strings.Contains(bare.Error(), "\n") {
					t.Errorf("in progress: %v, %v", err, bare)
				}
				return nil
			}
			f = r.wrap(busy, options)
			wantNil(t, f(ctx, message{id: hostile.ID}))
			wantNil(t, f(ctx, message{id: hostile.ID})) // a duplicate, logged
			fingerprint = "another"
			check(f(ctx, message{id: hostile.ID}), hostile.ID)
			check(f(ctx, message{id: hostile.Long}), hostile.Long) // too long
			f = r.wrap(func(context.Context, message) error { return nil }, options)
			wantNil(t, f(ctx, message{id: "b"}))
			check(f(ctx, message{id: hostile.ID + "c"}), hostile.ID+"c") // one too many
			log.Check(t, how, hostile.ID)

			r.mem.Fail(errors.New("disk on fire"))
			check(f(ctx, message{id: hostile.ID + "d"}), hostile.ID+"d")
			open := r.wrap(func(context.Context, message) error { return nil }, func(o *listener.Options[message]) {
				o.Telemetry.Logger, o.Telemetry.IDs, o.FailOpen = log.Logger(), how, true
			})
			wantNil(t, open(ctx, message{id: hostile.ID + "e"}))
			log.Check(t, how, hostile.ID+"e")
		})
	}
}

func TestShortSecretForIDsIsRefused(t *testing.T) {
	r := newRig(t)
	_, err := listener.Wrap(r.eng, func(context.Context, message) error { return nil },
		listener.Options[message]{ID: idOf, Telemetry: telemetry.Options{IDs: redact.Hashed([]byte("short"))}})
	if err == nil || !strings.Contains(err.Error(), "listener: Options.Telemetry.IDs") {
		t.Error(err)
	}
}
