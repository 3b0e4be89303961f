package outbox_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/outbox"
	"github.com/hapax-dev/hapax/telemetry"
)

// A transaction changes a balance and sends a receipt: both or neither.
func Example() {
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "receipts"))
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{}) // a service opens engine/pebble or engine/bolt
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()

	relay, err := outbox.New(eng, outbox.Options{Client: []kgo.Opt{kgo.SeedBrokers(broker.ListenAddrs()...)}})
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()

	err = eng.Update(ctx, func(tx *engine.Tx) error {
		if err := tx.Add([]byte("balance/alice"), 15); err != nil {
			return err
		}
		_, err := tx.Produce(engine.Message{Topic: "receipts", Key: []byte("alice"), Value: []byte("paid 15")})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	reader, err := kgo.NewClient(kgo.SeedBrokers(broker.ListenAddrs()...), kgo.ConsumeTopics("receipts"))
	if err != nil {
		log.Fatal(err)
	}
	defer reader.Close()
	for _, receipt := range reader.PollFetches(ctx).Records() {
		fmt.Printf("%s: %s\n", receipt.Key, receipt.Value)
	}
	stop()
	fmt.Println(<-ended)
	// Output:
	// alice: paid 15
	// <nil>
}

// A message that Kafka rejects too often is parked. An operator reads the reason, and returns the
// message to the outbox after the cause is removed, or drops it.
func ExampleRelay_Parked() {
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "receipts"))
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{}) // a service opens engine/pebble or engine/bolt
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()
	relay, err := outbox.New(eng, outbox.Options{
		Client:    []kgo.Opt{kgo.SeedBrokers(broker.ListenAddrs()...)},
		Retry:     outbox.Retry{Attempts: 1}, // 0 = outbox.DefaultAttempts
		Telemetry: telemetry.Options{Logger: slog.New(slog.DiscardHandler)},
	})
	if err != nil {
		log.Fatal(err)
	}
	err = eng.Update(ctx, func(tx *engine.Tx) error {
		_, err := tx.Produce(engine.Message{ID: "receipt-1", Topic: "receipts", Value: make([]byte, 3<<20)})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	go relay.Run(ctx)

	for parked := 0; parked == 0; {
		for m, err := range relay.Parked(ctx) {
			if err != nil {
				log.Fatal(err)
			}
			parked++
			reason, _, _ := strings.Cut(m.LastError, ":")
			fmt.Println(m.ID, "was rejected:", reason)
			fmt.Println(relay.Drop(ctx, m.ID)) // or Redrive
		}
	}
	// Output:
	// receipt-1 was rejected: MESSAGE_TOO_LARGE
	// <nil>
}
