package listener_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/bolt"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/listener"
)

func TestADuplicateIsAcknowledgedAndNotHandled(t *testing.T) {
	r := newRig(t)
	var h counting
	f := r.wrap(h.handle, nil)
	for range 3 {
		wantNil(t, f(ctx, message{"a"}))
	}
	wantNil(t, f(ctx, message{"b"}))
	h.want(t, 2)
	r.wantCount("handled", 2)
	r.wantCount("duplicate", 2)
}

// A producer that sends everything twice does not fill the log.
func TestDuplicatesAreNotLoggedAtLevelInfo(t *testing.T) {
	r := newRig(t)
	var h counting
	f := r.wrap(h.handle, nil)
	for range 4 {
		wantNil(t, f(ctx, message{"a"}))
	}
	if lines := r.log.lines(t); len(lines) != 0 {
		t.Errorf("3 duplicates have logged %v", lines)
	}
	r.wantCount("duplicate", 3)
}

func TestEachDuplicateIsLoggedAtLevelDebug(t *testing.T) {
	r := newRig(t)
	var h counting
	f := r.wrap(h.handle, func(o *listener.Options[message]) {
		o.Telemetry.Logger = slog.New(slog.NewJSONHandler(&r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	for range 4 {
		wantNil(t, f(ctx, message{"a"}))
	}
	lines := r.log.lines(t)
	if len(lines) != 3 {
		t.Fatalf("3 duplicates have logged %v", lines)
	}
	if got := lines[0]; got["level"] != "DEBUG" || got["correlation_id"] != "a" || got["queue"] != "prizes" || got["first_queue"] != "prizes" || got["first_seen"] == nil {
		t.Errorf("the line is %v", got)
	}
}

func TestListenersShareAScopeByDefault(t *testing.T) {
	r := newRig(t)
	var h counting
	for i := range 9 {
		f := r.wrap(h.handle, func(o *listener.Options[message]) { o.Queue = fmt.Sprint("queue-", i) })
		wantNil(t, f(ctx, message{"a"}))
	}
	h.want(t, 1)
	other := r.wrap(h.handle, func(o *listener.Options[message]) { o.Scope = "audit" })
	wantNil(t, other(ctx, message{"a"}))
	h.want(t, 2)
}

func TestOneOfManyRacersHandlesAMessage(t *testing.T) {
	for name, eng := range map[string]*engine.Engine{"mem": newRig(t).eng, "bolt": openBolt(t, t.TempDir())} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.eng = eng
			release := make(chan struct{})
			var h counting
			f := r.wrap(func(ctx context.Context, m message) error {
				<-release
				return h.handle(ctx, m)
			}, nil)
			results := make(chan error, 100)
			for range 100 {
				go func() { results <- f(ctx, message{"a"}) }()
			}
			for range 99 { // all but the one that handles it return while it is being handled
				if err := <-results; !errors.Is(err, listener.ErrInProgress) {
					t.Errorf("a delivery of a message that is being handled returns %v", err)
				}
			}
			close(release)
			wantNil(t, <-results)
			h.want(t, 1)
			wantNil(t, f(ctx, message{"a"}))
			h.want(t, 1)
		})
	}
}

func TestClaimsOfAListenerSurviveARestart(t *testing.T) {
	r, dir := newRig(t), t.TempDir()
	r.eng = openBolt(t, dir)
	var h counting
	f := r.wrap(h.handle, nil)
	wantNil(t, f(ctx, message{"handled"}))
	h.err = errHandler
	if err := f(ctx, message{"failed"}); !errors.Is(err, errHandler) {
		t.Fatal(err)
	}
	wantNil(t, r.eng.Close())
	if err := f(ctx, message{"handled"}); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("with a closed engine a delivery returns %v", err)
	}
	r.eng, h.err = openBolt(t, dir), nil
	f = r.wrap(h.handle, nil)
	wantNil(t, f(ctx, message{"handled"}))
	h.want(t, 2)
	wantNil(t, f(ctx, message{"failed"}))
	h.want(t, 3)
}

func openBolt(t *testing.T, dir string) *engine.Engine {
	t.Helper()
	store, err := bolt.Open(dir, bolt.Options{})
	if err != nil {
		t.Fatal(err)
	}
	eng := open(t, store)
	t.Cleanup(func() { _ = eng.Close() })
	return eng
}

func TestAMessageWhoseHandlerFailedIsHandledWhenItIsDeliveredAgain(t *testing.T) {
	r := newRig(t)
	h := counting{err: errHandler}
	f := r.wrap(h.handle, nil)
	for range 2 {
		if err := f(ctx, message{"a"}); !errors.Is(err, errHandler) {
			t.Fatalf("the delivery returns %v", err)
		}
	}
	h.err = nil
	wantNil(t, f(ctx, message{"a"}))
	wantNil(t, f(ctx, message{"a"}))
	h.want(t, 3)
	r.wantCount("failed", 2)
	r.wantCount("handled", 1)
}

func TestAMessageWhoseHandlerPanickedIsHandledWhenItIsDeliveredAgain(t *testing.T) {
	for _, atMostOnce := range []bool{false, true} {
		r := newRig(t)
		var h counting
		panics := true
		f := r.wrap(func(ctx context.Context, m message) error {
			_ = h.handle(ctx, m)
			if panics {
				panic("planted")
			}
			return nil
		}, func(o *listener.Options[message]) { o.AtMostOnce = atMostOnce })
		func() {
			defer func() {
				if recover() != "planted" {
					t.Error("the panic does not reach the caller")
				}
			}()
			_ = f(ctx, message{"a"})
		}()
		panics = false
		wantNil(t, f(ctx, message{"a"}))
		r.wantCount("failed", 1)
		if atMostOnce {
			h.want(t, 1)
		} else {
			h.want(t, 2)
		}
	}
}

func TestAMessageIsHandledWhenTheQueueShutsDown(t *testing.T) {
	r := newRig(t)
	stopping, stop := context.WithCancel(ctx)
	var h counting
	f := r.wrap(func(ctx context.Context, m message) error {
		stop()
		<-ctx.Done()
		return h.handle(ctx, m)
	}, nil)
	wantNil(t, f(stopping, message{"a"}))
	if err := f(stopping, message{"b"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a delivery after the shutdown returns %v", err)
	}
	wantNil(t, r.wrap(h.handle, nil)(ctx, message{"a"}))
	h.want(t, 1)
}

func TestAtMostOnceKeepsTheClaimInAnyCase(t *testing.T) {
	r := newRig(t)
	h := counting{err: errHandler}
	f := r.wrap(h.handle, func(o *listener.Options[message]) { o.AtMostOnce = true })
	if err := f(ctx, message{"a"}); !errors.Is(err, errHandler) {
		t.Fatalf("the delivery returns %v", err)
	}
	wantNil(t, f(ctx, message{"a"}))
	crashing := r.wrap(func(context.Context, message) error {
		r.crash()
		return errHandler
	}, func(o *listener.Options[message]) { o.AtMostOnce = true })
	if err := crashing(ctx, message{"b"}); !errors.Is(err, errHandler) {
		t.Fatal(err)
	}
	crashed := r.wrap(h.handle, func(o *listener.Options[message]) { o.AtMostOnce = true })
	wantNil(t, crashed(ctx, message{"b"}))
	h.want(t, 1)
	r.wantCount("failed", 2)
	r.wantCount("duplicate", 2)
}

func TestAMessageThatCannotBeJudgedIsRejectedWithFailOpenToo(t *testing.T) {
	for _, failOpen := range []bool{false, true} {
		r := newRig(t)
		var h counting
		f := r.wrap(h.handle, func(o *listener.Options[message]) { o.FailOpen = failOpen })
		var bad *engine.EventError
		if err := f(ctx, message{""}); !errors.As(err, &bad) || bad.Field != "id" {
			t.Errorf("a message without an id returns %v", err)
		}
		h.want(t, 0)
		r.wantCount("refused", 1)
	}
}

func TestNamesThatAreNotUTF8CanBeScraped(t *testing.T) {
	r := newRig(t)
	f := r.wrap(func(context.Context, message) error { return nil }, func(o *listener.Options[message]) { o.Scope, o.Queue = "s\xff", "q\xff" })
	if err := f(ctx, message{"a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.reg.Gather(); err != nil {
		t.Error(err)
	}
}

func TestWrapRejectsOptionsThatCannotWork(t *testing.T) {
	r := newRig(t)
	var h counting
	for want, o := range map[string]listener.Options[message]{
		"Options.ID":     {},
		"Options.Scope":  {ID: idOf, Scope: " "},
		"Options.Queue":  {ID: idOf, Queue: strings.Repeat("q", limits.TopicBytes+1)},
		"Options.Window": {ID: idOf, Window: -time.Hour},
		"Options.Lease":  {ID: idOf, Lease: time.Millisecond},
	} {
		o.Telemetry.Logger = slog.New(slog.DiscardHandler)
		if _, err := listener.Wrap(r.eng, h.handle, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v", want, err)
		}
	}
	if _, err := listener.Wrap(nil, func(context.Context, message) error { return nil }, listener.Options[message]{ID: idOf}); err == nil {
		t.Error("a nil engine is accepted")
	}
	if _, err := listener.Wrap(r.eng, nil, listener.Options[message]{ID: idOf}); err == nil {
		t.Error("a nil handler is accepted")
	}
}
