// Command balances keeps a running balance for each account from a topic of transfers. The balances
// are in the same store as the claims. So each transfer is booked once, in spite of crashes and
// repeats, and the balances of all accounts always add up to zero.
//
//	go run ./examples/balances -brokers 127.0.0.1:9092 -topic transfers -dir balances.store -listen 127.0.0.1:8080
//
// A transfer is JSON, {"from":"a","to":"b","amount":5}, with its id in a header such as message_id.
// A transfer that cannot be booked goes to the dead letters, here transfers-dlt, which must exist.
// /balance?account=a returns a balance, and /metrics the metrics of the engine, the adapter
// (dedup_kafka_*) and the Kafka client (kafka_client_*). With -traces, spans are written to the
// standard output.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/hapax-dev/hapax/engine/pebble"
)

func main() {
	brokers := flag.String("brokers", "127.0.0.1:9092", "brokers, separated by commas")
	topic := flag.String("topic", "transfers", "topic to consume")
	dir := flag.String("dir", "balances.store", "directory of the store")
	listen := flag.String("listen", "127.0.0.1:8080", "address of the HTTP server")
	traces := flag.Bool("traces", false, "write spans to the standard output")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	provider := trace.NewTracerProvider()
	if *traces {
		exporter, err := stdouttrace.New()
		if err != nil {
			log.Panic(err)
		}
		provider.RegisterSpanProcessor(trace.NewBatchSpanProcessor(exporter))
	}
	defer func() { _ = provider.Shutdown(context.Background()) }()
	store, err := pebble.Open(*dir, pebble.Options{})
	if err != nil {
		log.Panic(err)
	}
	s, err := newService(store, config{
		group: "balances", topic: *topic, log: slog.Default(), traces: provider,
		client: []kgo.Opt{kgo.SeedBrokers(strings.Split(*brokers, ",")...)},
	})
	if err != nil {
		log.Panic(err)
	}
	defer func() {
		if err := s.close(); err != nil {
			log.Print(err)
		}
	}()
	server := &http.Server{Addr: *listen, Handler: s, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			slog.Error("the HTTP server ended", "error", err)
			stop()
		}
	}()
	defer func() { _ = server.Close() }()
	if err := s.run(ctx); err != nil {
		log.Panic(err)
	}
}
