package main

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

func TestEachPaymentHasOneReceiptAndOneReminder(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	payments, receipts := b.CreateTopic(t, 1, nil), kafkatest.Name(t)
	b.CreateNamed(t, receipts, 1, nil)
	b.CreateNamed(t, payments+"-dlt", 1, nil)
	payment := func(id, amount string) *kgo.Record {
		return &kgo.Record{
			Topic: payments, Key: []byte("alice"), Value: []byte(amount),
			Headers: []kgo.RecordHeader{{Key: "message_id", Value: []byte(id)}},
		}
	}
	b.Produce(t, payment("1", "10"), payment("1", "10"), payment("2", "5"))
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()

	s := &service{payments: payments, receipts: receipts, reminder: 100 * time.Millisecond}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.run(ctx, eng, b.ClientOptions()...) }()
	got := map[string]int{}
	for _, r := range b.ConsumeTopic(t, receipts, 4) {
		got[string(r.Value)]++
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, want := range []string{"paid 10, the sum is 10", "paid 5, the sum is 15", "reminder of 10", "reminder of 5"} {
		if got[want] != 1 {
			t.Errorf("%q came %d times: %v", want, got[want], got)
		}
	}
	if l := b.Log(t, receipts, 0); l.End != 4 {
		t.Errorf("%d receipts and reminders", l.End)
	}
}
