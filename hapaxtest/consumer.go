package hapaxtest

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter"
)

// Group is the consumer group, and the scope of routes that do not name one.
const Group = "hapaxtest"

// A Consumer runs routes for one test. Its methods fail the test that was given to Start, and must
// be called from the goroutine of that test. Those that check something call Wait first.
type Consumer struct {
	t      testing.TB
	broker *kafkatest.Broker
	topics []string // of the routes
	routes []kafkaadapter.Route
	calls  calls
	ahead  atomic.Int64 // of the engine's clock, in nanoseconds
	logs   logs
	life   *life
	past   []verdicts // of the lives that a crash has ended
}

// Start runs a consumer of the routes until the test ends. The broker is always the embedded one,
// and belongs to this test. It has the topics of the routes and their dead-letter topics. Other
// topics are created when a message of the outbox is published to them.
func Start(t testing.TB, routes ...kafkaadapter.Route) *Consumer {
	t.Helper()
	c := &Consumer{t: t, broker: kafkatest.Start(t, kafkatest.Options{Embedded: true, CreateTopics: true})}
	for _, route := range routes {
		route.Mode = c.calls.watch(route.Mode)
		c.routes = append(c.routes, route)
		for _, topic := range route.Topics {
			c.topics = append(c.topics, topic)
			c.createTopic(topic)
			if route.DeadLetters != nil {
				c.createTopic(route.DeadLetters.TopicOf(topic))
			}
		}
	}
	t.Cleanup(func() {
		if c.life != nil {
			c.life.end()
		}
		if t.Failed() {
			t.Logf("the log of the consumer:\n%s", &c.logs)
		}
	})
	c.open(storetest.NewMem(storage.Identity{}))
	return c
}

func (c *Consumer) createTopic(topic string) {
	c.t.Helper()
	if !c.broker.HasTopic(c.t, topic) { // several topics may have the same dead-letter topic
		c.broker.CreateNamed(c.t, topic, 1, nil)
	}
}

// open begins to consume with a store.
func (c *Consumer) open(store *storetest.Mem) {
	c.t.Helper()
	l, err := begin(store, c.routes, c.broker.ClientOptions(), &c.logs, c.now)
	if err != nil {
		c.t.Fatal("hapaxtest: starting the consumer: ", err)
	}
	c.life = l
}

// crash cuts the power and begins again with what the store has synced.
func (c *Consumer) crash() {
	c.t.Helper()
	after := c.life.store.Crash()
	c.life.end()
	c.past = append(c.past, c.life.verdicts(c.t, c.topics))
	c.open(after)
}

// Advance moves the clock of the engine by d, and no other clock (see the package documentation).
func (c *Consumer) Advance(d time.Duration) { c.ahead.Add(int64(d)) }

func (c *Consumer) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// Engine returns the engine of the consumer. After a crash there is another one.
func (c *Consumer) Engine() *engine.Engine { return c.life.eng }

// ClientOptions returns the address of the broker for a client of the test.
func (c *Consumer) ClientOptions() []kgo.Opt { return c.broker.ClientOptions() }

// Calls returns the calls of handlers that have returned so far, in the order in which they
// returned. It does not wait. A crash removes none of them.
func (c *Consumer) Calls() []Call { return c.calls.list() }

// Wait returns when the consumer is done with all records of its topics: their handlers have
// succeeded, or dead letters are published, or policies have rejected them; and all messages of the
// outbox that are due are published. It fails the test after a minute, and at once if the consumer
// has ended with an error.
func (c *Consumer) Wait() {
	c.t.Helper()
	c.until("the consumer to be done with all records", c.isDone)
}

// patience bounds the waits. It is long, because the machine may be busy.
const patience = time.Minute

// until waits for a condition, and fails the test if it does not come about.
func (c *Consumer) until(what string, condition func() bool) {
	c.t.Helper()
	var ended error
	held := kafkatest.Within(patience, func() bool {
		ended = c.life.failure()
		return ended != nil || condition()
	})
	switch {
	case ended != nil:
		c.t.Fatalf("hapaxtest: waiting for %s: the consumer has ended: %v", what, ended)
	case !held:
		c.t.Fatalf("hapaxtest: waited %v for %s: %v; the last call of a handler returned: %v", patience, what, c.life.consumer.Ready(), c.calls.last().Err)
	}
}

// isDone reports whether all partitions are read, and no record, dead letter or message is left.
func (c *Consumer) isDone() bool {
	c.t.Helper()
	if c.life.consumer.Ready() != nil {
		return false
	}
	ends := c.ends()
	for i, topic := range c.topics {
		if c.life.stored(c.t, topic) < ends[i] || c.verdicts()[topic].total() < ends[i] {
			return false
		}
	}
	if c.life.hasLetters(c.t) || c.life.dueMessages(c.t) > 0 {
		return false
	}
	return slices.Equal(ends, c.ends()) // a message may have been published to a topic of a route
}

// ends returns the ends of the logs of the routes' topics.
func (c *Consumer) ends() []int64 {
	c.t.Helper()
	ends := make([]int64, len(c.topics))
	for i, topic := range c.topics {
		ends[i] = c.broker.Log(c.t, topic, 0).End
	}
	return ends
}

// verdicts returns those of all lives, by topic.
func (c *Consumer) verdicts() verdicts {
	c.t.Helper()
	all := c.life.verdicts(c.t, c.topics)
	for _, past := range c.past {
		all.add(past)
	}
	return all
}

// background is for calls that take no time: the store is in memory.
var background = context.Background()
