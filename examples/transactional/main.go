// Command transactional counts the words of the texts of a topic, each text once. The claim, the
// counts and the next offset commit together: after a crash, the counts contain every text that was
// read, once.
//
//	go run ./examples/transactional -brokers 127.0.0.1:9092 -topic texts -dir texts.claims
//
// A text that cannot be counted in three attempts goes to the topic's dead letters, here texts-dlt,
// which must exist.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// consume counts words until ctx ends.
func consume(ctx context.Context, eng *engine.Engine, topic string, client ...kgo.Opt) error {
	c, err := kafkaadapter.New(eng, kafkaadapter.Options{
		Group:  "transactional",
		Client: client,
		Routes: []kafkaadapter.Route{{
			Topics:      []string{topic},
			Mode:        kafkaadapter.Transactional{Handle: count, MaxAttempts: 3},
			DeadLetters: &deadletter.Options{},
		}},
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// count adds the words of one text to the counts.
func count(_ context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
	if !utf8.Valid(rec.Value) {
		return kafkaadapter.Permanent(errors.New("not a text")) // no further attempt would succeed
	}
	for _, word := range bytes.Fields(rec.Value) {
		n, err := words(tx, word)
		if err != nil {
			return err
		}
		if err := tx.Put(key(word), strconv.AppendInt(nil, n+1, 10)); err != nil {
			return err
		}
	}
	return nil
}

// words returns how often a word was counted.
func words(tx *engine.Tx, word []byte) (int64, error) {
	b, found, err := tx.Get(key(word))
	if err != nil || !found {
		return 0, err
	}
	return strconv.ParseInt(string(b), 10, 64)
}

func key(word []byte) []byte { return append([]byte("words/"), word...) }

func main() {
	brokers := flag.String("brokers", "127.0.0.1:9092", "brokers, separated by commas")
	topic := flag.String("topic", "texts", "topic to consume")
	dir := flag.String("dir", "texts.claims", "directory of the store")
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
	if err := consume(ctx, eng, *topic, kgo.SeedBrokers(strings.Split(*brokers, ",")...)); err != nil {
		log.Panic(err)
	}
}
