// Command replay sends the dead letters of a topic back to their original topics, with their
// headers intact. The consumer that wrote them identifies them by these headers and handles each
// once more, as the original event; a letter that is sent back twice is a duplicate the second
// time. First fix the cause of the handler's failure.
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
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	brokers := flag.String("brokers", "127.0.0.1:9092", "brokers, separated by commas")
	letters := flag.String("letters", "", "topic of the dead letters")
	group := flag.String("group", "replay", "consumer group that stores the progress of the replay")
	flag.Parse()
	if *letters == "" {
		log.Fatal("name the topic of the dead letters with -letters")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	n, err := replay(ctx, *letters, *group, kgo.SeedBrokers(strings.Split(*brokers, ",")...))
	fmt.Printf("%d letters sent back, %d records that are no letters left unchanged\n", n.sent, n.left)
	if err != nil {
		log.Panic(err)
	}
}
