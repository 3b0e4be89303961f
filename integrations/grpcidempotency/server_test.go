package grpcidempotency_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hapax-dev/hapax/engine/bolt"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/integrations/grpcidempotency"
	"github.com/hapax-dev/hapax/listener"
)

func TestKeys(t *testing.T) {
	long := strings.Repeat("k", grpcidempotency.MaxKeyBytes)
	for name, c := range map[string]struct {
		keys []string
		code codes.Code
	}{
		"missing":  {nil, codes.InvalidArgument},
		"empty":    {[]string{""}, codes.InvalidArgument},
		"one":      {[]string{"k"}, codes.OK},
		"two":      {[]string{"k", "k"}, codes.InvalidArgument},
		"longest":  {[]string{long}, codes.OK},
		"too long": {[]string{long + "k"}, codes.InvalidArgument},
	} {
		handle, runs := counting()
		_, err := newServer(t, inMemory(t), grpcidempotency.Options{}, handle).call(c.keys...)
		if _, again := delay(err); status.Code(err) != c.code || again || (runs.Load() == 1) != (c.code == codes.OK) {
			t.Errorf("%s: %v, %d runs", name, err, runs.Load())
		}
	}
}

func TestCallsWithoutKeysReachTheHandler(t *testing.T) {
	handle, _ := counting()
	o := grpcidempotency.Options{Optional: true, Applies: func(m string) bool { return m == method }}
	s := newServer(t, inMemory(t), o, handle)
	got, err := s.call()
	want(t, got, err, "run 1", codes.OK)
	got, err = s.callMethod("/other", request(""), "k")
	want(t, got, err, "run 2", codes.OK)
	got, err = s.callMethod("/other", request(""), "k")
	want(t, got, err, "run 3", codes.OK)
	_, err = s.call("")
	want(t, "", err, "", codes.InvalidArgument) // empty is not missing
}

func TestAnotherCallUnderAKeyIsRejected(t *testing.T) {
	for _, secret := range [][]byte{nil, []byte("secret")} {
		handle, runs := counting()
		s := newServer(t, inMemory(t), grpcidempotency.Options{Secret: secret}, handle)
		for range 2 {
			got, err := s.call("k")
			want(t, got, err, "run 1", codes.OK)
			_, err = s.callMethod(method, request("bodY"), "k")
			want(t, "", err, "", codes.InvalidArgument)
			_, err = s.callMethod(method+"2", request("body"), "k")
			want(t, "", err, "", codes.InvalidArgument)
		}
		if runs.Load() != 1 {
			t.Errorf("%d runs", runs.Load())
		}
	}
}

func TestTenantsShareNoKeys(t *testing.T) {
	var tenant string
	var fail error
	handle, runs := counting()
	s := newServer(t, inMemory(t), grpcidempotency.Options{Tenant: func(context.Context, string) (string, error) { return tenant, fail }}, handle)
	for i, c := range []struct{ tenant, key string }{{"a", "k"}, {"b", "k"}, {"a:b", "k"}, {"a", "b:k"}, {"", "k"}, {"a", "k"}} {
		tenant = c.tenant
		if _, err := s.call(c.key); err != nil {
			t.Error(i, err)
		}
	}
	if runs.Load() != 5 {
		t.Errorf("%d runs", runs.Load())
	}
	fail = errors.New("a secret of the server")
	_, err := s.call("k")
	want(t, "", err, "", codes.Internal)
	if strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
	fail = status.Error(codes.Unauthenticated, "who are you?")
	_, err = s.call("k")
	want(t, "", err, "", codes.Unauthenticated)
	tenant, fail = strings.Repeat("t", grpcidempotency.MaxTenantBytes+1), nil
	_, err = s.call("k")
	want(t, "", err, "", codes.Internal)
}

func TestReplaysAreEqualAfterAPowerFailureToo(t *testing.T) {
	full := reply("name")
	full.Payload = &testgrpc.Payload{Body: []byte("\x00\xff")}
	full.ProtoReflect().SetUnknown([]byte{0x98, 0x06, 0x07}) // field 99
	detailed, err := status.New(codes.FailedPrecondition, "closed").WithDetails(&errdetails.DebugInfo{Detail: "why"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		reply any
		err   error
	}{
		"reply":       {full, nil},
		"empty reply": {&testgrpc.Empty{}, nil},
		"status":      {nil, detailed.Err()},
	} {
		t.Run(name, func(t *testing.T) {
			m, runs := storetest.NewMem(storage.Identity{}), 0
			handle := func(context.Context, any) (any, error) { runs++; return c.reply, c.err }
			ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(grpcidempotency.KeyHeader, "k"))
			info := &grpc.UnaryServerInfo{FullMethod: method}
			check := func(got any, err error) {
				t.Helper()
				if c.err != nil {
					if !proto.Equal(status.Convert(err).Proto(), detailed.Proto()) || got != nil {
						t.Errorf("%v, %v", got, err)
					}
				} else if err != nil || !proto.Equal(got.(proto.Message), c.reply.(proto.Message)) {
					t.Errorf("%v, %v", got, err)
				}
			}
			s := newServer(t, open(t, m, nil), grpcidempotency.Options{}, handle)
			for range 3 {
				check(s.interceptor(ctx, request(""), info, handle))
			}
			s = newServer(t, open(t, m.CrashClone(0), nil), grpcidempotency.Options{}, handle)
			check(s.interceptor(ctx, request(""), info, handle))
			if runs != 1 {
				t.Errorf("%d runs", runs)
			}
		})
	}
}

func TestFailuresReleaseTheKey(t *testing.T) {
	kept := []codes.Code{
		codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition, codes.OutOfRange,
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		runs := 0
		s := newServer(t, inMemory(t), grpcidempotency.Options{}, func(context.Context, any) (any, error) {
			runs++
			return nil, status.Error(code, "failed")
		})
		for range 2 {
			_, err := s.call("k")
			want(t, "", err, "", code)
		}
		expected := 2
		for _, k := range kept {
			if code == k {
				expected = 1
			}
		}
		if runs != expected {
			t.Errorf("%v: %d runs", code, runs)
		}
	}
	runs := 0
	s := newServer(t, inMemory(t), grpcidempotency.Options{Keep: func(c codes.Code) bool { return c == codes.Unknown }},
		func(context.Context, any) (any, error) { runs++; return nil, errors.New("no status") })
	for range 2 {
		_, err := s.call("k")
		want(t, "", err, "", codes.Unknown)
	}
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
}

func TestPanicReleasesTheKey(t *testing.T) {
	runs := 0
	s := newServer(t, inMemory(t), grpcidempotency.Options{}, func(context.Context, any) (any, error) {
		if runs++; runs == 1 {
			panic("first")
		}
		return reply("second"), nil
	})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic does not reach the server")
			}
		}()
		_, _ = s.call("k")
	}()
	got, err := s.call("k")
	want(t, got, err, "second", codes.OK)
}

func TestReplyThatIsTooLargeIsSentAndNotRunAgain(t *testing.T) {
	for size, code := range map[int]codes.Code{50: codes.OK, 101: codes.AlreadyExists, limits.DataBytes: codes.AlreadyExists} {
		runs := 0
		name := strings.Repeat("x", size)
		s := newServer(t, inMemory(t), grpcidempotency.Options{MaxReplyBytes: 100}, func(context.Context, any) (any, error) {
			runs++
			return reply(name), nil
		})
		got, err := s.call("k")
		want(t, got, err, name, codes.OK)
		_, err = s.call("k")
		if status.Code(err) != code || runs != 1 {
			t.Errorf("%d bytes: %v, %d runs", size, err, runs)
		}
	}
	s := newServer(t, inMemory(t), grpcidempotency.Options{MaxReplyBytes: grpcidempotency.MaxReplyBytesLimit}, func(context.Context, any) (any, error) {
		return reply(strings.Repeat("x", grpcidempotency.MaxReplyBytesLimit-10)), nil
	})
	for range 2 {
		if got, err := s.call("k"); len(got) != grpcidempotency.MaxReplyBytesLimit-10 || err != nil {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
}

func TestMessagesOfOtherKinds(t *testing.T) {
	runs := 0
	s := newServer(t, inMemory(t), grpcidempotency.Options{}, func(context.Context, any) (any, error) { runs++; return "text", nil })
	_, err := s.callMethod(method, "text", "k")
	want(t, "", err, "", codes.Internal)
	if runs > 0 {
		t.Error("a request without a deterministic encoding is run")
	}
	_, err = s.call("k")
	want(t, "", err, "", codes.Internal)
	if _, again := delay(err); again || runs != 1 {
		t.Errorf("%v, %d runs", err, runs)
	}
}

func TestStoreFailure(t *testing.T) {
	for name, c := range map[string]struct {
		inHandler, open bool
		reply           string
		code            codes.Code
		runs            int64
	}{
		"claim, closed":  {false, false, "", codes.Unavailable, 0},
		"claim, open":    {false, true, "run 1", codes.OK, 1},
		"finish, closed": {true, false, "", codes.Unavailable, 1},
		"finish, open":   {true, true, "run 1", codes.OK, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := storetest.NewMem(storage.Identity{})
			handle, runs := counting()
			s := newServer(t, open(t, m, nil), grpcidempotency.Options{FailOpen: c.open}, func(ctx context.Context, req any) (any, error) {
				if c.inHandler {
					m.Crash()
				}
				return handle(ctx, req)
			})
			if !c.inHandler {
				m.Crash()
			}
			got, err := s.call("k")
			want(t, got, err, c.reply, c.code)
			if wait, again := delay(err); again != (c.code != codes.OK) || again && wait != grpcidempotency.DefaultLease || runs.Load() != c.runs {
				t.Errorf("%v, %d runs", wait, runs.Load())
			}
		})
	}
}

func TestAResultOfAnotherPackageIsAnError(t *testing.T) {
	for _, result := range []string{"", "?", "\x01?", "\x02", "\x02?", "\x01\x0a\x01x"} {
		eng := inMemory(t)
		other, err := listener.WrapResult(eng, func(context.Context, string) ([]byte, error) { return []byte(result), nil },
			listener.Options[string]{Scope: grpcidempotency.DefaultScope, ID: func(s string) string { return s }})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other(t.Context(), "0::k"); err != nil {
			t.Fatal(err)
		}
		handle, runs := counting()
		_, err = newServer(t, eng, grpcidempotency.Options{}, handle).call("k")
		if c := status.Code(err); c != codes.Internal && c != codes.InvalidArgument || runs.Load() > 0 {
			t.Errorf("%q: %v, %d runs", result, err, runs.Load())
		}
	}
}

func TestBothStoresKeepReplies(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	handle, _ := counting()
	for range 2 {
		store, err := bolt.Open(dir, bolt.Options{})
		if err != nil {
			t.Fatal(err)
		}
		eng := open(t, store, nil)
		got, err := newServer(t, eng, grpcidempotency.Options{}, handle).call("k")
		want(t, got, err, "run 1", codes.OK)
		if err := eng.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]grpcidempotency.Options{
		"retention":       {Retention: 36 * 24 * time.Hour},
		"window":          {Retention: -1},
		"longest arrival": {Retention: 54 * 7 * 24 * time.Hour},
		"lease":           {Lease: 25 * time.Hour},
		"reply":           {MaxReplyBytes: grpcidempotency.MaxReplyBytesLimit + 1},
		"scope":           {Scope: " "},
	} {
		o.SharedKeys = true
		if _, err := grpcidempotency.UnaryServerInterceptor(inMemory(t), o); err == nil {
			t.Error(name)
		}
	}
	if _, err := grpcidempotency.UnaryServerInterceptor(nil, grpcidempotency.Options{SharedKeys: true}); err == nil {
		t.Error("no engine")
	}
}
