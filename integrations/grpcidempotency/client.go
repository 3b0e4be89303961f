package grpcidempotency

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// WithKey returns a context whose calls have that key, in place of any earlier one. Different calls
// need different keys.
func WithKey(ctx context.Context, key string) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx) // a copy
	if md == nil {
		md = metadata.MD{}
	}
	md.Set(KeyHeader, key)
	return metadata.NewOutgoingContext(ctx, md)
}

// WithNewKey is WithKey with a new UUIDv7. Call it once for each logical call, before its first
// attempt.
func WithNewKey(ctx context.Context) (context.Context, error) {
	key, err := uuid.NewV7()
	if err != nil {
		return nil, status.Errorf(codes.Internal, "making an idempotency-key: %v", err)
	}
	return WithKey(ctx, key.String()), nil
}

// UnaryClientInterceptor returns an interceptor that gives each call without a key a new UUIDv7.
// Retries below it have the same key: those of gRPC itself (a retry policy in the service config,
// transparent retries), and those of an interceptor that comes after this one. An application that
// retries calls WithNewKey first.
//
// applies reports whether calls of a method get keys. nil = all unary methods.
func UnaryClientInterceptor(applies func(fullMethod string) bool) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		md, _ := metadata.FromOutgoingContext(ctx)
		if len(md.Get(KeyHeader)) == 0 && (applies == nil || applies(method)) {
			var err error
			if ctx, err = WithNewKey(ctx); err != nil {
				return err
			}
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
}
