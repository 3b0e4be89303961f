package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// producers publishes records.
type producers struct{ topics }

// Records makes n records for a topic, one partition after the other. Key and value begin with the
// record's number, from 0; the value is filled up to size bytes.
func Records(topic string, partitions int32, n, size int, headers ...kgo.RecordHeader) []*kgo.Record {
	records := make([]*kgo.Record, n)
	for i := range records {
		value := fmt.Sprintf("%d ", i)
		records[i] = &kgo.Record{
			Topic:     topic,
			Partition: int32(i) % partitions,
			Key:       fmt.Appendf(nil, "key-%d", i),
			Value:     []byte(value + strings.Repeat(".", max(0, size-len(value)))),
			Headers:   headers,
		}
	}
	return records
}

// Produce sends records to their partitions, in order, and returns when the broker has acknowledged
// them all. The records of a partition are one batch, unless they are too large.
func (b producers) Produce(t testing.TB, records ...*kgo.Record) {
	t.Helper()
	if err := b.produce(t, patience, records); err != nil {
		t.Fatal("producing:", err)
	}
}

// TryProduce is Produce for a broker that may reject records or be unavailable: it returns after
// half a minute at most.
func (b producers) TryProduce(t testing.TB, records ...*kgo.Record) error {
	t.Helper()
	return b.produce(t, 30*time.Second, records)
}

func (b producers) produce(t testing.TB, d time.Duration, records []*kgo.Record) error {
	t.Helper()
	seen := map[*kgo.Record]bool{}
	for i, r := range records { // the client writes to each record that it sends
		if seen[r] {
			t.Fatalf("producing: record %d is given twice: copy it", i)
		}
		seen[r] = true
	}
	c := b.producer(t, kgo.ManualFlushing(), kgo.MaxBufferedRecords(max(1, len(records))))
	defer c.Close()
	// kgo.RecordDeliveryTimeout counts from the timestamps of the records, which may be old.
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var errs kgo.FirstErrPromise
	for _, r := range records {
		c.Produce(ctx, r, errs.Promise())
	}
	if err := c.Flush(ctx); err != nil {
		return err
	}
	return errs.Err()
}

// ProduceTx sends records in one transaction and commits or aborts it. When it returns, the log
// contains the transaction's markers: a real broker writes them after it has answered.
func (b producers) ProduceTx(t testing.TB, commit bool, records ...*kgo.Record) {
	t.Helper()
	c := b.producer(t, kgo.TransactionalID(Name(t)))
	defer c.Close()
	sending, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ctx := context.Background() // an end that is cut off would have an unknown outcome
	err := c.BeginTransaction()
	if err == nil {
		err = c.ProduceSync(sending, records...).FirstErr()
	}
	if err := errors.Join(err, c.EndTransaction(ctx, kgo.TransactionEndTry(commit))); err != nil {
		t.Fatal("producing in a transaction:", err)
	}
	for _, r := range records {
		Until(t, "markers of the transaction", func() bool { l := b.Log(t, r.Topic, r.Partition); return l.Stable == l.End })
	}
}

// CommitLost writes the commit markers that are missing in the given topics, of transactions that
// their coordinator considers ended and does not know to be aborted. Apache Kafka 4.3.1 loses
// markers if it is killed before it has written them, and returns with a partition without a leader
// (docs/decisions/0024). It returns the number of markers. No transaction may be in progress.
func (b producers) CommitLost(t testing.TB, topicNames ...string) (n int) {
	t.Helper()
	b.admin(t, "writing lost markers", func(ctx context.Context, a *kadm.Client) error {
		topics, err := a.ListTopics(ctx, topicNames...)
		if err != nil {
			return err
		}
		transactions, err := a.DescribeTransactions(ctx)
		if err != nil {
			return err
		}
		ended := map[int64]bool{}
		transactions.Each(func(d kadm.DescribedTransaction) {
			ended[d.ProducerID] = d.State == "Empty" || d.State == "CompleteCommit"
		})
		producing, err := a.DescribeProducers(ctx, topics.TopicsSet())
		if err != nil {
			return err
		}
		var markers []kadm.TxnMarkers
		producing.EachProducer(func(p kadm.DescribedProducer) {
			if p.CurrentTxnStartOffset >= 0 && ended[p.ProducerID] {
				m := kadm.TxnMarkers{
					ProducerID: p.ProducerID, ProducerEpoch: p.ProducerEpoch, CoordinatorEpoch: p.CoordinatorEpoch, Commit: true, Topics: kadm.TopicsSet{},
				}
				m.Topics.Add(p.Topic, p.Partition)
				markers = append(markers, m)
			}
		})
		n = len(markers)
		if n == 0 {
			return nil
		}
		written, err := a.WriteTxnMarkers(ctx, markers...)
		written.EachPartition(func(p kadm.TxnMarkersPartitionResponse) { err = errors.Join(err, p.Err) })
		return err
	})
	return n
}

func (b producers) producer(t testing.TB, o ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append(append(b.ClientOptions(), kgo.RecordPartitioner(kgo.ManualPartitioner())), o...)...)
	if err != nil {
		t.Fatal("making a producer:", err)
	}
	return c
}

// FailProduce makes the embedded broker reject all records of a topic with an error until heal is
// called. Clients retry after some errors (kerr.NotEnoughReplicas), and fail after others
// (kerr.PolicyViolation).
func (b producers) FailProduce(t testing.TB, topic string, err *kerr.Error) (heal func()) {
	t.Helper()
	return b.Cluster(t).Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: err, Count: -1}).Remove
}
