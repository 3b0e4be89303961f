package changelog

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/kgohooks"
	"github.com/hapax-dev/hapax/telemetry"
)

// Options of a Client. The zero value is safe.
type Options struct {
	// Replication is the number of replicas of topics that Prepare creates. 0: topics must exist.
	Replication int

	// Telemetry says where the log goes.
	Telemetry telemetry.Options
}

// maxBatchBytes is the size of the largest batch that is sent, which has one record. The topic must accept
// it.
const maxBatchBytes = 1_000_012

// fetchBytes is how much a read asks for at a time; it holds two answers at most.
const fetchBytes = 4 << 20

// refused are the client options with which the log would not be one.
var refused = []struct{ name, hint string }{
	{"DisableIdempotentWrite", "a record could be appended twice, or out of order"},
	{"AllowIdempotentProduceCancellation", "the outcome of an append would be lost"},
	{"TransactionalID", "the changelog needs no transactions"},
	{"ProducerOnDataLossDetected", "the changelog stops its producer after a loss"},
	{"ManualFlushing", "records would never be sent"},
	{"DefaultProduceTopicAlways", "records would be sent to that topic"},
	{"AllowAutoTopicCreation", "a topic that was deleted would come back empty, and with other settings"},
	{"WithPools", "records of the changelog are not recycled"},
}

// checkOptions refuses options that cannot be used.
func checkOptions(opts []kgo.Opt) error {
	probe, err := kgohooks.Probe(opts...)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrOption, err)
	}
	defer probe.CloseAllowingRebalance()
	unset, err := kgo.NewClient()
	if err != nil {
		return fmt.Errorf("hapax: making a Kafka client: %w", err)
	}
	defer unset.CloseAllowingRebalance()
	for _, r := range refused {
		if !reflect.DeepEqual(probe.OptValues(r.name), unset.OptValues(r.name)) {
			return fmt.Errorf("%w: kgo.%s: %s: remove it", ErrOption, r.name, r.hint)
		}
	}
	return nil
}

// defaults are options that the application may replace.
func defaults() []kgo.Opt {
	return []kgo.Opt{kgo.MetadataMinAge(250 * time.Millisecond)}
}

// required are the options of the producer that the protocol needs. No record is given up while its outcome
// is unknown: neither a time nor a number of tries ends it, nor a context.
func required() []kgo.Opt {
	return []kgo.Opt{
		kgo.WithContext(context.Background()), // Close ends the client
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.StopProducerOnDataLossDetected(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(maxBatchBytes),
		kgo.ProducerLinger(0),
		kgo.RecordRetries(math.MaxInt),
		kgo.RecordDeliveryTimeout(0),
		kgo.MaxBufferedRecords(math.MaxInt32),
		kgo.MaxBufferedBytes(0),
	}
}
