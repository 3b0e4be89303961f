package listener_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/listener"
	"github.com/hapax-dev/hapax/telemetry"
)

// wrapResult makes a listener whose results are "run 1", "run 2" and so on.
func (r *rig) wrapResult(fail func() error, change func(*listener.Options[message])) (func(context.Context, message) ([]byte, error), *atomic.Int64) {
	r.t.Helper()
	o := listener.Options[message]{ID: idOf, Queue: "prizes", Telemetry: telemetry.Options{Registerer: r.reg}}
	if change != nil {
		change(&o)
	}
	runs := new(atomic.Int64)
	f, err := listener.WrapResult(r.eng, func(context.Context, message) ([]byte, error) {
		n := runs.Add(1)
		return []byte("run " + strconv.FormatInt(n, 10)), fail()
	}, o)
	if err != nil {
		r.t.Fatal(err)
	}
	return f, runs
}

func succeed() error { return nil }

func TestADuplicateReturnsTheFirstResultAfterAPowerFailureToo(t *testing.T) {
	r := newRig(t)
	failing := func() error { return errHandler }
	f, _ := r.wrapResult(failing, nil)
	if result, err := f(ctx, message{"a"}); result != nil || !errors.Is(err, errHandler) {
		t.Errorf("a handler that failed: %q, %v", result, err)
	}
	f, runs := r.wrapResult(succeed, nil)
	for range 2 {
		for range 2 {
			if result, err := f(ctx, message{"a"}); string(result) != "run 1" || err != nil {
				t.Errorf("%q, %v", result, err)
			}
		}
		if runs.Load() != 1 {
			t.Errorf("%d runs", runs.Load())
		}
		r.crash()
		f, _ = r.wrapResult(failing, nil)
	}
}

func TestRacersReturnOneResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		f, runs := r.wrapResult(func() error { time.Sleep(time.Minute); return nil }, nil)
		race(t, func(ctx context.Context, m message) error {
			result, err := f(ctx, m)
			if err == nil && string(result) != "run 1" {
				t.Errorf("%q", result)
			}
			return err
		})
		if runs.Load() != 1 {
			t.Errorf("%d runs", runs.Load())
		}
	})
}

func TestAResultThatIsTooLargeIsAFailure(t *testing.T) {
	r := newRig(t)
	size := limits.DataBytes + 1
	f, err := listener.WrapResult(r.eng, func(context.Context, message) ([]byte, error) {
		return make([]byte, size), nil
	}, listener.Options[message]{ID: idOf})
	if err != nil {
		t.Fatal(err)
	}
	if result, err := f(ctx, message{"a"}); result != nil || err == nil || !strings.Contains(err.Error(), "262145 bytes") {
		t.Errorf("%d bytes, %v", len(result), err)
	}
	size--
	for range 2 {
		if result, err := f(ctx, message{"a"}); len(result) != size || err != nil {
			t.Errorf("%d bytes, %v", len(result), err)
		}
	}
}

func TestAnotherMessageWithTheSameIDIsRejected(t *testing.T) {
	r := newRig(t)
	payload := "one"
	var h counting
	f := r.wrap(h.handle, func(o *listener.Options[message]) {
		o.Fingerprint = func(message) string { return payload }
	})
	wantNil(t, f(ctx, message{"a"}))
	wantNil(t, f(ctx, message{"a"}))
	payload = "two"
	if err := f(ctx, message{"a"}); !errors.Is(err, listener.ErrMismatch) {
		t.Error(err)
	}
	wantNil(t, f(ctx, message{"b"}))
	h.want(t, 2)
	r.wantCount("refused", 1)
}

func TestWrapResultRejectsOptionsThatCannotWork(t *testing.T) {
	r := newRig(t)
	handle := func(context.Context, message) ([]byte, error) { return nil, nil }
	for name, wrap := range map[string]func() error{
		"no handler": func() error {
			_, err := listener.WrapResult(r.eng, nil, listener.Options[message]{ID: idOf})
			return err
		},
		"no engine": func() error {
			_, err := listener.WrapResult(nil, handle, listener.Options[message]{ID: idOf})
			return err
		},
		"no result": func() error {
			_, err := listener.WrapResult(r.eng, handle, listener.Options[message]{ID: idOf, AtMostOnce: true})
			return err
		},
	} {
		if wrap() == nil {
			t.Error(name)
		}
	}
}
