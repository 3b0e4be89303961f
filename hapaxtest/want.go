package hapaxtest

import (
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// State returns the value of an application key; found is false if the store does not have the key.
func (c *Consumer) State(key string) (value []byte, found bool) {
	c.t.Helper()
	c.Wait()
	value, found, err := c.life.eng.Get(background, []byte(key))
	if err != nil {
		c.t.Fatalf("hapaxtest: reading the key %q: %v", key, err)
	}
	return value, found
}

// WantState fails the test unless an application key has this value.
func (c *Consumer) WantState(key, want string) {
	c.t.Helper()
	switch value, found := c.State(key); {
	case !found:
		c.t.Errorf("the key %q is not in the store, want %q", key, want)
	case string(value) != want:
		c.t.Errorf("the key %q has the value %q, want %q", key, value, want)
	}
}

// WantNoState fails the test if the store has an application key.
func (c *Consumer) WantNoState(key string) {
	c.t.Helper()
	if value, found := c.State(key); found {
		c.t.Errorf("the key %q has the value %q, want none", key, value)
	}
}

// WantInt64 fails the test unless an application key has this sum (engine.Tx.Add). A key that does
// not exist has the sum 0.
func (c *Consumer) WantInt64(key string, want int64) {
	c.t.Helper()
	var got int64
	if value, found := c.State(key); found {
		var err error
		if got, err = engine.DecodeInt64(value); err != nil {
			c.t.Errorf("the key %q is no sum: %v", key, err)
			return
		}
	}
	if got != want {
		c.t.Errorf("the key %q has the sum %d, want %d", key, got, want)
	}
}

// Records returns all records of a topic, such as dead letters or messages; none if the topic does
// not exist.
func (c *Consumer) Records(topic string) []*kgo.Record {
	c.t.Helper()
	c.Wait()
	if !c.broker.HasTopic(c.t, topic) {
		return nil
	}
	n := int(c.broker.Log(c.t, topic, 0).End)
	if n == 0 {
		return nil
	}
	client := c.broker.Client(c.t, kgo.ConsumeTopics(topic), kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()))
	defer client.Close()
	return kafkatest.Consume(c.t, client, n)
}

// A Letter is what WantLetters compares of a dead letter.
type Letter struct {
	Reason deadletter.Reason
	Value  string
}

// WantLetters fails the test unless a dead-letter topic, such as payments-dlt, has exactly these
// letters, in this order.
func (c *Consumer) WantLetters(topic string, want ...Letter) {
	c.t.Helper()
	var got []Letter
	for _, r := range c.Records(topic) {
		got = append(got, Letter{deadletter.ReasonOf(r), string(r.Value)})
	}
	if !slices.Equal(got, want) {
		c.t.Errorf("the topic %s has the dead letters %q, want %q", topic, got, want)
	}
}

// WantMessages fails the test unless exactly the messages with these values were published to a
// topic (engine.Tx.Produce), in any order: only messages of one key have one.
func (c *Consumer) WantMessages(topic string, want ...string) {
	c.t.Helper()
	var got []string
	for _, r := range c.Records(topic) {
		got = append(got, string(r.Value))
	}
	want = slices.Sorted(slices.Values(want))
	if slices.Sort(got); !slices.Equal(got, want) {
		c.t.Errorf("the topic %s has the messages %q, want %q", topic, got, want)
	}
}

// WantVerdicts fails the test unless the records of a topic have exactly these verdicts. A
// verdict counts if its batch has committed. A record has none if it has no usable id, or if it
// became a dead letter because its handler failed.
func (c *Consumer) WantVerdicts(topic string, want map[engine.Verdict]int) {
	c.t.Helper()
	c.Wait()
	if !slices.Contains(c.topics, topic) {
		c.t.Fatalf("hapaxtest: no route consumes the topic %q", topic)
	}
	if got := c.verdicts()[topic].judged; !maps.Equal(got, want) {
		c.t.Errorf("the records of %s have the verdicts %v, want %v", topic, got, want)
	}
}

// WantCalls fails the test unless the handler was called n times for the event with this id. Calls
// before a crash count.
func (c *Consumer) WantCalls(id string, n int) {
	c.t.Helper()
	c.Wait()
	calls := slices.DeleteFunc(c.Calls(), func(call Call) bool { return call.ID != id })
	if len(calls) != n {
		c.t.Errorf("the handler was called %d times for the event %q, want %d: %+v", len(calls), id, n, calls)
	}
}
