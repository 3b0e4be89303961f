package outbox

import (
	"context"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/entry"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// A brokenClient cannot publish to one topic, and cannot abort a transaction: aborting is called, and
// the relay must make its client again.
type brokenClient struct {
	*kgo.Client
	topic    string
	aborting func()
}

func (c *brokenClient) Produce(ctx context.Context, r *kgo.Record, promise func(*kgo.Record, error)) {
	if r.Topic == c.topic {
		promise(r, errDown)
		return
	}
	c.Client.Produce(ctx, r, promise)
}

func (c *brokenClient) EndTransaction(ctx context.Context, how kgo.TransactionEndTry) error {
	if how == kgo.TryAbort {
		c.aborting()
		return errDown
	}
	return c.Client.EndTransaction(ctx, how)
}

// reconnect makes a relay that publishes 20 messages after one to a topic that fails, in one
// transaction, and makes its client again. aborting is called before that.
func (r *rig) reconnect(t *testing.T, aborting func(b *kafkatest.Broker, o Options)) (s *session, publish func() map[string]int) {
	t.Helper()
	b := kafkatest.Start(t, kafkatest.Options{})
	o := modes(t, b)["exactly once"]
	o.Clock = r.clock
	topic, broken := b.CreateTopic(t, 3, nil), b.CreateTopic(t, 1, nil)
	relay, err := New(r.eng, o)
	if err != nil {
		t.Fatal(err)
	}
	toBroken := func() {
		if err := r.eng.Update(ctx, func(tx *engine.Tx) error {
			_, err := tx.Produce(engine.Message{Topic: broken})
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	dial := relay.shared.dial
	relay.shared.dial = func(o ...kgo.Opt) (client, error) {
		c, err := dial(o...)
		if err != nil {
			return nil, err
		}
		return &brokenClient{c.(*kgo.Client), broken, func() { toBroken(); aborting(b, relay.shared.opt) }}, nil
	}
	s = &session{connection: connection{shared: relay.shared}, queue: newQueue(relay.shared)}
	if _, err := s.connection.shared.lease.take(ctx, r.eng); err != nil {
		t.Fatal(err)
	}
	if err := s.load(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.connection.abandon()
		s.connection.shared.closing.Wait()
	})
	toBroken()
	produceN(t, r.eng, topic, 0, 20)
	first := s.connection.client
	r.step(s)
	if s.connection.client == first {
		t.Fatal("the client was not made again")
	}
	return s, func() map[string]int {
		r.step(s)
		return readIDs(t, b, topic)
	}
}

// What the transaction has left is published without the next message that fails.
func TestQueueIsKeptWhenTheClientIsMadeAgain(t *testing.T) {
	r := newRig(t)
	_, publish := r.reconnect(t, func(*kafkatest.Broker, Options) {})
	if lost, doubled := tally(20, publish()); lost != 0 || doubled != 0 {
		t.Errorf("%d of 20 messages are not published, %d are doubled", lost, doubled)
	}
}

// A relay of a copy of the store has published one of them meanwhile.
func TestQueueIsReadAgainIfAnEntryWasPublishedMeanwhile(t *testing.T) {
	r := newRig(t)
	s, publish := r.reconnect(t, func(b *kafkatest.Broker, o Options) {
		p := r.progress(o)
		published := &item{Entry: entry.Entry{ID: "0"}, key: entry.ReadyKey(2)}
		r.publishProgress(b, p, kgo.TryCommit, published)
	})
	for range 3 { // the first one fails again
		r.clock.advance(s.connection.shared.opt.Interval)
		r.step(s)
	}
	seen := publish()
	for i := range 20 {
		if id := fmt.Sprint(i); seen[id] != min(i, 1) {
			t.Errorf("message %s is published %d times", id, seen[id])
		}
	}
}

// The client is made again in the middle of a batch, for a large message. A relay of a copy of the store
// has published one of the batch meanwhile.
func TestBatchIsTakenAgainIfAnEntryOfItWasPublishedMeanwhile(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	o := modes(t, b)["exactly once"]
	r := newRig(t)
	o.Clock = r.clock
	topic := b.CreateTopic(t, 3, map[string]string{"max.message.bytes": "4194304", "segment.bytes": "16777216"})
	relay, err := New(r.eng, o)
	if err != nil {
		t.Fatal(err)
	}
	read := relay.shared.limits.read
	relay.shared.limits.read = func(ctx context.Context, topics []string) (map[string]int32, map[string]error) {
		r.publishProgress(b, r.progress(o), kgo.TryCommit, &item{Entry: entry.Entry{ID: "0"}, key: entry.ReadyKey(1)})
		return read(ctx, topics)
	}
	s := &session{connection: connection{shared: relay.shared}, queue: newQueue(relay.shared)}
	if _, err := relay.shared.lease.take(ctx, r.eng); err != nil {
		t.Fatal(err)
	}
	if err := s.load(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.connection.abandon()
		s.connection.shared.closing.Wait()
	})
	produceN(t, r.eng, topic, 0, 20)
	send(t, r.eng, engine.Message{ID: "large", Topic: topic, Value: make([]byte, 2<<20)})
	for range 2 {
		r.step(s)
	}
	seen := readIDs(t, b, topic)
	for i := range 20 {
		if id := fmt.Sprint(i); seen[id] != min(i, 1) {
			t.Errorf("message %s is published %d times", id, seen[id])
		}
	}
	if seen["large"] != 1 || pending(t, r.eng) != 0 {
		t.Errorf("the large message is published %d times, %d are pending", seen["large"], pending(t, r.eng))
	}
}
