package listener

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/telemetry"
)

// The defaults of Options.
const (
	DefaultScope  = "listeners"
	DefaultWindow = time.Hour
	DefaultLease  = 30 * time.Second
)

// Options configure a listener. ID must be set.
type Options[M any] struct {
	// ID returns the correlation id of a message: set by its producer, the same on every delivery,
	// not empty, and at most as long as engine.Options.MaxIDBytes. It may be called from several
	// goroutines.
	ID func(M) string

	// Fingerprint returns what distinguishes messages that have one id by mistake, such as a hash
	// of the payload, up to limits.FingerprintBytes. A message with the id of a claim and
	// another fingerprint is ErrMismatch. It may be called from several goroutines. nil: messages
	// with one id are the same message.
	Fingerprint func(M) string

	// Scope is the space of ids. Listeners of one engine with the same scope share their claims:
	// together they handle an id once. "" = DefaultScope.
	Scope string

	// Queue names the queue in the claim's record (engine.Origin.Topic), in the log and in metrics.
	// "" = Scope.
	Queue string

	// Window is how long a claim lasts: at least a millisecond, at most the engine's retention. 0 =
	// DefaultWindow.
	Window time.Duration

	// Sent returns when a message was sent, such as the queue's timestamp; zero if that is unknown.
	// A copy that was sent within Window of the message that made the claim is then a duplicate
	// even if it arrives later, for example after an outage that is longer than the window. It may
	// be called from several goroutines. nil: only the arrival counts.
	Sent func(M) time.Time

	// Lease is how long a claim remains pending after the process that handles its message has
	// died: at least 10ms, at most limits.Lease. While the handler runs, the lease is renewed after
	// each third of this time. 0 = DefaultLease. It has no effect with AtMostOnce.
	Lease time.Duration

	// Group returns the group of a message, such as the tenant that sent it, for MaxPerGroup. It may be
	// called from several goroutines.
	Group func(M) string

	// MaxPerGroup is how many messages of a group are handled within Window, counted by whole weeks of
	// the engine's clock. A further message is not handled: the error is ErrTooMany. Duplicates are
	// returned as before. The count is durable. 0 = no limit. It cannot be set with AtMostOnce.
	MaxPerGroup int

	// Clock is the engine's clock, for MaxPerGroup. nil = time.Now.
	Clock func() time.Time

	// AtMostOnce makes a claim final before the handler runs. The claim remains if the handler
	// fails or the process dies, and the next delivery is a duplicate: the message may be lost, and
	// is never handled twice within its window.
	AtMostOnce bool

	// FailOpen handles messages when the store fails or stalls, so that they may be handled twice.
	// The handler runs without a claim when the store returns an error, or has not answered after
	// five seconds or half of the time until the deadline of the context, whichever is less. A
	// message that was handled is acknowledged even if its claim cannot be finished. Without
	// FailOpen, the store's error is returned, and the queue delivers the message again. While the
	// store stalls, a claim then waits for as long as Lease, at least 30 seconds (ErrStalled), and finishing
	// or releasing a claim waits for as long as Lease. An engine whose store has failed does not recover by itself
	// (engine.ErrStopped): open the store again, and wrap the handler with the new engine.
	FailOpen bool

	// Telemetry says where the log and the metrics of the package documentation go, and how correlation
	// ids are shown. Duplicates are logged at level debug, and each message that is handled because of
	// FailOpen as a warning, as are, at most once a minute, deliveries that have waited for the store or
	// their handler for 30 seconds. Listeners may share one registry.
	Telemetry telemetry.Options
}

// failOpenAfter is how long FailOpen waits for a store that stalls.
const failOpenAfter = 5 * time.Second

const minLease = 10 * time.Millisecond

func (o Options[M]) withDefaults() (Options[M], error) {
	if o.Scope == "" {
		o.Scope = DefaultScope
	}
	if o.Queue == "" {
		o.Queue = o.Scope
	}
	if o.Window == 0 {
		o.Window = DefaultWindow
	}
	if o.Lease == 0 {
		o.Lease = DefaultLease
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	var err error
	if o.Telemetry, err = o.Telemetry.Complete(); err != nil {
		return o, fmt.Errorf("hapax: listener: Options.Telemetry.%w", err)
	}
	switch {
	case o.ID == nil:
		return o, errors.New("hapax: listener: Options.ID is nil: give the function that returns a message's correlation id")
	case strings.TrimSpace(o.Scope) == "" || len(o.Scope) > limits.ScopeBytes:
		return o, fmt.Errorf("hapax: listener: Options.Scope is %q: give a name of at most %d bytes that is not blank", o.Scope, limits.ScopeBytes)
	case o.MaxPerGroup < 0 || (o.Group == nil) != (o.MaxPerGroup == 0):
		return o, fmt.Errorf("hapax: listener: Options.MaxPerGroup is %d: give a positive number together with Options.Group", o.MaxPerGroup)
	case o.MaxPerGroup > 0 && o.AtMostOnce:
		return o, errors.New("hapax: listener: Options.MaxPerGroup and Options.AtMostOnce are set: a claim that is final before the handler runs is not counted, set one of them")
	case len(o.Queue) > limits.TopicBytes:
		return o, fmt.Errorf("hapax: listener: Options.Queue has more than %d bytes", limits.TopicBytes)
	case o.Window < time.Millisecond || o.Window > limits.ArrivalWindow:
		return o, fmt.Errorf("hapax: listener: Options.Window is %v: give 1ms to %v", o.Window, limits.ArrivalWindow)
	case o.Lease < minLease || o.Lease > limits.Lease:
		return o, fmt.Errorf("hapax: listener: Options.Lease is %v: give %v to %v", o.Lease, minLease, limits.Lease)
	}
	return o, nil
}

// checkWindow rejects a window beyond the engine's retention before the first message.
func (o *Options[M]) checkWindow(eng *engine.Engine) error {
	err := eng.CheckEvent(engine.Event{Scope: o.Scope, ID: []byte("w"), Window: o.Window, Origin: engine.Origin{Topic: o.Queue}})
	if bad, ok := errors.AsType[*engine.EventError](err); ok && bad.Field == "window" {
		return fmt.Errorf("hapax: listener: Options.Window of %v: %w", o.Window, err)
	}
	return nil
}
