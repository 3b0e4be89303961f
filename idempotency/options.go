package idempotency

import (
	"cmp"
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

	// Header is the name of the header with the key. "" = KeyHeader.
	Header string

	// Tenant returns the tenant of a request, up to MaxTenantBytes; keys of different tenants never
	// match. It must return an authenticated identity, never a header chosen by the client. After
	// an error, the answer has status 500, or that of a StatusError. It must be safe for concurrent
	// use, and must not read the body, which is compared with that of the first request. It must be
	// set unless SharedKeys is set.
	Tenant func(*http.Request) (string, error)

	// SharedKeys gives all callers one set of keys, without a Tenant. A caller that sends the key
	// and the request of another caller gets the response of that caller, before the handler can
	// check anything. Set it only if every caller may read every response.
	SharedKeys bool

	// Methods are the HTTP methods that need a key, in upper case; other requests reach the handler
	// unchanged. nil = POST and PATCH.
	Methods []string

	// Optional passes requests without a key to the handler unchanged.
	Optional bool

	// Retention is how long a key and its response are kept, from the first request. 0 =
	// DefaultRetention, which the engine's default RetentionWeeks covers. A longer one needs more
	// weeks.
	Retention time.Duration

	// Lease is how long a key remains in progress after the process has died. 0 = DefaultLease; at
	// least a second, at most limits.Lease. Retry-After is the remaining time.
	Lease time.Duration

	// Wait is how long a retry waits for the response of a first request that is in progress,
	// before the answer is 409 with Retry-After. 0 = it does not wait. Each retry that waits keeps
	// its connection. It looks up the key at most a hundred times a second at first, and later four
	// times a second.
	Wait time.Duration

	// MaxRequestBytes is the maximum size of a request's body, which is read before the handler
	// runs. 0 = DefaultMaxRequestBytes.
	MaxRequestBytes int64

	// MaxResponseBytes is the maximum size of the body of a stored response. 0 =
	// DefaultMaxResponseBytes; at most limits.DataBytes, which also bounds the body and the headers
	// together.
	MaxResponseBytes int

	// Keep reports whether a response with that status is the result of its key, which retries get.
	// Otherwise the key is released, and a retry runs the handler again. It is not called for 2xx,
	// which is always kept, nor for 499 and for a status that the handler wrote after the context
	// of the request had ended, which are never kept. A panic, and a response that is missing or
	// short, count as 500. nil = all statuses are kept except 307, 308, 401, 402, 403, 408, 409,
	// 425, 429 and those of 500 and above. It must be safe for concurrent use.
	Keep func(status int) bool

	// Fingerprint returns the part of a body that distinguishes it from others. A request with the
	// key of an earlier one and another fingerprint gets 422. Method, host, path and query are
	// compared in any case. It must not read the request's Body. nil = the whole body; of a
	// multipart body its parts, whatever the boundary is. It must be safe for concurrent use.
	Fingerprint func(r *http.Request, body []byte) []byte

	// KeepCredentials names headers of responses, such as "Set-Cookie", that are stored and replayed
	// although they carry credentials. By default, Set-Cookie, Authorization, Authentication-Info,
	// and tokens in common headers (X-Auth-Token, X-Api-Key, X-Csrf-Token and the like) are sent with
	// the first response only.
	KeepCredentials []string

	// MaxKeysPerTenant is how many keys of a tenant are kept in Retention, counted by whole weeks. A
	// request with a further key gets 429, and its handler does not run; retries of earlier requests
	// are answered. Each kept key takes up to MaxResponseBytes on the disk. 0 = no limit. The count is
	// durable and does not fall if keys are dropped or forgotten earlier.
	MaxKeysPerTenant int

	// FailOpen runs the handler without a key when the store returns an error, or has not answered
	// after five seconds or half of the time until the deadline of the request's context, whichever
	// is less. A request can then run more than once. Without FailOpen the answer is 503. While the
	// store stalls, a request then waits for its claim until its context ends, and waits for the
	// end of its run as long as Lease.
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

const originTopic = "http"

// failOpenAfter is how long FailOpen waits for a store that stalls.
const failOpenAfter = 5 * time.Second

// The defaults of Options, and limits.
const (
	DefaultScope            = "idempotency-key"
	DefaultRetention        = 4 * 7 * 24 * time.Hour
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
	return fmt.Sprintf("hapax: idempotency: status %d: %v", e.Status, e.Err)
}

// Unwrap returns the cause.
func (e *StatusError) Unwrap() error { return e.Err }

func (o Options) withDefaults() (Options, error) {
	o.Scope = cmp.Or(o.Scope, DefaultScope)
	o.Header = http.CanonicalHeaderKey(cmp.Or(o.Header, KeyHeader))
	o.Retention = cmp.Or(o.Retention, DefaultRetention)
	o.Lease = cmp.Or(o.Lease, DefaultLease)
	o.MaxRequestBytes = cmp.Or(o.MaxRequestBytes, DefaultMaxRequestBytes)
	o.MaxResponseBytes = cmp.Or(o.MaxResponseBytes, DefaultMaxResponseBytes)
	if o.Keep == nil {
		o.Keep = keepByDefault
	}
	if o.Fingerprint == nil {
		o.Fingerprint = bodyFingerprint
	}
	if o.Methods == nil {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	o.Methods, o.Secret = slices.Clone(o.Methods), slices.Clone(o.Secret)
	names := o.KeepCredentials
	o.KeepCredentials = nil
	for _, name := range names {
		o.KeepCredentials = append(o.KeepCredentials, http.CanonicalHeaderKey(name))
	}
	return o, o.check()
}

func (o *Options) check() error {
	switch {
	case o.Tenant == nil && !o.SharedKeys:
		return errors.New("hapax: idempotency: Options.Tenant is nil: return the authenticated caller of a request, or set Options.SharedKeys if every caller may get the stored responses of all others")
	case o.Tenant != nil && o.SharedKeys:
		return errors.New("hapax: idempotency: Options.Tenant and Options.SharedKeys are set: set one of them")
	case !isToken(o.Header):
		return fmt.Errorf("hapax: idempotency: Options.Header is %q: give the name of a header", o.Header)
	case o.MaxKeysPerTenant < 0:
		return fmt.Errorf("hapax: idempotency: Options.MaxKeysPerTenant is %d: give a number of keys, or 0 for no limit", o.MaxKeysPerTenant)
	case o.Wait < 0:
		return fmt.Errorf("hapax: idempotency: Options.Wait is %v: give 0 or more", o.Wait)
	case len(o.Methods) == 0:
		return errors.New("hapax: idempotency: Options.Methods is empty: name the methods that need a key, or nil for POST and PATCH")
	case slices.ContainsFunc(o.Methods, func(m string) bool { return m == "" || m != strings.ToUpper(m) }):
		return fmt.Errorf("hapax: idempotency: Options.Methods is %q: give names in upper case, as requests have them", o.Methods)
	case o.Lease < time.Second || o.Lease > limits.Lease:
		return fmt.Errorf("hapax: idempotency: Options.Lease is %v: give 1s to %v", o.Lease, limits.Lease)
	case o.MaxRequestBytes < 0:
		return errors.New("hapax: idempotency: Options.MaxRequestBytes is negative")
	case o.MaxResponseBytes < 0 || o.MaxResponseBytes > limits.DataBytes:
		return fmt.Errorf("hapax: idempotency: Options.MaxResponseBytes is %d: give 1 to %d", o.MaxResponseBytes, limits.DataBytes)
	}
	return nil
}

// checkRetention rejects an invalid window before the first request.
func (o *Options) checkRetention(eng *engine.Engine) error {
	err := eng.CheckEvent(engine.Event{Scope: o.Scope, ID: []byte("r"), Window: o.Retention, Origin: engine.Origin{Topic: originTopic}})
	if err != nil {
		return fmt.Errorf("hapax: idempotency: Options.Retention of %v: %w", o.Retention, err)
	}
	return nil
}
