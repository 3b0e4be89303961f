package hapaxtest_test

import (
	"context"
	"errors"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/hapaxtest"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// A bank adds payments to balances and sends receipts. Each payment needs the approval of a service.
type bank struct {
	approve func(id []byte) error
}

func (b *bank) credit(_ context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
	amount, err := strconv.ParseInt(string(rec.Value), 10, 64)
	if err != nil {
		return kafkaadapter.Permanent(err) // no further attempt would succeed
	}
	if err := tx.Add(rec.Key, amount); err != nil {
		return err
	}
	if _, err := tx.Produce(engine.Message{Topic: "receipts", Key: rec.Key, Value: rec.Value}); err != nil {
		return err
	}
	return b.approve(rec.Event.ID)
}

func (b *bank) route() kafkaadapter.Route {
	return kafkaadapter.Route{
		Topics:      []string{"payments"},
		Mode:        kafkaadapter.Transactional{Handle: tested(b), MaxAttempts: 3}, // b.credit
		DeadLetters: &deadletter.Options{},
	}
}

func payment(id, account, amount string) *kgo.Record {
	return &kgo.Record{
		Topic: "payments", Key: []byte(account), Value: []byte(amount),
		Headers: []kgo.RecordHeader{{Key: "message_id", Value: []byte(id)}},
	}
}

func approved([]byte) error { return nil }

// A payment that is sent twice is credited once. In a test, t is the *testing.T that it gets.
func Example_duplicate() {
	t := newT()
	defer t.end()

	c := hapaxtest.Start(t, (&bank{approved}).route())
	c.DeliverTwice(payment("p1", "alice", "10"))
	c.WantInt64("alice", 10)
	c.WantMessages("receipts", "10")
	c.WantVerdicts("payments", map[engine.Verdict]int{engine.Claimed: 1, engine.Duplicate: 1})
	// Output:
}

// The service fails once: the payment is tried again, and credited once.
func Example_retry() {
	t := newT()
	defer t.end()

	calls := 0
	approve := func([]byte) error {
		if calls++; calls == 1 {
			return errors.New("the service does not answer")
		}
		return nil
	}
	c := hapaxtest.Start(t, (&bank{approve}).route())
	c.Deliver(payment("p1", "alice", "10"))
	c.WantCalls("p1", 2)
	c.WantInt64("alice", 10)
	c.WantMessages("receipts", "10")
	c.WantLetters("payments-dlt")
	// Output:
}

// A payment without an amount becomes a dead letter at once, and the next one is credited.
func Example_poison() {
	t := newT()
	defer t.end()

	c := hapaxtest.Start(t, (&bank{approved}).route())
	c.Deliver(payment("p1", "alice", "ten"), payment("p2", "alice", "10"))
	c.WantCalls("p1", 1)
	c.WantLetters("payments-dlt", hapaxtest.Letter{Reason: deadletter.Permanent, Value: "ten"})
	c.WantInt64("alice", 10)
	c.WantMessages("receipts", "10")
	// Output:
}

// The power fails after the handler has run and before its batch is synced: the handler runs again,
// and the payment is credited once.
func Example_crash() {
	t := newT()
	defer t.end()

	c := hapaxtest.Start(t, (&bank{approved}).route())
	c.DeliverThroughCrash(payment("p1", "alice", "10"))
	c.WantCalls("p1", 2)
	c.WantInt64("alice", 10)
	c.WantMessages("receipts", "10")
	// Output:
}
