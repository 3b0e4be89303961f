// Command cloudevents prints each CloudEvents event of a topic at most once, whether it comes in
// binary mode (headers ce_*) or in structured mode (JSON). Two events are the same if their sources
// and ids are equal. The time is that of the event, or that of the record if the event has none.
//
//	go run ./examples/cloudevents -brokers 127.0.0.1:9092 -topic events -dir events.claims
//
// A record that is not a CloudEvents event goes to the dead letters, here events-dlt, which must
// exist.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// consume prints events until ctx ends.
func consume(ctx context.Context, eng *engine.Engine, out io.Writer, topic string, client ...kgo.Opt) error {
	show := func(_ context.Context, rec *kafkaadapter.Record) error {
		_, err := fmt.Fprintf(out, "%s %s\n", rec.Event.Time.Format("2006-01-02T15:04:05Z"), rec.Value)
		return err
	}
	c, err := kafkaadapter.New(eng, kafkaadapter.Options{
		Group:  "cloudevents",
		Client: client,
		Routes: []kafkaadapter.Route{{
			Topics:      []string{topic},
			Mode:        kafkaadapter.AtMostOnce(show),
			DeadLetters: &deadletter.Options{},
			Identify: identify.Rules{
				IDHeaders:   []string{identify.CloudEventsID}, // source and id together, in either mode
				TimeHeaders: []string{identify.CloudEventsTime},
				NoPosition:  true, // a record without both is not an event
			},
		}},
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

func main() {
	brokers := flag.String("brokers", "127.0.0.1:9092", "brokers, separated by commas")
	topic := flag.String("topic", "events", "topic to consume")
	dir := flag.String("dir", "events.claims", "directory of the store")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	store, err := pebble.Open(*dir, pebble.Options{})
	if err != nil {
		log.Panic(err)
	}
	eng, err := engine.Open(store, engine.Options{})
	if err != nil {
		log.Panic(err)
	}
	defer func() {
		if err := eng.Close(); err != nil {
			log.Print(err)
		}
	}()
	if err := consume(ctx, eng, os.Stdout, *topic, kgo.SeedBrokers(strings.Split(*brokers, ",")...)); err != nil {
		log.Panic(err)
	}
}
