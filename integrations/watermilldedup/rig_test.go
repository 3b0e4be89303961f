package watermilldedup_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/integrations/watermilldedup"
	"github.com/hapax-dev/hapax/telemetry"
)

var errHandler = errors.New("the handler failed")

var quiet = slog.New(slog.DiscardHandler)

func open(t *testing.T, store storage.Store) *engine.Engine {
	t.Helper()
	eng, err := engine.Open(store, engine.Options{ExpectedPerWeek: 1000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() })
	return eng
}

func inMemory(t *testing.T) *engine.Engine {
	t.Helper()
	return open(t, storetest.NewMem(storage.Identity{}))
}

// dedup makes the middleware; change may be nil.
func dedup(t *testing.T, eng *engine.Engine, change func(*watermilldedup.Options)) message.HandlerMiddleware {
	t.Helper()
	o := watermilldedup.Options{Key: watermilldedup.UUID, NackDelay: -1, Telemetry: telemetry.Options{Logger: quiet}}
	if change != nil {
		change(&o)
	}
	m, err := watermilldedup.New(eng, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A broker is a router on channels.
type broker struct {
	*gochannel.GoChannel
	router *message.Router
}

func newBroker(t *testing.T, middlewares ...message.HandlerMiddleware) *broker {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	router.AddMiddleware(middlewares...)
	b := &broker{gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, nil), router}
	t.Cleanup(func() { b.Close() })
	return b
}

// run starts the router, and stops it at the end of the test.
func (b *broker) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := b.router.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	<-b.router.Running()
}

// send publishes a message with that UUID, and returns once it is acknowledged.
func (b *broker) send(t *testing.T, uuid string) {
	t.Helper()
	if err := b.Publish("in", message.NewMessage(uuid, message.Payload("payload of "+uuid))); err != nil {
		t.Error(err)
	}
}

// An inbox collects the messages that are published to it; its first failures publications fail.
type inbox struct {
	mu       sync.Mutex
	failures int
	got      map[string][]string // UUID to payloads
}

func (i *inbox) Publish(_ string, messages ...*message.Message) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.failures > 0 {
		i.failures--
		return errors.New("the broker does not answer")
	}
	if i.got == nil {
		i.got = map[string][]string{}
	}
	for _, m := range messages {
		i.got[m.UUID] = append(i.got[m.UUID], string(m.Payload)+" "+m.Metadata["from"])
	}
	return nil
}

func (i *inbox) Close() error { return nil }

// answering returns a handler that produces one message for each; its first failures calls fail.
func answering(failures int64) (message.HandlerFunc, *atomic.Int64) {
	calls := new(atomic.Int64)
	return func(m *message.Message) ([]*message.Message, error) {
		if calls.Add(1) <= failures {
			return nil, errHandler
		}
		answer := message.NewMessage(watermill.NewUUID(), message.Payload("answer"))
		answer.Metadata.Set("from", m.UUID)
		return []*message.Message{answer}, nil
	}, calls
}
