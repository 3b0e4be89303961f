package grpcidempotency

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/listener"
)

// Names of metadata.
const (
	KeyHeader      = "idempotency-key"
	ReplayedHeader = "idempotency-replayed" // "true" in the header of a reply of an earlier call
	pushback       = "grpc-retry-pushback-ms"
)

type interceptor struct {
	opt     Options
	receive func(context.Context, *call) ([]byte, error)
}

// UnaryServerInterceptor returns an interceptor that runs the calls of each idempotency key once.
// It must come after the interceptors that authenticate. Close the engine after the server has
// stopped.
func UnaryServerInterceptor(eng *engine.Engine, options Options) (grpc.UnaryServerInterceptor, error) {
	o, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := o.checkRetention(eng); err != nil {
		return nil, err
	}
	i := &interceptor{opt: o}
	var group func(*call) string
	if o.MaxKeysPerTenant > 0 {
		group = func(c *call) string { return c.tenant }
	}
	i.receive, err = listener.WrapResult(eng, i.run, listener.Options[*call]{
		Group: group, MaxPerGroup: o.MaxKeysPerTenant, Clock: o.Clock,
		ID:          func(c *call) string { return c.id },
		Fingerprint: func(c *call) string { return c.fingerprint },
		Scope:       o.Scope, Queue: queue, Window: o.Retention, Lease: o.Lease, FailOpen: o.FailOpen,
		Telemetry: o.Telemetry,
	})
	if err != nil {
		return nil, err
	}
	return i.intercept, nil
}

// A call is a unary call with a key on its way to its handler.
type call struct {
	tenant      string
	id          string
	fingerprint string
	request     any
	handle      grpc.UnaryHandler

	ran    bool
	failed bool // the key is released, or remains until the end of its lease
	reply  any
	err    error
}

func (i *interceptor) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if !i.opt.Applies(info.FullMethod) {
		return handle(ctx, req)
	}
	key, err := requestKey(ctx)
	switch {
	case errors.Is(err, errNoKey) && i.opt.Optional:
		return handle(ctx, req)
	case err != nil:
		return nil, err
	}
	c, err := i.newCall(ctx, key, req, info, handle)
	if err != nil {
		return nil, err
	}
	result, err := i.receive(ctx, c)
	switch {
	case c.failed && !errors.Is(err, engine.ErrLeaseLost): // otherwise another run answers the call
		return nil, c.err
	case err != nil:
		return nil, i.refuse(ctx, err)
	case c.ran:
		return c.reply, c.err
	}
	_ = grpc.SetHeader(ctx, metadata.Pairs(ReplayedHeader, "true")) // fails only without a stream
	return replay(result)
}

// run calls the handler and returns the result to be stored.
func (i *interceptor) run(ctx context.Context, c *call) ([]byte, error) {
	c.reply, c.err = c.handle(ctx, c.request)
	c.ran = true
	failure := status.Convert(c.err) // once: the handler may change its error
	if failure != nil && (ctx.Err() != nil || !i.opt.Keep(failure.Code())) {
		c.failed = true
		return nil, c.err
	}
	result, err := encode(c.reply, failure, i.opt.MaxReplyBytes)
	if err != nil {
		c.failed, c.err = true, err
	}
	return result, err
}

func (i *interceptor) newCall(ctx context.Context, key string, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (*call, error) {
	message, ok := req.(proto.Message)
	if !ok {
		return nil, status.Errorf(codes.Internal, "the request is a %T, and not a message of Protocol Buffers: its method cannot have idempotency keys", req)
	}
	tenant := ""
	if i.opt.Tenant != nil {
		var err error
		if tenant, err = i.opt.Tenant(ctx, info.FullMethod); err == nil && len(tenant) > MaxTenantBytes {
			err = status.Error(codes.Internal, "the name of the tenant is too long")
		}
		if err != nil {
			if _, ok := status.FromError(err); !ok {
				err = status.Error(codes.Internal, "the tenant of the call cannot be determined")
			}
			return nil, err
		}
	}
	id := strconv.Itoa(len(tenant)) + ":" + tenant + ":" + key
	secret := i.opt.Secret
	if len(secret) == 0 {
		secret = []byte(id)
	}
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "the request cannot be encoded")
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(strconv.Itoa(len(info.FullMethod)) + ":" + info.FullMethod))
	mac.Write(body)
	// an interceptor outside that calls again has the request that the client has sent
	return &call{tenant: tenant, id: id, fingerprint: string(mac.Sum(nil)), request: proto.Clone(message), handle: handle}, nil
}

var errNoKey = status.Error(codes.InvalidArgument, "the metadata idempotency-key is missing: send a key that is the same for each retry")

// requestKey returns the key of a call.
func requestKey(ctx context.Context) (string, error) {
	keys := metadata.ValueFromIncomingContext(ctx, KeyHeader)
	switch {
	case len(keys) == 0:
		return "", errNoKey
	case len(keys) > 1:
		return "", status.Error(codes.InvalidArgument, "there is more than one idempotency-key: send one")
	case len(keys[0]) == 0 || len(keys[0]) > MaxKeyBytes:
		return "", status.Errorf(codes.InvalidArgument, "the idempotency-key has %d bytes: send 1 to %d", len(keys[0]), MaxKeyBytes)
	}
	return keys[0], nil
}

// refuse returns the status of a call that was not answered.
func (i *interceptor) refuse(ctx context.Context, err error) error {
	var busy *listener.InProgressError
	var bad *engine.EventError
	switch {
	case errors.As(err, &busy):
		return i.unavailable(ctx, "a call with this idempotency-key is in progress", busy.LeaseEnd.Sub(i.opt.Clock()))
	case errors.Is(err, listener.ErrMismatch):
		return status.Error(codes.InvalidArgument, "the idempotency-key was used for another call: send a new key")
	case errors.Is(err, listener.ErrTooMany):
		return status.Error(codes.ResourceExhausted, "the caller has used too many keys: wait until earlier ones expire")
	case errors.As(err, &bad):
		return status.Error(codes.Internal, "the idempotency-key cannot be judged")
	case errors.Is(err, engine.ErrLeaseLost):
		return i.unavailable(ctx, "another call with this idempotency-key has taken over", 0)
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	}
	return i.unavailable(ctx, "the store of idempotency keys fails", i.opt.Lease)
}

// unavailable returns the status that asks for a retry with the same key, in a second or later.
func (i *interceptor) unavailable(ctx context.Context, what string, wait time.Duration) error {
	wait = max(wait, time.Second)
	// fails only without a stream
	_ = grpc.SetTrailer(ctx, metadata.Pairs(pushback, strconv.FormatInt(wait.Milliseconds(), 10)))
	s := status.New(codes.Unavailable, what+": retry with the same key after the delay of RetryInfo")
	if detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)}); err == nil {
		s = detailed
	}
	return s.Err()
}
