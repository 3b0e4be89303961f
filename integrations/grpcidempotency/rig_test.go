package grpcidempotency_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/integrations/grpcidempotency"
)

const method = "/grpc.testing.TestService/UnaryCall"

func open(t *testing.T, store storage.Store, clock func() time.Time) *engine.Engine {
	t.Helper()
	eng, err := engine.Open(store, engine.Options{ExpectedPerWeek: 1000, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() })
	return eng
}

func inMemory(t *testing.T) *engine.Engine {
	t.Helper()
	return open(t, storetest.NewMem(storage.Identity{}), nil)
}

// A server calls a handler through the interceptor as gRPC does, without a network.
type server struct {
	interceptor grpc.UnaryServerInterceptor
	handle      grpc.UnaryHandler
}

// newServer protects a handler; without a Tenant, all callers share their keys.
func newServer(t *testing.T, eng *engine.Engine, o grpcidempotency.Options, handle grpc.UnaryHandler) *server {
	t.Helper()
	o.SharedKeys = o.Tenant == nil
	i, err := grpcidempotency.UnaryServerInterceptor(eng, o)
	if err != nil {
		t.Fatal(err)
	}
	return &server{i, handle}
}

func (s *server) call(keys ...string) (string, error) {
	return s.callMethod(method, request("body"), keys...)
}

// callMethod returns the username of the reply.
func (s *server) callMethod(method string, req any, keys ...string) (string, error) {
	ctx := metadata.NewIncomingContext(context.Background(), metadata.MD{grpcidempotency.KeyHeader: keys})
	return username(s.interceptor(ctx, req, &grpc.UnaryServerInfo{FullMethod: method}, s.handle))
}

func username(reply any, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return reply.(*testgrpc.SimpleResponse).Username, nil
}

func request(body string) *testgrpc.SimpleRequest {
	return &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: []byte(body)}}
}

func reply(name string) *testgrpc.SimpleResponse { return &testgrpc.SimpleResponse{Username: name} }

// counting returns a handler whose replies are "run 1", "run 2" and so on, and the number of its
// runs.
func counting() (grpc.UnaryHandler, *atomic.Int64) {
	runs := new(atomic.Int64)
	return func(context.Context, any) (any, error) { return reply(fmt.Sprintf("run %d", runs.Add(1))), nil }, runs
}

func want(t *testing.T, got string, err error, wantReply string, code codes.Code) {
	t.Helper()
	if got != wantReply || status.Code(err) != code {
		t.Errorf("%q, %v; want %q, %v", got, err, wantReply, code)
	}
}

// delay returns the delay of RetryInfo, or false if there is none.
func delay(err error) (time.Duration, bool) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.RetryDelay.AsDuration(), true
		}
	}
	return 0, false
}

// race makes n clients retry after RetryInfo until each has an answer, which is "run 1".
func race(t *testing.T, s *server, n int) {
	t.Helper()
	var clients sync.WaitGroup
	for range n {
		clients.Go(func() {
			got, err := s.call("k")
			for range 100 {
				wait, again := delay(err)
				if !again {
					break
				}
				time.Sleep(wait)
				got, err = s.call("k")
			}
			want(t, got, err, "run 1", codes.OK)
		})
	}
	clients.Wait()
}

// A service is a server of the test service, over a connection in memory.
type service struct {
	testgrpc.UnimplementedTestServiceServer
	handle func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error)
}

func (s *service) UnaryCall(ctx context.Context, req *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	return s.handle(ctx, req)
}

func (s *service) StreamingOutputCall(_ *testgrpc.StreamingOutputCallRequest, stream testgrpc.TestService_StreamingOutputCallServer) error {
	return stream.Send(&testgrpc.StreamingOutputCallResponse{})
}

func (s *service) dial(t *testing.T, i grpc.UnaryServerInterceptor, opts ...grpc.DialOption) testgrpc.TestServiceClient {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(i))
	testgrpc.RegisterTestServiceServer(server, s)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(listener); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	conn, err := grpc.NewClient("passthrough:bufconn", append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return testgrpc.NewTestServiceClient(conn)
}
