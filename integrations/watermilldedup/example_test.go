package watermilldedup_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/integrations/watermilldedup"
	"github.com/hapax-dev/hapax/telemetry"
)

// A router whose topic delivers one payment twice.
func Example() {
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{}) // a service opens engine/bolt or engine/pebble
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()
	dedup, err := watermilldedup.New(eng, watermilldedup.Options{
		Key:       watermilldedup.UUID,
		Telemetry: telemetry.Options{Logger: slog.New(slog.DiscardHandler)},
	})
	if err != nil {
		log.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		log.Fatal(err)
	}
	router.AddMiddleware(dedup)
	topic := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, nil)
	router.AddConsumerHandler("billing", "payments", topic, func(m *message.Message) error {
		fmt.Printf("booked: %s\n", m.Payload)
		return nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- router.Run(ctx) }()
	<-router.Running()

	for range 2 {
		if err := topic.Publish("payments", message.NewMessage("payment-17", message.Payload("10 euros"))); err != nil {
			log.Fatal(err)
		}
		fmt.Println("acknowledged")
	}
	cancel()
	if err := <-done; err != nil {
		log.Fatal(err)
	}
	// Output:
	// booked: 10 euros
	// acknowledged
	// acknowledged
}
