package grpcidempotency_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/integrations/grpcidempotency"
)

// The handler takes longer than its lease.
func TestThousandRacersRunOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handle, runs := counting()
		s := newServer(t, inMemory(t), grpcidempotency.Options{}, func(ctx context.Context, req any) (any, error) {
			time.Sleep(25 * time.Second)
			return handle(ctx, req)
		})
		race(t, s, 1000)
		if runs.Load() != 1 {
			t.Errorf("%d runs", runs.Load())
		}
	})
}

func TestPowerFailureBeforeTheReplyIsTakenOverByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := storetest.NewMem(storage.Identity{})
		var after *storetest.Mem
		dying := newServer(t, open(t, m, nil), grpcidempotency.Options{}, func(context.Context, any) (any, error) {
			after = m.Crash() // the work is done, its reply is not stored
			return reply("lost"), nil
		})
		got, err := dying.call("k")
		want(t, got, err, "", codes.Unavailable)
		began := time.Now()
		handle, runs := counting()
		s := newServer(t, open(t, after, nil), grpcidempotency.Options{}, func(ctx context.Context, req any) (any, error) {
			if time.Since(began) < grpcidempotency.DefaultLease {
				t.Errorf("taken over %v after the power failure", time.Since(began))
			}
			return handle(ctx, req)
		})
		race(t, s, 100)
		if runs.Load() != 1 {
			t.Errorf("%d runs", runs.Load())
		}
	})
}

func TestRetryInfoIsTheRestOfTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *server
		s = newServer(t, inMemory(t), grpcidempotency.Options{}, func(context.Context, any) (any, error) {
			_, err := s.call("k")
			want(t, "", err, "", codes.Unavailable)
			if wait, ok := delay(err); !ok || wait != grpcidempotency.DefaultLease {
				t.Errorf("%v, %v", wait, ok)
			}
			return reply("done"), nil
		})
		got, err := s.call("k")
		want(t, got, err, "done", codes.OK)
	})
}

// A jump of the clock simulates a process that was paused for longer than its lease.
func TestLostLeaseCancelsTheHandlerAndDropsItsReply(t *testing.T) {
	t.Run("a reply", func(t *testing.T) { lostLease(t, reply("first"), nil) })
	t.Run("a failure", func(t *testing.T) { lostLease(t, nil, status.Error(codes.Aborted, "the handler failed")) })
	t.Run("a status that is stored", func(t *testing.T) { lostLease(t, nil, status.Error(codes.NotFound, "no such row")) })
}

func lostLease(t *testing.T, answer any, failure error) {
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		clock := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		var s *server
		runs := 0
		s = newServer(t, open(t, storetest.NewMem(storage.Identity{}), clock), grpcidempotency.Options{Clock: clock, FailOpen: true},
			func(ctx context.Context, _ any) (any, error) {
				if runs++; runs > 1 {
					return reply("second"), nil
				}
				ahead.Store(int64(grpcidempotency.DefaultLease))
				got, err := s.call("k")
				want(t, got, err, "second", codes.OK)
				<-ctx.Done()
				if err := context.Cause(ctx); !errors.Is(err, engine.ErrLeaseLost) {
					t.Error(err)
				}
				return answer, failure
			})
		got, err := s.call("k")
		want(t, got, err, "", codes.Unavailable)
		if wait, ok := delay(err); !ok || wait != time.Second {
			t.Errorf("%v, %v", wait, ok)
		}
		got, err = s.call("k")
		want(t, got, err, "second", codes.OK)
		if runs != 2 {
			t.Errorf("%d runs", runs)
		}
	})
}

func TestCanceledCall(t *testing.T) {
	handle, runs := counting()
	s := newServer(t, inMemory(t), grpcidempotency.Options{FailOpen: true}, handle)
	ctx, cancel := context.WithCancel(incoming("k"))
	cancel()
	_, err := s.interceptor(ctx, request("body"), &grpc.UnaryServerInfo{FullMethod: method}, s.handle)
	want(t, "", err, "", codes.Canceled)
	s.handle = func(ctx context.Context, req any) (any, error) { cancel(); return handle(ctx, req) }
	ctx, cancel = context.WithCancel(incoming("k"))
	defer cancel()
	if _, err := s.interceptor(ctx, request("body"), &grpc.UnaryServerInfo{FullMethod: method}, s.handle); err != nil {
		t.Error(err) // no caller gets it, but a retry does
	}
	got, err := s.call("k")
	want(t, got, err, "run 1", codes.OK)
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}
