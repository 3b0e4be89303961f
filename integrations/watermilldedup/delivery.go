package watermilldedup

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

// A delivery is a message on its way to its handler.
type delivery struct {
	key     string
	keyOf   middleware.MessageHasher
	message *message.Message
	next    message.HandlerFunc

	handled  bool // the handler has succeeded
	failed   bool // it has returned an error
	produced []*message.Message
}

var errPoisoned = errors.New("hapax: watermilldedup: a middleware inside has put the message into the poison queue")

// handle calls the handler and returns its produced messages, encoded. After a failure the message
// is again as it was delivered, for a middleware that retries it or publishes it elsewhere, and for
// Pub/Subs whose copies share their payload.
func (d *delivery) handle(ctx context.Context) ([]byte, error) {
	m, original := d.message, *d.message.CopyWithContext()
	m.SetContext(ctx)
	m.Payload = slices.Clone(m.Payload)
	poisoned := watchPoisonQueue(m)
	succeeded := false
	defer func() {
		m.SetContext(original.Context())
		if !succeeded { // also after a panic
			_ = poisoned()
			d.restore(&original)
		}
	}()
	produced, err := d.next(m)
	if err != nil {
		d.failed = true
		return nil, err
	}
	d.produced, succeeded = produced, true
	if poisoned() {
		return nil, errPoisoned
	}
	d.handled = true
	return encode(produced), nil
}

// restore makes the message what it was. Metadata that were added, such as those of DelayOnError,
// remain, unless they change the key.
func (d *delivery) restore(original *message.Message) {
	m := d.message
	m.UUID, m.Payload = original.UUID, original.Payload
	if key, err := d.keyOf(m); err != nil || key != d.key {
		m.Metadata = original.Metadata
	}
}

// watchPoisonQueue returns a function that reports whether PoisonQueue has published the message
// since. It looks for a key that PoisonQueue sets; that of an earlier poisoning is absent meanwhile.
func watchPoisonQueue(m *message.Message) (poisoned func() bool) {
	const key = middleware.PoisonedSubscriberKey
	before, requeued := m.Metadata[key]
	delete(m.Metadata, key)
	return func() bool {
		if _, ok := m.Metadata[key]; ok {
			return true
		}
		if requeued && m.Metadata != nil {
			m.Metadata[key] = before
		}
		return false
	}
}

// lastingContext returns a context that ends when that of the message does, but not with its
// acknowledgement, when Pub/Subs end it: a message that was acknowledged early, as by InstantAck, is
// not delivered again.
func lastingContext(m *message.Message) (context.Context, context.CancelFunc) {
	before := m.Context()
	ctx, end := detach(before)
	ctx, cancel := context.WithCancelCause(ctx)
	follow := func() {
		select {
		case <-m.Acked():
		default:
			cancel(context.Cause(before))
		}
	}
	if before.Err() != nil {
		follow()
	}
	stop := context.AfterFunc(before, follow)
	return ctx, func() { stop(); cancel(nil); end() }
}

// detach returns a context that ends at the deadline of ctx only.
func detach(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(context.WithoutCancel(ctx), deadline)
	}
	return context.WithoutCancel(ctx), func() {}
}

// pause waits until d has passed or ctx ends. (This module uses only exported packages of Hapax.)
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
