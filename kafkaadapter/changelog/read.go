package changelog

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
)

// Pauses of a reader that waits for new records.
const (
	firstPause   = 2 * time.Millisecond
	longestPause = 100 * time.Millisecond
)

// A chunk is the answer to one fetch.
type chunk struct {
	records []*kgo.Record
	next    int64 // the offset at which the next fetch begins
	err     error
}

// Read implements replica.Log. While fn gets the records of one fetch, the next one is under way.
func (l *Log) Read(ctx context.Context, from, to int64, fn func(offset int64, value []byte) bool) error {
	if from >= to {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	var fetching sync.WaitGroup
	defer fetching.Wait()
	defer cancel()
	chunks := make(chan chunk)
	fetching.Go(func() {
		r := reading{log: l, epoch: -1}
		for at := from; at < to; {
			c := r.fetch(ctx, at)
			select {
			case chunks <- c:
			case <-ctx.Done():
				return
			}
			if c.err != nil {
				return
			}
			at = c.next
		}
	})
	for at := from; at < to; {
		var c chunk
		select {
		case c = <-chunks:
		case <-ctx.Done():
			return ctx.Err()
		}
		if c.err != nil {
			return c.err
		}
		for _, r := range c.records {
			if r.Offset >= to {
				return nil
			}
			if !fn(r.Offset, r.Value) {
				return nil
			}
		}
		at = c.next
	}
	return nil
}

// A reading fetches one part of a log after the other.
type reading struct {
	log   *Log
	topic *brokers.Topic
	epoch int32 // of the last record, -1: none was read
}

// fetch returns the next records, and waits until there are some.
func (r *reading) fetch(ctx context.Context, at int64) (c chunk) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		c.err = r.log.until(ctx, "reading", func() (err error) {
			c, err = r.try(ctx, at)
			return err
		})
		if c.err == nil && c.next == at {
			c.err = r.log.client.wait(ctx, pause)
		}
		if c.err != nil || c.next > at {
			return c
		}
	}
}

func (r *reading) try(ctx context.Context, at int64) (chunk, error) {
	if r.topic == nil {
		t, err := r.log.lookUp(ctx)
		if err == nil {
			err = r.checkEpoch(ctx, t, at)
		}
		if err != nil {
			return chunk{}, err
		}
		r.topic = t
	}
	raw, err := r.log.client.ask.Fetch(ctx, r.topic, r.log.of, at, fetchBytes)
	if errors.Is(err, kerr.OffsetOutOfRange) {
		return chunk{}, replica.ErrOutOfRange
	}
	if err != nil {
		r.topic = nil // it has another leader, or is another topic
		return chunk{}, err
	}
	o := kgo.ProcessFetchPartitionOpts{Offset: at, IsolationLevel: kgo.ReadUncommitted(), Topic: r.log.of.Topic, Partition: r.log.of.Partition}
	p, next := kgo.ProcessFetchPartition(o, raw, kgo.DefaultDecompressor(), nil)
	if n := len(p.Records); n > 0 {
		r.epoch = p.Records[n-1].LeaderEpoch
	} else if p.Err != nil {
		return chunk{}, p.Err
	}
	return chunk{records: p.Records, next: next}, nil
}

// checkEpoch checks that a new leader has what was read of the epoch before: otherwise the offset at which
// reading continues has another record than the one that follows.
func (r *reading) checkEpoch(ctx context.Context, t *brokers.Topic, at int64) error {
	if r.epoch < 0 {
		return nil
	}
	found, err := r.log.client.ask.Log(ctx, t, r.log.of, r.epoch)
	if err != nil {
		return err
	}
	end := found.EpochEnd
	if end < 0 { // it has no record of a later epoch: that of the log decides
		end = found.End
	}
	if end < at {
		return replica.ErrOutOfRange
	}
	return nil
}
