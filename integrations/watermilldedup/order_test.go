package watermilldedup_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/sony/gobreaker"

	"github.com/hapax-dev/hapax/engine/bolt"
	"github.com/hapax-dev/hapax/integrations/watermilldedup"
)

// The context of a message ends at its acknowledgement, which InstantAck sends first.
func TestNoMessageIsLostWithInstantAck(t *testing.T) {
	for name, order := range map[string]func(dedup message.HandlerMiddleware) []message.HandlerMiddleware{
		"outside": func(dedup message.HandlerMiddleware) []message.HandlerMiddleware {
			return []message.HandlerMiddleware{middleware.InstantAck, dedup}
		},
		"inside": func(dedup message.HandlerMiddleware) []message.HandlerMiddleware {
			return []message.HandlerMiddleware{dedup, middleware.InstantAck}
		},
	} {
		t.Run(name, func(t *testing.T) {
			const messages = 500
			eng := open(t, must(bolt.Open(filepath.Join(t.TempDir(), "keys"), bolt.Options{})))
			var mu sync.Mutex
			calls := map[string]int{}
			var deliveries sync.WaitGroup
			deliveries.Add(messages)
			counted := func(h message.HandlerFunc) message.HandlerFunc {
				return func(m *message.Message) ([]*message.Message, error) {
					defer deliveries.Done()
					return h(m)
				}
			}
			b := newBroker(t, append([]message.HandlerMiddleware{counted}, order(dedup(t, eng, nil))...)...)
			b.router.AddConsumerHandler("h", "in", b, func(m *message.Message) error {
				if err := m.Context().Err(); err != nil {
					t.Errorf("the handler's context has ended: %v", err)
				}
				mu.Lock()
				defer mu.Unlock()
				calls[m.UUID]++
				return nil
			})
			b.run(t)
			for i := range messages {
				b.send(t, fmt.Sprint(i))
			}
			deliveries.Wait()
			if len(calls) != messages {
				t.Errorf("%d of %d messages were lost", messages-len(calls), messages)
			}
		})
	}
}

// acknowledged returns a message that was acknowledged early, as InstantAck does: its Pub/Sub has
// ended its context.
func acknowledged(uuid string) *message.Message {
	m := message.NewMessage(uuid, nil)
	ctx, cancel := context.WithCancel(context.Background())
	m.SetContext(ctx)
	m.Ack()
	cancel()
	return m
}

func TestAnAcknowledgedMessageIsHandledAlthoughItsContextHasEnded(t *testing.T) {
	handle, calls := answering(0)
	h := dedup(t, inMemory(t), nil)(handle)
	for range 2 {
		if produced, err := h(acknowledged("a")); err != nil || len(produced) != 1 {
			t.Errorf("%v, %v", produced, err)
		}
	}
	if calls.Load() != 1 {
		t.Errorf("%d calls", calls.Load())
	}
	m := acknowledged("b")
	ctx, cancel := context.WithDeadline(context.Background(), time.Now())
	defer cancel()
	m.SetContext(ctx)
	if _, err := h(m); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after its deadline: %v", err)
	}
	m = message.NewMessage("c", nil) // its Pub/Sub shuts down and delivers it again
	ctx, cancel = context.WithCancel(context.Background())
	cancel()
	m.SetContext(ctx)
	if _, err := h(m); !errors.Is(err, context.Canceled) {
		t.Errorf("not acknowledged: %v", err)
	}
}

// If the first run fails, the second delivery, which nothing delivers again, is handled.
func TestAnAcknowledgedMessageWaitsForTheEndOfAnotherRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		started := make(chan struct{})
		h := dedup(t, inMemory(t), nil)(func(*message.Message) ([]*message.Message, error) {
			if calls++; calls == 1 {
				close(started)
				time.Sleep(5 * time.Minute)
				return nil, errHandler
			}
			return nil, nil
		})
		var first sync.WaitGroup
		first.Go(func() {
			if _, err := h(acknowledged("a")); !errors.Is(err, errHandler) {
				t.Error(err)
			}
		})
		<-started
		if _, err := h(acknowledged("a")); err != nil || calls != 2 {
			t.Errorf("%v, %d calls", err, calls)
		}
		first.Wait()
	})
}

func TestASecondDeliveryIsNeitherPoisonedNorCountedAsAFailure(t *testing.T) {
	poisoned := &inbox{}
	poison := must(middleware.PoisonQueue(poisoned, "poison"))
	breaker := middleware.NewCircuitBreaker(gobreaker.Settings{ReadyToTrip: func(c gobreaker.Counts) bool { return c.TotalFailures > 0 }})
	for name, outer := range map[string]message.HandlerMiddleware{"PoisonQueue": poison, "CircuitBreaker": breaker.Middleware} {
		t.Run(name, func(t *testing.T) {
			var h message.HandlerFunc
			h = outer(dedup(t, inMemory(t), nil)(func(m *message.Message) ([]*message.Message, error) {
				for range 3 {
					second := message.NewMessage("a", nil)
					if produced, err := h(second); produced != nil || err != nil {
						t.Errorf("%v, %v", produced, err)
					}
					select {
					case <-second.Nacked():
					default:
						t.Error("the second delivery is not nacked")
					}
					if second.Ack() {
						t.Error("the router can still acknowledge it")
					}
				}
				return nil, nil
			}))
			if _, err := deliver(h, "a"); err != nil {
				t.Error(err)
			}
		})
	}
	if len(poisoned.got) > 0 {
		t.Errorf("poisoned: %v", poisoned.got)
	}
}

// The requeued message has the metadata of its first poisoning, and fails in the same way.
func TestAMessageThatWasPoisonedInsideIsHandledWhenItIsRequeued(t *testing.T) {
	var poisoned []*message.Message
	poison := must(middleware.PoisonQueue(publisher(func(m *message.Message) { poisoned = append(poisoned, m) }), "poison"))
	handle, calls := answering(2)
	h := dedup(t, inMemory(t), nil)(poison(handle))
	if _, err := deliver(h, "a"); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if len(poisoned) <= i {
			t.Fatalf("%d messages in the poison queue after %d failures", len(poisoned), i+1)
		}
		requeued := poisoned[i].Copy()
		produced, err := h(requeued)
		if err != nil || len(produced) != i {
			t.Errorf("requeued: %v, %v", produced, err)
		}
		if !requeued.Equals(poisoned[i]) {
			t.Errorf("requeued with %v, afterwards %v", poisoned[i].Metadata, requeued.Metadata)
		}
	}
	if produced, err := h(poisoned[1].Copy()); err != nil || len(produced) != 1 || len(poisoned) != 2 {
		t.Errorf("a duplicate of the handled message: %v, %v, %d poisoned", produced, err, len(poisoned))
	}
	if calls.Load() != 3 {
		t.Errorf("%d calls", calls.Load())
	}
}

// A publisher is called with each message.
type publisher func(*message.Message)

func (p publisher) Publish(_ string, messages ...*message.Message) error {
	for _, m := range messages {
		p(m)
	}
	return nil
}

func (p publisher) Close() error { return nil }

func TestErrorsOfTheStoreCanBeLeftOutOfThePoisonQueue(t *testing.T) {
	eng := inMemory(t)
	handle, _ := answering(1)
	h := dedup(t, eng, nil)(handle)
	_, err := deliver(h, "a")
	if !errors.Is(err, errHandler) || !watermilldedup.HandlerFailed(err) {
		t.Errorf("%v is not of the handler", err)
	}
	if err := eng.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err = deliver(h, "a"); err == nil || watermilldedup.HandlerFailed(err) {
		t.Errorf("%v is of the handler", err)
	}
	var out inbox
	poison := must(middleware.PoisonQueueWithFilter(&out, "poison", watermilldedup.HandlerFailed))
	if _, err := deliver(poison(h), "a"); err == nil || len(out.got) > 0 {
		t.Errorf("%v, poisoned: %v", err, out.got)
	}
}

// A handler that decrypts in place and fails: Retry, and a redelivery by gochannel, whose copies
// share their payload, get what was sent, under the same key.
func TestAFailedHandlerLeavesTheMessageAsItWasDelivered(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return errHandler },
		"panic": func() error { panic("the handler panicked") },
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			h := dedup(t, inMemory(t), func(o *watermilldedup.Options) {
				o.Key = func(m *message.Message) (string, error) {
					return m.UUID + m.Metadata["id"] + string(m.Payload), nil
				}
			})(func(m *message.Message) ([]*message.Message, error) {
				calls++
				if m.UUID != "a" || m.Metadata["id"] != "7" || string(m.Payload) != "sealed" {
					t.Errorf("attempt %d gets %q, %v, %q", calls, m.UUID, m.Metadata, m.Payload)
				}
				m.UUID = "b"
				m.Metadata["id"] = "8"
				m.Metadata["delayed_for"] = "1s"
				copy(m.Payload, "opened")
				if calls < 3 {
					return nil, fail()
				}
				return nil, nil
			})
			payload := message.Payload("sealed")
			m := message.NewMessage("a", payload)
			m.Metadata["id"] = "7"
			retried := middleware.Recoverer(h)
			for range 2 {
				if _, err := retried(m); err == nil {
					t.Error("the failure is not returned")
				}
			}
			again := message.NewMessage("a", payload)
			again.Metadata["id"] = "7"
			for _, m := range []*message.Message{m, again} {
				if _, err := retried(m); err != nil {
					t.Error(err)
				}
			}
			if calls != 3 {
				t.Errorf("%d calls", calls)
			}
		})
	}
}

// Such as those of DelayOnError, for the broker.
func TestMetadataOfAFailureReachOuterMiddlewares(t *testing.T) {
	delay := middleware.DelayOnError{InitialInterval: time.Second, Multiplier: 2, MaxInterval: time.Minute}
	h := dedup(t, inMemory(t), nil)(delay.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, errHandler }))
	m := message.NewMessage("a", nil)
	var delays []string
	for range 2 {
		_, _ = h(m)
		delays = append(delays, m.Metadata.Get("_watermill_delayed_for"))
	}
	if !slices.Equal(delays, []string{"1s", "2s"}) {
		t.Errorf("%q: %v", delays, m.Metadata)
	}
}

func TestRepositoryClaimsForAMessageThatWasAcknowledged(t *testing.T) {
	r := must(watermilldedup.NewRepository(inMemory(t), "s", time.Hour))
	d := &middleware.Deduplicator{KeyFactory: watermilldedup.UUID, Repository: r, Timeout: time.Minute}
	handle, calls := answering(0)
	h := middleware.InstantAck(d.Middleware(handle))
	for range 2 {
		if _, err := h(acknowledged("a")); err != nil {
			t.Error(err)
		}
	}
	if calls.Load() != 1 {
		t.Errorf("%d calls", calls.Load())
	}
}
