package grpcidempotency_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hapax-dev/hapax/integrations/grpcidempotency"
	"github.com/hapax-dev/hapax/internal/hostile"
	"github.com/hapax-dev/hapax/redact"
	"github.com/hapax-dev/hapax/telemetry"
)

func TestLogShowsKeysAndTenantsAsTheOptionSays(t *testing.T) {
	for name, how := range hostile.IDs {
		t.Run(name, func(t *testing.T) {
			var log hostile.Log
			handle, _ := counting()
			s := newServer(t, inMemory(t), grpcidempotency.Options{
				Telemetry: telemetry.Options{Logger: log.Logger(), IDs: how},
				Tenant:    func(context.Context, string) (string, error) { return "t" + hostile.ID, nil },
			}, handle)
			for range 2 {
				got, err := s.call(hostile.ID)
				want(t, got, err, "run 1", codes.OK)
			}
			log.Check(t, how, "19:t"+hostile.ID+":"+hostile.ID)
		})
	}
	_, err := grpcidempotency.UnaryServerInterceptor(inMemory(t), grpcidempotency.Options{SharedKeys: true, Telemetry: telemetry.Options{IDs: redact.Hashed(nil)}})
	if err == nil {
		t.Error("a short secret is accepted")
	}
}

// A fickle error has another status at each look.
type fickle struct{ looks *int }

func (fickle) Error() string { return "fickle" }

func (e fickle) GRPCStatus() *status.Status {
	*e.looks++
	if *e.looks == 1 {
		return status.New(codes.NotFound, "the first look")
	}
	return status.New(codes.Unavailable, "a later look")
}

// TestStatusOfAHandlersErrorIsReadOnce: the status that decides is the one that is kept.
func TestStatusOfAHandlersErrorIsReadOnce(t *testing.T) {
	runs, looks := 0, 0
	s := newServer(t, inMemory(t), grpcidempotency.Options{}, func(context.Context, any) (any, error) {
		runs++
		return nil, fickle{&looks}
	})
	_, _ = s.call("a")
	if looks != 1 {
		t.Errorf("the status was read %d times", looks)
	}
	_, err := s.call("a")
	if st := status.Convert(err); runs != 1 || st.Code() != codes.NotFound || st.Message() != "the first look" {
		t.Errorf("%d runs, the retry gets %v", runs, err)
	}
}
