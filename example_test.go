package hapax_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// The examples are those of the README: TestReadmeShowsTheExamples compares them. The README omits
// the lines after "Not in the README".

func Example() {
	// Not in the README:
	dir := must(os.MkdirTemp("", "hapax"))
	defer os.RemoveAll(dir)
	brokers, ctx, end := payments("billing", "payments")
	defer end()

	store, err := pebble.Open(filepath.Join(dir, "billing"), pebble.Options{})
	if err != nil {
		log.Fatal(err)
	}
	eng, err := engine.Open(store, engine.Options{RetentionWeeks: 4}) // older weeks are dropped at night
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()

	pay := func(_ context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
		amount, err := strconv.ParseInt(string(rec.Value), 10, 64)
		if err != nil {
			return kafkaadapter.Permanent(err) // no retry will help: a dead letter at once
		}
		return tx.Add(rec.Key, amount) // to the balance of the account
	}
	consumer, err := kafkaadapter.New(eng, kafkaadapter.Options{
		Group:  "billing",
		Client: []kgo.Opt{kgo.SeedBrokers(brokers...)},
		Routes: []kafkaadapter.Route{{
			Topics:      []string{"payments"},
			Mode:        kafkaadapter.Transactional{Handle: pay, MaxAttempts: 5},
			DeadLetters: &deadletter.Options{},
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := consumer.Run(ctx); err != nil { // until ctx ends
		log.Fatal(err)
	}
	value, _, err := eng.Get(context.Background(), []byte("alice"))
	if err != nil {
		log.Fatal(err)
	}
	balance, err := engine.DecodeInt64(value)
	fmt.Println("alice", balance, err)
	// Output: alice 15 <nil>
}

func Example_claims() {
	// Not in the README:
	dir := must(os.MkdirTemp("", "hapax"))
	defer os.RemoveAll(dir)

	ctx := context.Background()
	store, err := pebble.Open(filepath.Join(dir, "claims"), pebble.Options{})
	if err != nil {
		log.Fatal(err)
	}
	eng, err := engine.Open(store, engine.Options{DefaultScope: "billing", RetentionWeeks: 4})
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()

	event := engine.Event{
		ID:     []byte("7f1c0a52-2f0e-4a53-9d0c-0f6a1f6a2b11"), // set by the producer
		Time:   time.Now(),                                     // when it happened, the same on every delivery
		Origin: engine.Origin{Topic: "payments", Partition: 3, Offset: 4711},
	}
	for range 2 {
		r, err := eng.TryClaim(ctx, event)
		if err != nil {
			log.Fatal(err) // not decided: do not acknowledge, retry
		}
		fmt.Println(r.Verdict)
	}
	// Output:
	// claimed
	// duplicate
}

func Example_withTheWork() {
	// Not in the README:
	dir := must(os.MkdirTemp("", "hapax"))
	defer os.RemoveAll(dir)
	ctx := context.Background()
	store := must(pebble.Open(filepath.Join(dir, "claims"), pebble.Options{}))
	eng := must(engine.Open(store, engine.Options{DefaultScope: "billing"}))
	defer eng.Close()

	event := engine.Event{ID: []byte("order-17"), Time: time.Now(), Origin: engine.Origin{Topic: "payments", Offset: 41}}
	pay := func(tx *engine.Tx) error {
		r, err := tx.TryClaim(event)
		if err != nil {
			return err
		}
		switch r.Verdict {
		case engine.Claimed:
			old, found, err := tx.Get([]byte("balance"))
			if err != nil {
				return err
			}
			sum := 0
			if found {
				if sum, err = strconv.Atoi(string(old)); err != nil {
					return err
				}
			}
			if err := tx.Put([]byte("balance"), []byte(strconv.Itoa(sum+10))); err != nil {
				return err
			}
		case engine.Duplicate: // no work, but the offset advances
		default: // in_flight: try again later; too_old, too_new: your policy
			return fmt.Errorf("order-17 is %v", r.Verdict)
		}
		at := engine.OffsetKey{Group: "billing", Topic: "payments", Partition: 0}
		return tx.SetOffset(at, engine.Offset{Next: event.Origin.Offset + 1})
	}
	for range 2 { // delivered twice, paid once
		if err := eng.Update(ctx, pay, engine.Retries(3)); err != nil {
			log.Fatal(err)
		}
	}
	_ = eng.Update(ctx, func(tx *engine.Tx) error {
		balance, _, err := tx.Get([]byte("balance"))
		fmt.Println(string(balance))
		return err
	})
	// Output: 10
}

// payments starts a broker with a topic of three payments, one of which was sent twice. The context
// ends when the group has read them all.
func payments(group, topic string) (brokers []string, ctx context.Context, end func()) {
	cluster := must(kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topic, topic+"-dlt")))
	client := must(kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.DefaultProduceTopic(topic)))
	for id, amount := range []string{"10", "10", "5"} {
		r := &kgo.Record{Key: []byte("alice"), Value: []byte(amount), Headers: []kgo.RecordHeader{{Key: "message_id", Value: fmt.Append(nil, id/2)}}}
		if err := client.ProduceSync(context.Background(), r).FirstErr(); err != nil {
			log.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		again := time.NewTicker(10 * time.Millisecond)
		defer again.Stop()
		for range again.C {
			offsets, err := kadm.NewClient(client).FetchOffsets(ctx, group)
			if o, ok := offsets.Lookup(topic, 0); ctx.Err() != nil || err == nil && ok && o.At == 3 {
				stop()
				return
			}
		}
	}()
	return cluster.ListenAddrs(), ctx, func() {
		stop()
		client.Close()
		cluster.Close()
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
