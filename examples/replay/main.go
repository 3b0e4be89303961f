// Command replay sends the dead letters of a topic back to where they came from, with their headers
// intact. The consumer that wrote them knows them by these headers and handles each once more, as
// the event that it was; a letter that is sent back twice is a duplicate the second time. Fix what
// made the handler fail first.
//
//	go run ./examples/replay -brokers 127.0.0.1:9092 -letters transfers-dlt
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	brokers := flag.String("brokers", "127.0.0.1:9092", "brokers, separated by commas")
	letters := flag.String("letters", "", "topic of the dead letters")
	group := flag.String("group", "replay", "consumer group that keeps how far the replay came")
	flag.Parse()
	if *letters == "" {
		log.Fatal("name the topic of the dead letters with -letters")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	n, err := replay(ctx, *letters, *group, kgo.SeedBrokers(strings.Split(*brokers, ",")...))
	fmt.Printf("%d letters sent back, %d records that are no letters left where they are\n", n.sent, n.left)
	if err != nil {
		log.Panic(err)
	}
}
