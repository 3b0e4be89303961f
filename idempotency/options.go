package idempotency

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
)

// Options configure the middleware. The zero value of every field has a safe default.
type Options struct {
	// Scope is the engine's scope of the keys. "" = DefaultScope. Middlewares with one engine and
	// one scope share keys.
	Scope string

	// Tenant returns the tenant of a request, up to MaxTenantBytes; keys of different tenants never
	// match. It must return an authenticated identity, never a header chosen by the client. After
	// an error, the answer has status 500, or that of a StatusError. It must be safe for concurrent
	// use, and not read the body, which is compared with that of the first request. nil = all requests have one tenant.
	Tenant func(*http.Request) (string, error)

	// Methods are the HTTP methods that need a key, in upper case; other requests reach the handler
	// unchanged. nil = POST and PATCH.
	Methods []string

	// Optional passes requests without a key to the handler unchanged.
	Optional bool

	// Retention is how long a key and its response are kept, from the first request. 0 =
	// DefaultRetention. The engine's RetentionWeeks must cover it: five weeks for the default.
	Retention time.Duration

	// Lease is how long a key remains in progress after the process has died. 0 = DefaultLease; at
	// least a second, at most limits.Lease. Retry-After is the remaining time.
	Lease time.Duration

	// MaxRequestBytes is the maximum size of a request's body, which is read before the handler
	// runs. 0 = DefaultMaxRequestBytes.
	MaxRequestBytes int64

	// MaxResponseBytes is the maximum size of the body of a stored response. 0 =
	// DefaultMaxResponseBytes; at most limits.DataBytes, which also bounds the body and the headers
	// together.
	MaxResponseBytes int

	// KeepFailures stores a failed run as the result of its key; by default the key is released.
	KeepFailures bool

	// FailOpen runs the handler without a key while the store fails. A request can then be run more
	// than once. By default the answer is 503.
	FailOpen bool

	// Secret keys the fingerprints in the store (HMAC-SHA256). If it changes, retries of earlier
	// requests are mismatches. nil = they are keyed by tenant and key, which the store contains, so
	// that anyone who can read the store can verify a guess of a request's contents.
	Secret []byte

	// OnError is called with errors of the engine and of Tenant. It must be safe for concurrent
	// use. nil = not called.
	OnError func(*http.Request, error)

	// Clock is the engine's clock, for Retry-After. nil = time.Now.
	Clock func() time.Time
}

// The defaults of Options, and limits.
const (
	DefaultScope            = "idempotency-key"
	DefaultRetention        = 30 * 24 * time.Hour
	DefaultLease            = 10 * time.Second
	DefaultMaxRequestBytes  = 1 << 20
	DefaultMaxResponseBytes = 64 << 10
	MaxKeyBytes             = 255
	MaxTenantBytes          = 255
)

// A StatusError is returned by Options.Tenant to reject a request with a status of 400 or above.
// Err is not sent to the client.
type StatusError struct {
	Status int
	Err    error
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("idempotency: status %d: %v", e.Status, e.Err)
}

// Unwrap returns the cause.
func (e *StatusError) Unwrap() error { return e.Err }

func (o Options) withDefaults() (Options, error) {
	if o.Scope == "" {
		o.Scope = DefaultScope
	}
	if o.Methods == nil {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if o.Retention == 0 {
		o.Retention = DefaultRetention
	}
	if o.Lease == 0 {
		o.Lease = DefaultLease
	}
	if o.MaxRequestBytes == 0 {
		o.MaxRequestBytes = DefaultMaxRequestBytes
	}
	if o.MaxResponseBytes == 0 {
		o.MaxResponseBytes = DefaultMaxResponseBytes
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	o.Methods, o.Secret = slices.Clone(o.Methods), slices.Clone(o.Secret)
	switch {
	case len(o.Methods) == 0:
		return o, errors.New("idempotency: Options.Methods is empty: name the methods that need a key, or nil for POST and PATCH")
	case slices.ContainsFunc(o.Methods, func(m string) bool { return m == "" || m != strings.ToUpper(m) }):
		return o, fmt.Errorf("idempotency: Options.Methods is %q: give names in upper case, as requests have them", o.Methods)
	case o.Lease < time.Second || o.Lease > limits.Lease:
		return o, fmt.Errorf("idempotency: Options.Lease is %v: give 1s to %v", o.Lease, limits.Lease)
	case o.MaxRequestBytes < 0:
		return o, errors.New("idempotency: Options.MaxRequestBytes is negative")
	case o.MaxResponseBytes < 0 || o.MaxResponseBytes > limits.DataBytes:
		return o, fmt.Errorf("idempotency: Options.MaxResponseBytes is %d: give 1 to %d", o.MaxResponseBytes, limits.DataBytes)
	}
	return o, nil
}

// checkRetention rejects an invalid window before the first request.
func (o *Options) checkRetention(eng *engine.Engine) error {
	err := eng.CheckEvent(engine.Event{Scope: o.Scope, ID: []byte("r"), Window: o.Retention, Origin: engine.Origin{Topic: originTopic}})
	if err != nil {
		return fmt.Errorf("idempotency: Options.Retention of %v: %w", o.Retention, err)
	}
	return nil
}
