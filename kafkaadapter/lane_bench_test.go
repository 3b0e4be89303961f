package kafkaadapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// Six partitions without a broker move money between 50 accounts, in batches of 512 records: by
// Get and Put, or by Add; for comparison, nothing is moved. The handler decodes 200 bytes of JSON
// itself, or Transactional.Decode does. The metrics are records a second and calls of the handler
// for each record.
//
//	go test ./kafkaadapter -run - -bench PartitionsThatMoveMoney -benchtime 100000x -count 5
func BenchmarkPartitionsThatMoveMoney(b *testing.B) {
	for _, accounts := range []string{"shared", "own", "added", "none"} {
		for _, decode := range []bool{false, true} {
			b.Run(fmt.Sprintf("accounts=%s/decode=%t", accounts, decode), func(b *testing.B) {
				(&moneyBench{accounts: accounts, decode: decode}).run(b)
			})
		}
	}
}

type moneyBench struct {
	accounts string
	decode   bool
	calls    atomic.Int64
}

const (
	benchPartitions = 6
	benchAccounts   = 50
)

type transfer struct {
	From, To int
	Amount   int64
	Text     string
}

func decodeTransfer(rec *kgo.Record) (*transfer, error) {
	t := new(transfer)
	return t, json.Unmarshal(rec.Value, t)
}

func (m *moneyBench) mode() Transactional {
	mode := Transactional{MaxAttempts: 1, Handle: func(_ context.Context, tx *engine.Tx, rec *Record) (err error) {
		m.calls.Add(1)
		t, ok := rec.Decoded.(*transfer)
		if !ok {
			if t, err = decodeTransfer(rec.Record); err != nil {
				return err
			}
		}
		if m.accounts == "none" {
			return nil
		}
		return errors.Join(m.add(tx, rec.Partition, t.From, -t.Amount), m.add(tx, rec.Partition, t.To, t.Amount))
	}}
	if m.decode {
		mode.Decode = func(_ context.Context, rec *kgo.Record) (any, error) { return decodeTransfer(rec) }
	}
	return mode
}

func (m *moneyBench) add(tx *engine.Tx, partition int32, account int, amount int64) error {
	key := fmt.Appendf(nil, "account/%d", account)
	switch m.accounts {
	case "own":
		key = fmt.Appendf(nil, "account/%d/%d", partition, account)
	case "added":
		return tx.Add(key, amount)
	}
	value, found, err := tx.Get(key)
	var balance int64
	if err == nil && found {
		balance, err = engine.DecodeInt64(value)
	}
	if err != nil {
		return err
	}
	return tx.Put(key, engine.EncodeInt64(balance+amount))
}

func (m *moneyBench) run(b *testing.B) {
	store, err := pebble.Open(b.TempDir(), pebble.Options{})
	if err != nil {
		b.Fatal(err)
	}
	eng, err := engine.Open(store, engine.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = eng.Close() }()
	c, err := New(eng, Options{
		Group: "g", Routes: []Route{{Topics: []string{"t"}, Mode: m.mode(), DeadLetters: &deadletter.Options{}, Scope: "s"}},
		Client: []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")},
	})
	if err != nil {
		b.Fatal(err)
	}
	each := (b.N + benchPartitions - 1) / benchPartitions
	var wg sync.WaitGroup
	start := make(chan struct{})
	for p := range int32(benchPartitions) {
		w := c.assign.newWorker(topicPartition{"t", p}, nil, 0)
		defer w.partition.cancel(nil)
		v := &resume.Facts{End: math.MaxInt64}
		if err := eng.Update(b.Context(), func(tx *engine.Tx) error { return w.finder.occupy(tx, v, resume.Beginning{Epoch: -1}) }); err != nil {
			b.Fatal(err)
		}
		w.state.taken, w.delays = transfers(p, each), newDelays(w.partition.c.opt.backoff)
		wg.Go(func() {
			<-start
			for len(w.state.taken) > 0 {
				done, err := w.commitBatch(min(DefaultMaxBatch, len(w.state.taken)))
				if err != nil {
					b.Error(err)
					return
				}
				w.state.taken = w.state.taken[done.result.done:]
			}
		})
	}
	b.ResetTimer()
	close(start)
	wg.Wait()
	n := float64(each * benchPartitions)
	b.ReportMetric(n/b.Elapsed().Seconds(), "records/s")
	b.ReportMetric(float64(m.calls.Load())/n, "calls/record")
}

func transfers(partition int32, n int) []*kgo.Record {
	rnd := rand.New(rand.NewPCG(1, uint64(partition)))
	recs := make([]*kgo.Record, n)
	for i := range recs {
		from := rnd.IntN(benchAccounts)
		value, _ := json.Marshal(transfer{from, (from + 1 + rnd.IntN(benchAccounts-1)) % benchAccounts, rnd.Int64N(1000), strings.Repeat("x", 150)})
		recs[i] = &kgo.Record{Topic: "t", Partition: partition, Offset: int64(i), Value: value, Headers: []kgo.RecordHeader{
			{Key: "message_id", Value: []byte(uuid.NewString())},
			{Key: "event_time", Value: time.Now().UTC().AppendFormat(nil, time.RFC3339Nano)},
		}}
	}
	return recs
}
