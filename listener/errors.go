package listener

import (
	"errors"
	"fmt"
	"time"

	"github.com/hapax-dev/hapax/redact"
)

// ErrInProgress means that another listener is handling the message. Return it to the queue, so
// that the message is delivered again later. It is wrapped by an InProgressError.
var ErrInProgress = errors.New("hapax: listener: another listener is handling the message: have it delivered again later")

// ErrMismatch means that the message has the id of another one, with a different
// Options.Fingerprint. The producer has used the id twice, so no later delivery can be handled.
var ErrMismatch = errors.New("hapax: listener: the id was used for another message: give each message a different id")

// ErrTooMany means that the message's group already has Options.MaxPerGroup messages within the
// window. The message is not handled and not claimed.
var ErrTooMany = errors.New("hapax: listener: the group of the message has too many messages in the window (Options.MaxPerGroup)")

// An InProgressError says which message is being handled, and when its lease ends.
type InProgressError struct {
	ID string
	// LeaseEnd is the time, by the clock of the engine, at which the message can be taken over
	// unless its lease is renewed. It is zero if an open transaction holds the message.
	LeaseEnd time.Time

	shown string // for ID, by Options.IDs
}

// Error implements error.
func (e *InProgressError) Error() string {
	shown := e.shown
	if shown == "" { // the application has made it
		shown = redact.Plain().Text(e.ID)
	}
	if e.LeaseEnd.IsZero() {
		return fmt.Sprintf("%v: %s", ErrInProgress, shown)
	}
	return fmt.Sprintf("%v: %s, leased until %s", ErrInProgress, shown, e.LeaseEnd.Format(time.RFC3339Nano))
}

// Unwrap returns ErrInProgress.
func (e *InProgressError) Unwrap() error { return ErrInProgress }
