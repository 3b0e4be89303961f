package watermilldedup

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/listener"
	"github.com/hapax-dev/hapax/telemetry"
)

// Options configure the middleware. Key must be set.
type Options struct {
	// Key returns the key of a message, the same on every delivery: [UUID], or one of Watermill's
	// functions, such as middleware.NewMessageHasherFromMetadataField. Two messages with the same
	// key are the same message, so a key that is a short checksum, such as that of
	// middleware.NewMessageHasherAdler32, drops messages that are not duplicates. It must be safe
	// for concurrent use. The router gets its error.
	Key middleware.MessageHasher

	// Scope is the space of keys in the engine. "" = DefaultScope.
	Scope string

	// Shared makes the handlers of one scope share their claims: a message is handled once by all
	// of them together, for example by the handlers of nine queues that can get the same message.
	// Otherwise each handler of the router has claims of its own, under its name, so that two
	// handlers of one topic both get its messages. A renamed handler does not find its earlier
	// claims.
	Shared bool

	// Window is how long a claim lasts: at least a millisecond, at most the engine's retention. 0 =
	// listener.DefaultWindow.
	Window time.Duration

	// Lease is how long a message is not handled after the process that handled it has died. 0 =
	// listener.DefaultLease.
	Lease time.Duration

	// NackDelay is how long a message that is being handled is kept before it is nacked, for
	// Pub/Subs that deliver again at once. It ends early with the message's context. 0 =
	// DefaultNackDelay; negative = none. A message that was acknowledged before is not delivered
	// again: it is judged again after each NackDelay, or 10ms if that is more.
	NackDelay time.Duration

	// FailOpen handles messages without a claim while the store fails, as listener.Options.FailOpen
	// does.
	FailOpen bool

	// Telemetry says where the log and the metrics of package listener go, with the scope as the queue.
	// Unless Shared is set, each key is one id with its handler's name, such as "4:book:k1" with the
	// length of the name.
	Telemetry telemetry.Options
}

// The defaults of Options.
const (
	DefaultScope     = "watermill"
	DefaultNackDelay = 100 * time.Millisecond
)

// UUID returns the UUID of a message as its key. Watermill sets it when the message is made, and
// Pub/Subs keep it.
func UUID(m *message.Message) (string, error) {
	if m.UUID == "" {
		return "", errors.New("hapax: watermilldedup: the message has no UUID: have its producer set one, or use another Options.Key")
	}
	return m.UUID, nil
}

// New returns a middleware that calls the handler once for each key, as the package documentation
// describes. It may be used for several handlers. Close the engine after the router.
//
// The context of the message ends, with engine.ErrLeaseLost as its cause, when another delivery has
// been claimed because the lease could not be renewed in time.
func New(eng *engine.Engine, options Options) (message.HandlerMiddleware, error) {
	o := options
	if o.Key == nil {
		return nil, errors.New("hapax: watermilldedup: Options.Key is nil: give UUID, or another function that returns a message's key")
	}
	if o.Scope == "" {
		o.Scope = DefaultScope
	}
	if o.NackDelay == 0 {
		o.NackDelay = DefaultNackDelay
	}
	receive, err := listener.WrapResult(eng, func(ctx context.Context, d *delivery) ([]byte, error) { return d.handle(ctx) }, listener.Options[*delivery]{
		ID:    func(d *delivery) string { return d.key },
		Scope: o.Scope, Window: o.Window, Lease: o.Lease, FailOpen: o.FailOpen, Telemetry: o.Telemetry,
	})
	if err != nil {
		return nil, err
	}
	c := &claimer{o, receive}
	return func(handle message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) { return c.deliver(m, handle) }
	}, nil
}

// A claimer calls handlers under the claims on their messages.
type claimer struct {
	Options Options
	receive func(context.Context, *delivery) ([]byte, error)
}

const minPause = 10 * time.Millisecond

// deliver judges a message, again and again if it is being handled and was acknowledged before.
func (c *claimer) deliver(m *message.Message, handle message.HandlerFunc) ([]*message.Message, error) {
	key, err := c.Options.key(m)
	if err != nil {
		return nil, err
	}
	ctx, cancel := lastingContext(m)
	defer cancel()
	for delay := c.Options.NackDelay; ; delay = max(c.Options.NackDelay, minPause) {
		d := &delivery{key: key, keyOf: c.Options.key, message: m, next: handle}
		result, err := c.receive(ctx, d)
		switch {
		case d.failed: // first: the error of a handler can be of any kind
			return nil, err
		case errors.Is(err, listener.ErrInProgress):
			pause(ctx, delay)
			if !m.Nack() { // nothing delivers it again
				continue
			}
			return nil, nil // the router's Ack has no effect, and outer middlewares see no failure
		case errors.Is(err, errPoisoned):
			return d.produced, nil
		case err != nil:
			return nil, &storeError{err}
		case d.handled:
			return d.produced, nil
		}
		return decode(result)
	}
}

// key returns the id of a message in the scope: the length of the handler's name, the name, and the
// key.
func (o *Options) key(m *message.Message) (string, error) {
	key, err := o.Key(m)
	if err != nil || key == "" || o.Shared {
		return strings.Clone(key), err
	}
	name := message.HandlerNameFromCtx(m.Context())
	return strconv.Itoa(len(name)) + ":" + name + ":" + key, nil
}

// A storeError is an error that is not the handler's.
type storeError struct{ error }

func (e *storeError) Unwrap() error { return e.error }

// HandlerFailed reports whether an error that the middleware returned is that of the handler, and
// not of the store: give it to middleware.PoisonQueueWithFilter, so that a failure of the store puts
// no message into the poison queue.
func HandlerFailed(err error) bool {
	_, ok := errors.AsType[*storeError](err)
	return !ok
}
