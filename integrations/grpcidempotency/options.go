package grpcidempotency

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/telemetry"
)

// Options configure the server's interceptor. The zero value of each field has a stated, safe
// default.
type Options struct {
	// Scope is the engine's scope of the keys. "" = DefaultScope. It is not shared with other
	// packages.
	Scope string

	// Tenant returns the tenant of a call, up to MaxTenantBytes; keys of different tenants never
	// match. It must return an authenticated identity, never metadata that the client chooses. An
	// error rejects the call, with its status if it has one. It must be safe for concurrent use, and
	// set unless SharedKeys is.
	Tenant func(ctx context.Context, fullMethod string) (string, error)

	// SharedKeys gives all callers one set of keys, without a Tenant: a caller that sends the key and
	// the request of another caller gets the reply of that caller, before the handler can check
	// anything. Set it only if every caller may read every reply.
	SharedKeys bool

	// Applies reports whether calls of a method have keys; others reach the handler unchanged. nil
	// = all unary methods but those of gRPC's own services for health checks, channelz and
	// reflection, whose clients send no keys ([DefaultApplies]).
	Applies func(fullMethod string) bool

	// Optional passes calls without a key to the handler unchanged.
	Optional bool

	// Retention is how long a key and its reply are kept, from the first call. 0 =
	// DefaultRetention, which the engine's default RetentionWeeks covers. A longer one needs more
	// weeks.
	Retention time.Duration

	// Lease is how long a key remains in progress after the process has died. 0 = DefaultLease.
	Lease time.Duration

	// MaxReplyBytes is the maximum size of a stored reply. 0 = DefaultMaxReplyBytes; at most
	// MaxReplyBytesLimit.
	MaxReplyBytes int

	// MaxKeysPerTenant is how many keys of a tenant are kept in Retention, counted by whole weeks. A call
	// with a further key gets ResourceExhausted, and its handler does not run; retries of earlier calls
	// are answered. 0 = no limit. The count is durable.
	MaxKeysPerTenant int

	// Keep reports whether a status that is not OK is the result of its key. It is not asked for a
	// status that the handler returns after the context of the call has ended, which never is. nil =
	// as the package documentation says.
	Keep func(codes.Code) bool

	// FailOpen runs the handler without a key while the store fails, or stalls for five seconds or for
	// half of the time until the deadline of the call. A call can then be run more than once.
	FailOpen bool

	// Secret keys the fingerprints of requests in the store (HMAC-SHA256). nil = they are keyed by
	// tenant and key, which the store contains: anyone who can read the store can verify a guess of
	// a request's contents.
	Secret []byte

	// Clock is the engine's clock, for RetryInfo. nil = time.Now.
	Clock func() time.Time

	// Telemetry says where the log and the metrics of package listener, with the queue "grpc", go. A
	// replay is a duplicate, and each call that is run because of FailOpen is a warning. Each key is one id
	// with its tenant, such as "4:acme:k1" with the length of the tenant.
	Telemetry telemetry.Options
}

// The defaults of Options, and limits.
const (
	DefaultScope         = "grpc-idempotency-key"
	DefaultRetention     = 4 * 7 * 24 * time.Hour
	DefaultLease         = 10 * time.Second
	DefaultMaxReplyBytes = 64 << 10
	MaxReplyBytesLimit   = limits.DataBytes - 1<<10
	MaxKeyBytes          = 255
	MaxTenantBytes       = 255
)

const queue = "grpc"

func (o Options) withDefaults() (Options, error) {
	if o.Scope == "" {
		o.Scope = DefaultScope
	}
	if o.Retention == 0 {
		o.Retention = DefaultRetention
	}
	if o.Lease == 0 {
		o.Lease = DefaultLease
	}
	if o.MaxReplyBytes == 0 {
		o.MaxReplyBytes = DefaultMaxReplyBytes
	}
	if o.Applies == nil {
		o.Applies = DefaultApplies
	}
	if o.Keep == nil {
		o.Keep = keepByDefault
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	o.Secret = slices.Clone(o.Secret)
	switch {
	case o.Tenant == nil && !o.SharedKeys:
		return o, errors.New("hapax: grpcidempotency: Options.Tenant is nil: return the authenticated caller of a call, or set Options.SharedKeys if every caller may get the stored replies of all others")
	case o.Tenant != nil && o.SharedKeys:
		return o, errors.New("hapax: grpcidempotency: Options.Tenant and Options.SharedKeys are set: set one of them")
	case o.MaxKeysPerTenant < 0:
		return o, fmt.Errorf("hapax: grpcidempotency: Options.MaxKeysPerTenant is %d: give a number of keys, or 0 for no limit", o.MaxKeysPerTenant)
	case o.MaxReplyBytes < 0 || o.MaxReplyBytes > MaxReplyBytesLimit:
		return o, fmt.Errorf("hapax: grpcidempotency: Options.MaxReplyBytes is %d: give 1 to %d", o.MaxReplyBytes, MaxReplyBytesLimit)
	}
	return o, nil
}

// DefaultApplies is the default of Options.Applies.
func DefaultApplies(fullMethod string) bool {
	for _, own := range [...]string{"/grpc.health.", "/grpc.channelz.", "/grpc.reflection."} {
		if strings.HasPrefix(fullMethod, own) {
			return false
		}
	}
	return true
}

func keepByDefault(c codes.Code) bool {
	switch c {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition, codes.OutOfRange:
		return true
	}
	return false
}

// checkRetention rejects an invalid window before the first call.
func (o *Options) checkRetention(eng *engine.Engine) error {
	if eng == nil {
		return errors.New("hapax: grpcidempotency: the engine is nil: open one with engine.Open, and check its error")
	}
	err := eng.CheckEvent(engine.Event{Scope: o.Scope, ID: []byte("r"), Window: o.Retention, Origin: engine.Origin{Topic: queue}})
	if err != nil {
		return fmt.Errorf("hapax: grpcidempotency: Options.Retention of %v: %w", o.Retention, err)
	}
	return nil
}
