// Command outbox sends a receipt for each payment. The claim on the payment, the sum of the account
// and the receipt are written in one transaction; the relay publishes the receipt after the
// transaction is durable. So each payment is booked once and has one receipt, in spite of crashes
// of this program and of the broker. A reminder follows an hour later: it is a message with a later
// due time.
//
//	go run ./examples/outbox -brokers 127.0.0.1:9092 -payments payments -receipts receipts -dir payments.store
//
// The topics payments, receipts and payments-dlt must exist.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/outbox"
)

// A service books payments and sends receipts.
type service struct {
	payments, receipts string
	reminder           time.Duration
}

// pay books one payment: the key is the account, the value the amount.
func (s *service) pay(_ context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
	amount, err := strconv.ParseInt(string(rec.Value), 10, 64)
	if err != nil {
		return kafkaadapter.Permanent(err)
	}
	old, _, err := tx.Get(rec.Key)
	if err != nil {
		return err
	}
	sum, _ := strconv.ParseInt(string(old), 10, 64) // 0 if there is none
	sum += amount
	if err := tx.Put(rec.Key, strconv.AppendInt(nil, sum, 10)); err != nil {
		return err
	}
	if _, err := tx.Produce(engine.Message{
		Topic: s.receipts, Key: rec.Key, Value: fmt.Appendf(nil, "paid %d, the sum is %d", amount, sum),
	}); err != nil {
		return err
	}
	_, err = tx.Produce(engine.Message{
		Topic: s.receipts, Key: rec.Key, Value: fmt.Appendf(nil, "reminder of %d", amount), Due: time.Now().Add(s.reminder),
	})
	return err
}

// run consumes payments and publishes receipts until ctx ends.
func (s *service) run(ctx context.Context, eng *engine.Engine, client ...kgo.Opt) error {
	relay, err := outbox.New(eng, outbox.Options{Client: client})
	if err != nil {
		return err
	}
	consumer, err := kafkaadapter.New(eng, kafkaadapter.Options{
		Group:  "payments",
		Client: client,
		Routes: []kafkaadapter.Route{{
			Topics:      []string{s.payments},
			Mode:        kafkaadapter.Transactional{Handle: s.pay, MaxAttempts: 5},
			DeadLetters: &deadletter.Options{},
		}},
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	relayed := make(chan error, 1)
	go func() {
		defer stop() // the service does not run without a relay
		relayed <- relay.Run(ctx)
	}()
	err = consumer.Run(ctx)
	stop()
	if relayErr := <-relayed; err == nil {
		err = relayErr
	}
	return err
}

func main() {
	brokers := flag.String("brokers", "127.0.0.1:9092", "brokers, separated by commas")
	payments := flag.String("payments", "payments", "topic of the payments")
	receipts := flag.String("receipts", "receipts", "topic of the receipts")
	dir := flag.String("dir", "payments.store", "directory of the store")
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
	s := &service{payments: *payments, receipts: *receipts, reminder: time.Hour}
	if err := s.run(ctx, eng, kgo.SeedBrokers(strings.Split(*brokers, ",")...)); err != nil {
		log.Panic(err)
	}
}
