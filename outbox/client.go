package outbox

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/kgohooks"
)

// A client is the part of a Kafka client that a relay uses.
type client interface {
	producer
	transactor
}

// A producer is the part of a Kafka client that publishes.
type producer interface {
	// Produce publishes a record. promise is called once, with nil when the broker has acknowledged
	// it.
	Produce(ctx context.Context, r *kgo.Record, promise func(*kgo.Record, error))
	Close()
}

// A transactor is the part of a Kafka client that the exactly-once relay needs in addition to a
// producer.
type transactor interface {
	ProducerID(ctx context.Context) (int64, int16, error)
	BeginTransaction() error
	EndTransaction(ctx context.Context, commit kgo.TransactionEndTry) error
}

// transactionTimeout returns the time after which the broker aborts a transaction that was not
// ended. The next relay of the store ends it earlier. A batch takes up to Batch.Time, and so does
// the end of its transaction.
func transactionTimeout(o *Options) time.Duration { return max(time.Minute, 3*o.Batch.Time) }

// clientOptions returns the options of the producer. The options that the relay needs come last.
func clientOptions(opt *Options, store storage.Identity, limit func(topic string) int32, h *holds) []kgo.Opt {
	// A lingering client would make each message of an ordering key wait, since one at a time is in flight.
	o := []kgo.Opt{kgo.MetadataMinAge(250 * time.Millisecond), kgo.UnknownTopicRetries(2), kgo.ProducerLinger(0), kgo.ProducerBatchMaxBytesFn(limit)}
	o = append(o, opt.Client...)
	// Produce must not wait for room in the buffer, because nothing renews the lease meanwhile. The
	// relay bounds its batches itself.
	o = append(o, kgo.RecordPartitioner(newPartitioner(h)), kgo.WithHooks(observer{}), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.MaxBufferedRecords(2*MaxBatchEntries), kgo.MaxBufferedBytes(0))
	if opt.ExactlyOnce != nil {
		o = append(o, kgo.TransactionalID(transactionalID(store)), kgo.TransactionTimeout(transactionTimeout(opt)))
	}
	return o
}

// unusable are client options that the relay rejects. With some, messages would not be sent or
// would be sent to another topic. With others, the client would be a consumer, which takes
// partitions from the other members of its group or reads records of other topics as progress.
var unusable = []string{
	"ManualFlushing", "DefaultProduceTopicAlways", "TransactionalID", "ConsumerGroup", "ShareGroup", "ConsumeTopics", "ConsumePartitions",
}

// checkClient rejects unusable options, and options with which no client can be made.
func checkClient(opt *Options, store storage.Identity) error {
	probe, err := kgohooks.Probe(clientOptions(opt, store, new(batchLimits).of, new(holds))...)
	if err != nil {
		return err
	}
	probe.CloseAllowingRebalance()
	own := *opt
	own.ExactlyOnce = nil // without the relay's own transactional id
	if probe, err = kgohooks.Probe(clientOptions(&own, store, new(batchLimits).of, new(holds))...); err != nil {
		return err
	}
	defer probe.CloseAllowingRebalance()
	for _, name := range unusable {
		if isSet(probe.OptValue(name)) {
			return fmt.Errorf("kgo.%s cannot be used: remove it", name)
		}
	}
	return nil
}

func isSet(option any) bool {
	v := reflect.ValueOf(option)
	if v.IsValid() && (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) {
		return v.Len() > 0
	}
	return v.IsValid() && !v.IsZero()
}

// transactionalID is the same for every relay of a store, so that a new relay fences the previous
// one.
func transactionalID(store storage.Identity) string {
	return "hapax-outbox-" + uuid.UUID(store.UUID).String()
}
