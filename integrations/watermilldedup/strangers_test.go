package watermilldedup_test

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/hapax-dev/hapax/integrations/watermilldedup"
	"github.com/hapax-dev/hapax/internal/hostile"
	"github.com/hapax-dev/hapax/listener"
)

func TestLogShowsKeysAsTheOptionSays(t *testing.T) {
	for name, how := range hostile.IDs {
		t.Run(name, func(t *testing.T) {
			var log hostile.Log
			handle, _ := answering(0)
			h := dedup(t, inMemory(t), func(o *watermilldedup.Options) {
				o.Telemetry.Logger, o.Telemetry.IDs, o.Shared = log.Logger(), how, true
			})(handle)
			for range 2 {
				if _, err := deliver(h, hostile.ID); err != nil {
					t.Fatal(err)
				}
			}
			log.Check(t, how, hostile.ID)
		})
	}
}

// A panicking error panics when it is compared.
type panicking struct{}

func (panicking) Error() string      { return "panicking" }
func (panicking) Is(_ error) bool    { panic("Is was called") }
func (panicking) As(_ any) bool      { panic("As was called") }
func (panicking) Unwrap() (in error) { panic("Unwrap was called") }

// TestErrorOfAHandlerIsPassedOnWhateverItWraps: one of another listener, which the handler has called,
// does not make the message one that is in progress.
func TestErrorOfAHandlerIsPassedOnWhateverItWraps(t *testing.T) {
	for _, wrong := range []error{fmt.Errorf("a nested call: %w", listener.ErrInProgress), panicking{}} {
		h := dedup(t, inMemory(t), nil)(func(*message.Message) ([]*message.Message, error) { return nil, wrong })
		m := message.NewMessage("a", nil)
		_, err := h(m)
		if err == nil || err.Error() != wrong.Error() {
			t.Errorf("the router gets %v, want %v", err, wrong)
		}
		select {
		case <-m.Nacked():
			t.Error("the message was nacked as one that is in progress")
		default:
		}
	}
}
