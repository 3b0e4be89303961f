package kafkaadapter_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"strconv"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/telemetry"
)

// Each alert is shown at most once, although one of them was sent twice.
func ExampleAtMostOnce() {
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "alerts"))
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	producer, err := kgo.NewClient(kgo.SeedBrokers(broker.ListenAddrs()...))
	if err != nil {
		log.Fatal(err)
	}
	defer producer.Close()
	for _, id := range []string{"disk full", "door open", "disk full", "all is well"} {
		header := kgo.RecordHeader{Key: "message_id", Value: []byte(id)}
		producer.Produce(ctx, &kgo.Record{Topic: "alerts", Headers: []kgo.RecordHeader{header}}, nil)
	}

	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{}) // a service opens engine/pebble or engine/bolt
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()
	show := func(_ context.Context, rec *kafkaadapter.Record) error {
		fmt.Printf("%s\n", rec.Event.ID)
		if string(rec.Event.ID) == "all is well" {
			stop() // a service runs until it is stopped
		}
		return nil
	}
	consumer, err := kafkaadapter.New(eng, kafkaadapter.Options{
		Group:  "alerts",
		Client: []kgo.Opt{kgo.SeedBrokers(broker.ListenAddrs()...)},
		Routes: []kafkaadapter.Route{{
			Topics: []string{"alerts"},
			Mode:   kafkaadapter.AtMostOnce(show),
			Policies: kafkaadapter.Policies{
				kafkaadapter.TooOld: kafkaadapter.Reject, kafkaadapter.TooNew: kafkaadapter.Process, kafkaadapter.Undecodable: kafkaadapter.Reject,
			},
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := consumer.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// disk full
	// door open
	// all is well
}

// A payment that cannot be parsed becomes a dead letter at once, although the route has five attempts.
func ExamplePermanent() {
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "payments", "payments-dlt"))
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.ListenAddrs()...), kgo.ConsumeTopics("payments-dlt"))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for _, amount := range []string{"10", "five"} {
		client.Produce(ctx, &kgo.Record{Topic: "payments", Key: []byte("alice"), Value: []byte(amount)}, nil)
	}

	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{}) // a service opens engine/pebble or engine/bolt
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()
	credit := func(_ context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
		amount, err := strconv.ParseInt(string(rec.Value), 10, 64)
		if err != nil {
			return kafkaadapter.Permanent(err) // no further attempt
		}
		return tx.Add(rec.Key, amount)
	}
	consumer, err := kafkaadapter.New(eng, kafkaadapter.Options{
		Group:     "billing",
		Client:    []kgo.Opt{kgo.SeedBrokers(broker.ListenAddrs()...)},
		Telemetry: telemetry.Options{Logger: slog.New(slog.DiscardHandler)},
		Routes: []kafkaadapter.Route{{
			Topics:      []string{"payments"},
			Mode:        kafkaadapter.Transactional{Handle: credit, MaxAttempts: 5},
			DeadLetters: &deadletter.Options{},
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(ctx) }()

	for _, letter := range client.PollFetches(ctx).Records() {
		fmt.Printf("%s: %s\n", deadletter.ReasonOf(letter), letter.Value)
	}
	stop()
	fmt.Println(<-ended)
	// Output:
	// permanent: five
	// <nil>
}
