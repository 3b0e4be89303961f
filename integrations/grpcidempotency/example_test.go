package grpcidempotency_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/integrations/grpcidempotency"
)

// A service that books payments, and a client that sends one of them twice.
func Example() {
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{}) // a service opens engine/bolt or engine/pebble
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()
	protect, err := grpcidempotency.UnaryServerInterceptor(eng, grpcidempotency.Options{SharedKeys: true}) // one caller
	if err != nil {
		log.Fatal(err)
	}
	payments := 0
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(protect))
	testgrpc.RegisterTestServiceServer(server, &service{handle: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		payments++
		return &testgrpc.SimpleResponse{Username: fmt.Sprintf("payment %d", payments)}, nil
	}})
	network := bufconn.Listen(1 << 16) // a service listens on a port
	go server.Serve(network)
	defer server.Stop()

	conn, err := grpc.NewClient("passthrough:payments", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return network.DialContext(ctx) }),
		grpc.WithUnaryInterceptor(grpcidempotency.UnaryClientInterceptor(nil)))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	client := testgrpc.NewTestServiceClient(conn)
	ctx, err := grpcidempotency.WithNewKey(context.Background()) // one key for all attempts
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		var header metadata.MD
		reply, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{}, grpc.Header(&header))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(reply.Username, header.Get(grpcidempotency.ReplayedHeader))
	}
	// Output:
	// payment 1 []
	// payment 1 [true]
}
