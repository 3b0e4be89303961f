package seen_test

import (
	"context"
	"fmt"
	"log"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
	"github.com/hapax-dev/hapax/kafkaadapter/seen"
)

// A consumer of alerts that shows each alert at most once. Its producer sends one of them twice.
func Example() {
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "alerts"))
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	ctx := context.Background()
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.ListenAddrs()...), kgo.ConsumerGroup("alerts"), kgo.ConsumeTopics("alerts"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for _, text := range []string{"disk full", "door open"} {
		alert := &kgo.Record{Topic: "alerts", Value: []byte(text)}
		identify.EnsureID(alert) // once for each logical send
		again := &kgo.Record{Topic: "alerts", Value: []byte(text), Headers: alert.Headers}
		if err := client.ProduceSync(ctx, alert, again).FirstErr(); err != nil {
			log.Fatal(err)
		}
	}

	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{}) // a service opens engine/bolt or engine/pebble
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()
	filter, err := seen.New(eng, seen.Options{Scope: "alerts"})
	if err != nil {
		log.Fatal(err)
	}
	for polled := 0; polled < 4; { // a service polls until it is stopped
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			log.Fatal(err)
		}
		polled += fetches.NumRecords()
		records, err := filter.Unseen(ctx, fetches)
		if err != nil {
			log.Fatal(err) // nothing was claimed: the same fetches can be retried
		}
		for _, r := range records {
			fmt.Printf("%s\n", r.Value)
		}
		if err := client.CommitUncommittedOffsets(ctx); err != nil { // after the claims
			log.Fatal(err)
		}
	}
	// Output:
	// disk full
	// door open
}
