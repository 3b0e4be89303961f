package grpcidempotency_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/integrations/grpcidempotency"
)

func TestATenantKeepsNoMoreKeysThanItsLimit(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	var tenant string
	o := grpcidempotency.Options{MaxKeysPerTenant: 2, Tenant: func(context.Context, string) (string, error) { return tenant, nil }}
	var fail error
	counted, runs := counting()
	handle := func(ctx context.Context, req any) (any, error) {
		if fail != nil {
			return nil, fail
		}
		return counted(ctx, req)
	}
	s := newServer(t, open(t, m, nil), o, handle)
	for i, name := range []string{"a", "b"} {
		tenant, fail = name, errors.New("released keys do not count")
		for range 3 {
			_, err := s.call("failed")
			want(t, "", err, "", codes.Unknown)
		}
		fail = nil
		for key := range 2 {
			got, err := s.call(fmt.Sprint(key))
			want(t, got, err, fmt.Sprint("run ", 2*i+key+1), codes.OK)
		}
		_, err := s.call("third")
		want(t, "", err, "", codes.ResourceExhausted)
	}
	s = newServer(t, open(t, m.CrashClone(0), nil), o, handle)
	got, err := s.call("1")
	want(t, got, err, "run 4", codes.OK)
	_, err = s.call("third")
	want(t, "", err, "", codes.ResourceExhausted)
	if runs.Load() != 4 {
		t.Errorf("%d runs", runs.Load())
	}
}
