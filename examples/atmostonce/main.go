// Command atmostonce shows each notice of a topic at most once. The claim commits before the
// handler runs: a notice that was sent twice is shown once, and if its handler fails, it is not
// shown again.
//
//	go run ./examples/atmostonce -brokers 127.0.0.1:9092 -topic notices -dir notices.claims
//
// The store is a directory that belongs to this process only. A notice without an id (a header such
// as message_id) is identified by its position: a copy that the producer sends again is then
// another notice.
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
)

// consume shows notices until ctx ends.
func consume(ctx context.Context, eng *engine.Engine, out io.Writer, topic string, client ...kgo.Opt) error {
	show := func(_ context.Context, rec *kafkaadapter.Record) error {
		_, err := fmt.Fprintf(out, "%s\n", rec.Value)
		return err // the loss is counted and logged
	}
	c, err := kafkaadapter.New(eng, kafkaadapter.Options{
		Group: "atmostonce",
		Routes: []kafkaadapter.Route{{
			Topics: []string{topic},
			Mode:   kafkaadapter.AtMostOnce(show),
			// A notice that cannot be deduplicated is not shown.
			Policies: kafkaadapter.RejectUnclaimable(),
		}},
		Client: client,
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

func main() {
	brokers := flag.String("brokers", "127.0.0.1:9092", "brokers, separated by commas")
	topic := flag.String("topic", "notices", "topic to consume")
	dir := flag.String("dir", "notices.claims", "directory of the store")
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
