package kafkaadapter

import (
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// ErrLargeBatch means that a batch of records in the log decompresses to more than
// Batching.MaxBufferedBytes, with the memory of its records. It is not decompressed. The partition
// stops before it (reason large_batch), or Route.LargeBatch skips it.
var ErrLargeBatch = errors.New("hapax: a batch of records decompresses to more than Batching.MaxBufferedBytes: raise it, or set Route.LargeBatch to SkipLargeBatch")

// A LargeBatchPolicy decides about a batch of records that is too large to be decompressed
// (ErrLargeBatch).
type LargeBatchPolicy uint8

// The policies for large batches.
const (
	// StopAtLargeBatch stops the partition before the batch until the assignment ends.
	StopAtLargeBatch LargeBatchPolicy = iota
	// SkipLargeBatch treats the batch as one record that is undecodable: Route.Undecodable rejects
	// it, or makes it a dead letter that has the position of its first record and, in its error, that
	// of the last. The letter has neither key nor value.
	SkipLargeBatch
)

// A largeBatch stands for the records of a batch that is not decompressed.
type largeBatch struct {
	first, last *kgo.Record // without contents
	err         error
}

func newLargeBatch(e *kgo.ErrDecompressTooLarge, most int64) *largeBatch {
	empty := kgo.Record{Topic: e.Topic, Partition: e.Partition, LeaderEpoch: e.Epoch, Timestamp: time.UnixMilli(-1)}
	first, last := empty, empty
	first.Offset, last.Offset = e.Offset, e.NextOffset-1
	return &largeBatch{&first, &last, fmt.Errorf("%w: offsets %d to %d, more than %d bytes", ErrLargeBatch, first.Offset, last.Offset, most)}
}

// is reports whether rec stands for the batch.
func (l *largeBatch) is(rec *kgo.Record) bool { return l != nil && l.last == rec }
