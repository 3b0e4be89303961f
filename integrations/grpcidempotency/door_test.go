package grpcidempotency_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/integrations/grpcidempotency"
)

// Probes of Kubernetes send no keys.
func TestHealthChecksNeedNoKey(t *testing.T) {
	i, err := grpcidempotency.UnaryServerInterceptor(inMemory(t), grpcidempotency.Options{SharedKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	network := bufconn.Listen(1 << 16)
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(i))
	healthgrpc.RegisterHealthServer(server, health.NewServer())
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(network) })
	defer serving.Wait()
	defer server.Stop()
	conn, err := grpc.NewClient("passthrough:bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return network.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 2 {
		reply, err := healthgrpc.NewHealthClient(conn).Check(t.Context(), &healthgrpc.HealthCheckRequest{})
		if err != nil || reply.Status != healthgrpc.HealthCheckResponse_SERVING {
			t.Errorf("%v, %v", reply, err)
		}
	}
	if !grpcidempotency.DefaultApplies(method) || grpcidempotency.DefaultApplies("/grpc.channelz.v1.Channelz/GetServers") {
		t.Error("the methods without a key are not those of gRPC's own services")
	}
}

// Without a tenant, one caller gets the reply of another.
func TestATenantIsNeededUnlessKeysAreShared(t *testing.T) {
	eng := inMemory(t)
	tenant := func(context.Context, string) (string, error) { return "", nil }
	for name, c := range map[string]struct {
		o  grpcidempotency.Options
		ok bool
	}{
		"neither": {grpcidempotency.Options{}, false},
		"both":    {grpcidempotency.Options{Tenant: tenant, SharedKeys: true}, false},
		"tenant":  {grpcidempotency.Options{Tenant: tenant}, true},
		"shared":  {grpcidempotency.Options{SharedKeys: true}, true},
	} {
		if _, err := grpcidempotency.UnaryServerInterceptor(eng, c.o); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheDefaultsOfTheEngineCoverTheDefaultRetention(t *testing.T) {
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()
	if _, err := grpcidempotency.UnaryServerInterceptor(eng, grpcidempotency.Options{SharedKeys: true}); err != nil {
		t.Error(err)
	}
}

// What a handler returns when it sees that its client has gone is no result, unless it has done the work.
func TestAnAnswerAfterTheContextHasEnded(t *testing.T) {
	for code, kept := range map[codes.Code]bool{codes.OK: true, codes.NotFound: false, codes.InvalidArgument: false} {
		runs := 0
		handle := func(ctx context.Context, _ any) (any, error) {
			if runs++; runs > 1 {
				return reply("second"), nil
			}
			<-ctx.Done()
			if code != codes.OK {
				return nil, status.Error(code, "gave up")
			}
			return reply("first"), nil
		}
		s := newServer(t, inMemory(t), grpcidempotency.Options{Keep: func(codes.Code) bool { return true }}, handle)
		ctx, cancel := context.WithCancel(metadata.NewIncomingContext(t.Context(), metadata.Pairs(grpcidempotency.KeyHeader, "k")))
		time.AfterFunc(time.Millisecond, cancel)
		_, err := s.interceptor(ctx, request("body"), &grpc.UnaryServerInfo{FullMethod: method}, handle)
		if status.Code(err) != code {
			t.Errorf("%v: %v", code, err)
		}
		got, err := s.call("k")
		want(t, got, err, map[bool]string{true: "first", false: "second"}[kept], codes.OK)
	}
}

// An interceptor outside that calls again has the request that the client has sent.
func TestAHandlerDoesNotChangeTheRequest(t *testing.T) {
	runs := 0
	s := newServer(t, inMemory(t), grpcidempotency.Options{}, func(_ context.Context, req any) (any, error) {
		body := req.(*testgrpc.SimpleRequest).Payload.Body
		if runs++; string(body) != "sealed" {
			t.Errorf("attempt %d gets %q", runs, body)
		}
		if copy(body, "opened"); runs == 1 {
			return nil, status.Error(codes.Unavailable, "again")
		}
		return reply("done"), nil
	})
	req := request("sealed")
	_, err := s.callMethod(method, req, "k")
	want(t, "", err, "", codes.Unavailable)
	got, err := s.callMethod(method, req, "k")
	want(t, got, err, "done", codes.OK)
	got, err = s.callMethod(method, req, "k")
	want(t, got, err, "done", codes.OK)
}
