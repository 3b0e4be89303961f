package watermilldedup_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/bolt"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/integrations/watermilldedup"
	"github.com/hapax-dev/hapax/listener"
)

// Thirty messages are sent three times each, at the same time; the first ten attempts fail.
func TestRouterHandlesEachMessageOnce(t *testing.T) {
	for name, store := range map[string]storage.Store{
		"memory": storetest.NewMem(storage.Identity{}),
		"bbolt":  must(bolt.Open(filepath.Join(t.TempDir(), "keys"), bolt.Options{})),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBroker(t, dedup(t, open(t, store), nil))
			handle, calls := answering(10)
			out := &inbox{}
			b.router.AddHandler("h", "in", b, "out", out, handle)
			b.run(t)
			var senders sync.WaitGroup
			for i := range 90 {
				senders.Go(func() { b.send(t, fmt.Sprint(i%30)) })
			}
			senders.Wait()
			if calls.Load() != 40 {
				t.Errorf("the handler was called %d times", calls.Load())
			}
			if len(out.got) != 30 {
				t.Errorf("%d messages were published", len(out.got))
			}
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// The router publishes after the handler has succeeded, and nacks the message if that fails.
func TestMessagesThatWereNotPublishedArePublishedOnTheNextDelivery(t *testing.T) {
	b := newBroker(t, dedup(t, inMemory(t), nil))
	handle, calls := answering(0)
	out := &inbox{failures: 3}
	b.router.AddHandler("h", "in", b, "out", out, handle)
	b.run(t)
	b.send(t, "a")
	if calls.Load() != 1 || len(out.got) != 1 {
		t.Fatalf("%d calls, published: %v", calls.Load(), out.got)
	}
	b.send(t, "a")
	for uuid, payloads := range out.got {
		if len(payloads) != 2 || payloads[0] != "answer a" || payloads[0] != payloads[1] {
			t.Errorf("%s: %q", uuid, payloads)
		}
	}
	if calls.Load() != 1 || len(out.got) != 1 {
		t.Errorf("%d calls, published: %v", calls.Load(), out.got)
	}
}

func TestEachHandlerGetsTheMessageUnlessTheyShareTheirClaims(t *testing.T) {
	for _, shared := range []bool{false, true} {
		b := newBroker(t, dedup(t, inMemory(t), func(o *watermilldedup.Options) { o.Shared = shared }))
		var calls atomic.Int64
		for _, name := range []string{"one", "two"} {
			b.router.AddConsumerHandler(name, "in", b, func(*message.Message) error { calls.Add(1); return nil })
		}
		b.run(t)
		for range 2 {
			b.send(t, "a")
		}
		if want := map[bool]int64{false: 2, true: 1}[shared]; calls.Load() != want {
			t.Errorf("shared %v: %d calls", shared, calls.Load())
		}
	}
}

// deliver calls a handler through the middleware as the router does. It returns
// listener.ErrInProgress if the message was nacked without an error.
func deliver(h message.HandlerFunc, uuid string) ([]*message.Message, error) {
	return deliverMessage(h, message.NewMessage(uuid, nil))
}

func deliverMessage(h message.HandlerFunc, m *message.Message) ([]*message.Message, error) {
	produced, err := h(m)
	select {
	case <-m.Nacked():
		return produced, errors.Join(err, listener.ErrInProgress)
	default:
		return produced, err
	}
}

func TestPowerFailureBeforeTheClaimIsFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := storetest.NewMem(storage.Identity{})
		var after *storetest.Mem
		dying := dedup(t, open(t, m), nil)(func(*message.Message) ([]*message.Message, error) {
			after = m.Crash()
			return nil, nil
		})
		if _, err := deliver(dying, "a"); err == nil {
			t.Fatal("a process that is dead acknowledges the message")
		}
		handle, calls := answering(0)
		h := dedup(t, open(t, after), nil)(handle)
		time.Sleep(listener.DefaultLease - time.Millisecond)
		if _, err := deliver(h, "a"); !errors.Is(err, listener.ErrInProgress) {
			t.Errorf("before the end of the lease: %v", err)
		}
		time.Sleep(time.Millisecond)
		race(t, h, 1000)
		if calls.Load() != 1 {
			t.Errorf("%d calls", calls.Load())
		}
	})
}

// race delivers message "a" n times at once, each until it is acknowledged. All get the same
// result.
func race(t *testing.T, h message.HandlerFunc, n int) {
	t.Helper()
	var racers sync.WaitGroup
	answers := make([]string, n)
	for i := range n {
		racers.Go(func() {
			produced, err := deliver(h, "a")
			for ; errors.Is(err, listener.ErrInProgress); produced, err = deliver(h, "a") {
				time.Sleep(time.Second)
			}
			if err != nil || len(produced) != 1 {
				t.Errorf("%v, %v", produced, err)
				return
			}
			answers[i] = produced[0].UUID
		})
	}
	racers.Wait()
	if slices.Sort(answers); answers[0] != answers[n-1] {
		t.Errorf("%q and %q", answers[0], answers[n-1])
	}
}

func TestPowerFailureAfterTheHandlerSucceeded(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	handle, calls := answering(0)
	first, err := deliver(dedup(t, open(t, m), nil)(handle), "a")
	if err != nil {
		t.Fatal(err)
	}
	again, err := deliver(dedup(t, open(t, m.CrashClone(0)), nil)(handle), "a") // before the acknowledgement
	if err != nil || calls.Load() != 1 || len(again) != 1 || again[0].UUID != first[0].UUID {
		t.Errorf("%v after %v, %d calls, %v", again, first, calls.Load(), err)
	}
}

func TestAMessageThatIsBeingHandledIsNackedAfterTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h message.HandlerFunc
		h = dedup(t, inMemory(t), func(o *watermilldedup.Options) { o.NackDelay = time.Minute })(
			func(*message.Message) ([]*message.Message, error) {
				began := time.Now()
				if _, err := deliver(h, "a"); !errors.Is(err, listener.ErrInProgress) || time.Since(began) != time.Minute {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				m := message.NewMessage("a", nil)
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				m.SetContext(ctx)
				began = time.Now()
				if _, err := deliverMessage(h, m); !errors.Is(err, listener.ErrInProgress) || time.Since(began) != time.Second {
					t.Errorf("a context that ends: %v after %v", err, time.Since(began))
				}
				return nil, nil
			})
		if _, err := deliver(h, "a"); err != nil {
			t.Error(err)
		}
	})
}

// A jump of the clock simulates a process that was paused for longer than its lease.
func TestTheMessagesContextEndsWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{
			Clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer eng.Close()
		var h message.HandlerFunc
		calls := 0
		h = dedup(t, eng, nil)(func(m *message.Message) ([]*message.Message, error) {
			if calls++; calls == 1 {
				ahead.Store(int64(listener.DefaultLease))
				if _, err := deliver(h, "a"); err != nil {
					t.Error(err)
				}
				<-m.Context().Done()
				if err := context.Cause(m.Context()); !errors.Is(err, engine.ErrLeaseLost) {
					t.Error(err)
				}
			}
			return nil, nil
		})
		m := message.NewMessage("a", nil)
		if _, err := h(m); !errors.Is(err, engine.ErrLeaseLost) || calls != 2 {
			t.Errorf("%v after %d calls", err, calls)
		}
		if m.Context().Err() != nil {
			t.Error("the message keeps the context of its lease")
		}
	})
}

func TestKeys(t *testing.T) {
	handle, calls := answering(0)
	h := dedup(t, inMemory(t), nil)(handle)
	if _, err := deliver(h, ""); err == nil {
		t.Error("a message without a UUID is handled")
	}
	byField := dedup(t, inMemory(t), func(o *watermilldedup.Options) {
		o.Key = middleware.NewMessageHasherFromMetadataField("id")
	})(handle)
	if _, err := deliver(byField, "a"); err == nil {
		t.Error("a message without its field is handled")
	}
	for _, uuid := range []string{"a", "b"} {
		m := message.NewMessage(uuid, nil)
		m.Metadata.Set("id", "7")
		if _, err := byField(m); err != nil {
			t.Error(err)
		}
	}
	if calls.Load() != 1 {
		t.Errorf("%d calls", calls.Load())
	}
}

func TestProducedMessagesAreReturnedUnchanged(t *testing.T) {
	produced := []*message.Message{
		message.NewMessage("", nil), message.NewMessage("\x00\xff", message.Payload("p\x00")), message.NewMessage("empty", message.Payload{}),
	}
	produced[1].Metadata = message.Metadata{"": "empty", "k": "", "l": "\xff"}
	h := dedup(t, inMemory(t), nil)(func(*message.Message) ([]*message.Message, error) { return produced, nil })
	for range 2 {
		got, err := deliver(h, "a")
		if err != nil || len(got) != len(produced) {
			t.Fatalf("%v, %v", got, err)
		}
		for i, m := range got {
			if !m.Equals(produced[i]) || (m.Payload == nil) != (produced[i].Payload == nil) {
				t.Errorf("%d: %#v, want %#v", i, m.Payload, produced[i].Payload)
			}
		}
	}
	large := message.NewMessage("large", message.Payload(strings.Repeat("x", limits.DataBytes)))
	h = dedup(t, inMemory(t), nil)(func(*message.Message) ([]*message.Message, error) { return []*message.Message{large}, nil })
	if _, err := deliver(h, "a"); err == nil || errors.Is(err, listener.ErrInProgress) {
		t.Errorf("messages that cannot be stored: %v", err)
	}
}

func TestAScopeOfAnotherPackageIsAnError(t *testing.T) {
	eng := inMemory(t)
	other, err := listener.WrapResult(eng, func(context.Context, string) ([]byte, error) { return []byte("?"), nil },
		listener.Options[string]{Scope: watermilldedup.DefaultScope, ID: func(s string) string { return s }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other(t.Context(), "0::a"); err != nil {
		t.Fatal(err)
	}
	handle, calls := answering(0)
	if _, err := deliver(dedup(t, eng, nil)(handle), "a"); err == nil || calls.Load() > 0 {
		t.Errorf("%v, %d calls", err, calls.Load())
	}
}

func TestNewRejectsOptionsThatCannotWork(t *testing.T) {
	for name, f := range map[string]func() error{
		"no key": func() error { _, err := watermilldedup.New(inMemory(t), watermilldedup.Options{}); return err },
		"no engine": func() error {
			_, err := watermilldedup.New(nil, watermilldedup.Options{Key: watermilldedup.UUID})
			return err
		},
		"no scope":   func() error { _, err := watermilldedup.NewRepository(inMemory(t), "", time.Hour); return err },
		"no window":  func() error { _, err := watermilldedup.NewRepository(inMemory(t), "s", 0); return err },
		"no engine ": func() error { _, err := watermilldedup.NewRepository(nil, "s", time.Hour); return err },
	} {
		if f() == nil {
			t.Error(name)
		}
	}
}
