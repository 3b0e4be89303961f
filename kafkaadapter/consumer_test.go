package kafkaadapter

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storetest"
)

func TestEachEventTakesEffectOnce(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "in"), kfake.SeedTopics(1, "in-dlt"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	addrs := kgo.SeedBrokers(cluster.ListenAddrs()...)
	producer, err := kgo.NewClient(addrs)
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	const n = 20000
	for i := range n {
		id := strconv.Itoa(i % (n / 2))
		producer.Produce(context.Background(), &kgo.Record{Topic: "in", Key: []byte(id), Value: []byte("v"), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}}}, nil)
	}
	if err := producer.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	eng, err := engine.Open(storetest.NewMem(engine.Identity{}), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	seen := map[string]int{}
	c, err := New(eng, WithWork{
		MaxAttempts: 3, DeadLetters: &DeadLetters{},
		Handle: func(_ context.Context, tx *engine.Tx, rec *Record) error {
			mu.Lock()
			defer mu.Unlock()
			seen[string(rec.Event.ID)]++
			if len(seen) == n/2 {
				cancel()
			}
			return tx.Put([]byte(fmt.Sprintf("count/%s", rec.Event.ID)), []byte{1})
		},
	}, Options{Group: "g", Topics: []string{"in"}, Client: []kgo.Opt{addrs}})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := c.Run(ctx); err != nil {
		t.Fatal(err)
	}
	t.Log(time.Since(began), len(seen))
}
