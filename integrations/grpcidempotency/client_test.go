package grpcidempotency_test

import (
	"context"
	"sync"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hapax-dev/hapax/integrations/grpcidempotency"
)

func incoming(key string) context.Context {
	return metadata.NewIncomingContext(context.Background(), metadata.Pairs(grpcidempotency.KeyHeader, key))
}

const retryPolicy = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`

// The first two attempts of each call fail, and gRPC retries.
func TestRetriesOfGRPCHaveOneKey(t *testing.T) {
	var mu sync.Mutex
	attempts := map[string]int{}
	s := &service{handle: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		mu.Lock()
		defer mu.Unlock()
		key := metadata.ValueFromIncomingContext(ctx, grpcidempotency.KeyHeader)[0]
		if attempts[key]++; attempts[key] < 3 {
			return nil, status.Error(codes.Unavailable, "try again")
		}
		return reply(key), nil
	}}
	i, err := grpcidempotency.UnaryServerInterceptor(inMemory(t), grpcidempotency.Options{SharedKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	client := s.dial(t, i, grpc.WithDefaultServiceConfig(retryPolicy), grpc.WithUnaryInterceptor(grpcidempotency.UnaryClientInterceptor(nil)))
	for range 2 {
		got, err := client.UnaryCall(t.Context(), request("body"))
		if err != nil {
			t.Fatal(err)
		}
		if key, err := uuid.Parse(got.Username); err != nil || key.Version() != 7 {
			t.Errorf("the key is %q", got.Username)
		}
	}
	if len(attempts) != 2 {
		t.Errorf("attempts by key: %v", attempts)
	}
}

func TestRetriesOfTheApplicationHaveOneKey(t *testing.T) {
	runs := 0
	s := &service{handle: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		runs++
		return reply("once"), nil
	}}
	i, err := grpcidempotency.UnaryServerInterceptor(inMemory(t), grpcidempotency.Options{SharedKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	client := s.dial(t, i, grpc.WithUnaryInterceptor(grpcidempotency.UnaryClientInterceptor(nil)))
	ctx, err := grpcidempotency.WithNewKey(metadata.AppendToOutgoingContext(t.Context(), "other", "kept"))
	if err != nil {
		t.Fatal(err)
	}
	if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get("other")) != 1 {
		t.Error("WithNewKey loses other metadata")
	}
	for n := range 3 {
		var header metadata.MD
		got, err := client.UnaryCall(ctx, request("body"), grpc.Header(&header))
		if err != nil || got.Username != "once" {
			t.Fatal(got, err)
		}
		if replayed := len(header.Get(grpcidempotency.ReplayedHeader)) == 1; replayed != (n > 0) {
			t.Errorf("call %d: %v", n, header)
		}
	}
	if _, err := client.UnaryCall(grpcidempotency.WithKey(ctx, "another"), request("body")); err != nil || runs != 2 {
		t.Errorf("%d runs, %v", runs, err)
	}
	stream, err := client.StreamingOutputCall(t.Context(), &testgrpc.StreamingOutputCallRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Errorf("a stream: %v", err)
	}
}

func TestMethodsWithoutKeys(t *testing.T) {
	for _, applies := range []bool{true, false} {
		seen := 0
		i := grpcidempotency.UnaryClientInterceptor(func(m string) bool { return applies && m == method })
		err := i(t.Context(), method, nil, nil, nil, func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			md, _ := metadata.FromOutgoingContext(ctx)
			seen = len(md.Get(grpcidempotency.KeyHeader))
			return nil
		})
		if err != nil || seen == 1 != applies {
			t.Errorf("%v: %d keys, %v", applies, seen, err)
		}
	}
}

func TestPushbackTellsGRPCWhenToRetry(t *testing.T) {
	busy, done := make(chan struct{}), make(chan struct{})
	s := &service{handle: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		close(busy)
		<-done
		return reply("once"), nil
	}}
	i, err := grpcidempotency.UnaryServerInterceptor(inMemory(t), grpcidempotency.Options{SharedKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	client := s.dial(t, i)
	ctx := grpcidempotency.WithKey(t.Context(), "k")
	var first sync.WaitGroup
	first.Go(func() {
		if _, err := client.UnaryCall(ctx, request("body")); err != nil {
			t.Error(err)
		}
	})
	<-busy
	var trailer metadata.MD
	_, err = client.UnaryCall(ctx, request("body"), grpc.Trailer(&trailer))
	if wait, ok := delay(err); status.Code(err) != codes.Unavailable || !ok || wait <= 0 || len(trailer.Get("grpc-retry-pushback-ms")) != 1 {
		t.Errorf("%v, %v, %v", err, wait, trailer)
	}
	close(done)
	first.Wait()
}
