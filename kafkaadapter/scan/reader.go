package scan

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// maxBatchBytes bounds the memory of a decompressed batch: a few kilobytes of a hostile producer may
// decompress to 1 GiB.
const maxBatchBytes = 128 << 20

// mostRecords is the maximum number of records of a poll.
const mostRecords = 8192

// A reader reads a topic from a time to its end, without a group.
type reader struct {
	client     *kgo.Client
	quiet      time.Duration
	partitions []Partition // by number
}

func newReader(ctx context.Context, o Options) (*reader, error) {
	plain, err := kgo.NewClient(o.Client...)
	if err != nil {
		return nil, fmt.Errorf("scan: making the Kafka client: %w", err)
	}
	defer plain.Close()
	admin := kadm.NewClient(plain)
	ends, err := admin.ListCommittedOffsets(ctx, o.Topic) // the last stable ones
	if err = errors.Join(err, ends.Error()); err != nil {
		return nil, fmt.Errorf("scan: looking up the ends of %s: %w", o.Topic, err)
	}
	starts, err := admin.ListOffsetsAfterMilli(ctx, o.Since.UnixMilli(), o.Topic)
	if err = errors.Join(err, starts.Error()); err != nil {
		return nil, fmt.Errorf("scan: looking up where to begin in %s: %w", o.Topic, err)
	}
	r := &reader{quiet: o.Quiet}
	from := map[int32]kgo.Offset{}
	ends.Each(func(end kadm.ListedOffset) {
		p := Partition{Partition: end.Partition, From: end.Offset, End: end.Offset}
		if start, ok := starts.Lookup(o.Topic, end.Partition); ok && start.Offset < end.Offset {
			p.From = start.Offset
			from[end.Partition] = kgo.NewOffset().At(p.From)
		}
		p.Next = p.From
		r.partitions = append(r.partitions, p)
	})
	slices.SortFunc(r.partitions, func(a, b Partition) int { return int(a.Partition - b.Partition) })
	r.client, err = kgo.NewClient(append(slices.Clone(o.Client), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{o.Topic: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.MaxDecompressBatchBytes(maxBatchBytes))...)
	if err != nil {
		return nil, fmt.Errorf("scan: making the Kafka client: %w", err)
	}
	return r, nil
}

// atEnd reports whether all partitions are read.
func (r *reader) atEnd() bool {
	return !slices.ContainsFunc(r.partitions, func(p Partition) bool { return p.Next < p.End })
}

// poll returns the next records below the ends, without control records. why is set if the scan ends
// with them.
func (r *reader) poll(ctx context.Context) (records []*kgo.Record, why string, err error) {
	limited, cancel := context.WithTimeout(ctx, r.quiet)
	defer cancel()
	fetches := r.client.PollRecords(limited, mostRecords)
	for _, e := range fetches.Errors() {
		switch {
		case ctx.Err() != nil:
			why = fmt.Sprintf("it was ended: %v", context.Cause(ctx))
		case errors.Is(e.Err, context.DeadlineExceeded) && limited.Err() != nil:
			why = fmt.Sprintf("the brokers have sent nothing for %v: the rest may be compacted or aborted", r.quiet)
		default:
			return nil, "", fmt.Errorf("scan: reading %s/%d: %w", e.Topic, e.Partition, e.Err)
		}
	}
	fetches.EachRecord(func(rec *kgo.Record) {
		i, found := slices.BinarySearchFunc(r.partitions, rec.Partition, func(p Partition, n int32) int { return int(p.Partition - n) })
		if !found || rec.Offset >= r.partitions[i].End {
			return // written after the start of the scan
		}
		r.partitions[i].Next = rec.Offset + 1
		if !rec.Attrs.IsControl() {
			records = append(records, rec)
		}
	})
	return records, why, nil
}
