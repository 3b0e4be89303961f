package consumer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/bench/internal/topics"
)

// A feed reads the topic and passes batches to a sink, with a goroutine for each partition. If the
// sink does not store offsets, the feed commits them to Kafka often, and never ahead of the sink.
type feed struct {
	order   *Order
	sink    sink
	client  *kgo.Client
	commits bool
	next    []atomic.Int64 // by partition: the first offset that is not done
	done    atomic.Uint64  // records
	clock   topics.Clock
}

// A looping sink is called by the goroutine that polls, with the records of a poll.
type looping interface{ loops() }

// commitEvery is short compared with a run, so that a kill half-way finds committed offsets.
const commitEvery = 100 * time.Millisecond

func consume(ctx context.Context, o *Order, s sink, progress func(uint64)) (Result, error) {
	f := &feed{order: o, sink: s, next: make([]atomic.Int64, len(o.Ends))}
	if err := f.open(ctx); err != nil {
		return Result{}, err
	}
	defer f.client.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopped := make(chan struct{})
	var beside sync.WaitGroup
	beside.Go(func() { f.report(stopped, progress) })
	err := f.read(ctx, cancel)
	seconds := f.clock.Seconds()
	if o.Hold && err == nil {
		<-ctx.Done()
	}
	close(stopped)
	beside.Wait()
	if err == nil && f.commits {
		err = f.client.CommitMarkedOffsets(ctx)
	}
	if err != nil {
		return Result{}, err
	}
	r, err := s.state(ctx)
	r.Seconds = seconds
	return r, err
}

// open finds out where to continue, and connects.
func (f *feed) open(ctx context.Context) error {
	o := f.order
	next, err := f.sink.offsets(ctx)
	if err != nil {
		return err
	}
	hook := kgo.WithHooks(&f.clock)
	if f.commits = next == nil; f.commits {
		f.client, next, err = topics.Join(ctx, o.Brokers, o.Group, o.Topic, len(o.Ends), hook, kgo.AutoCommitMarks(), kgo.AutoCommitInterval(commitEvery))
	} else {
		from := map[int32]kgo.Offset{}
		for p, at := range next {
			if at < o.Ends[p] {
				from[int32(p)] = kgo.NewOffset().At(at)
			}
		}
		f.client, err = kgo.NewClient(append(topics.Reading(o.Brokers), hook, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{o.Topic: from}))...)
	}
	for p, at := range next {
		f.next[p].Store(at)
	}
	return err
}

func (f *feed) report(stopped <-chan struct{}, progress func(uint64)) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stopped:
			return
		case <-tick.C:
			progress(f.done.Load())
		}
	}
}

func (f *feed) atEnd() bool {
	for p, end := range f.order.Ends {
		if f.next[p].Load() < end {
			return false
		}
	}
	return true
}

// read passes all records to the sink, and returns when the sink has applied them.
func (f *feed) read(ctx context.Context, fail context.CancelCauseFunc) error {
	if _, ok := f.sink.(looping); ok {
		return f.loop(ctx)
	}
	lanes := make([]chan []*kgo.Record, len(f.order.Ends))
	var all sync.WaitGroup
	left := make([]int64, len(f.order.Ends)) // records to be polled
	waiting := int64(0)
	for p := range lanes {
		left[p] = f.order.Ends[p] - f.next[p].Load()
		waiting += max(left[p], 0)
		lanes[p] = make(chan []*kgo.Record, 4)
		all.Go(func() {
			if err := f.lane(ctx, int32(p), lanes[p]); err != nil {
				fail(err)
			}
		})
	}
	for waiting > 0 && ctx.Err() == nil {
		fetches := f.client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			fail(err)
			break
		}
		fetches.EachPartition(func(t kgo.FetchTopicPartition) {
			if len(t.Records) == 0 {
				return
			}
			waiting -= int64(len(t.Records))
			select {
			case lanes[t.Partition] <- t.Records:
			case <-ctx.Done():
			}
		})
	}
	for _, lane := range lanes {
		close(lane)
	}
	all.Wait()
	return context.Cause(ctx)
}

// lane divides a partition's records into batches.
func (f *feed) lane(ctx context.Context, p int32, in <-chan []*kgo.Record) error {
	var batch []*kgo.Record
	flush := func() error {
		if len(batch) == 0 || ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := f.sink.apply(ctx, p, batch); err != nil {
			return err
		}
		f.advance(batch)
		batch = batch[:0]
		return nil
	}
	for recs := range in {
		for len(recs) > 0 {
			n := min(Batch-len(batch), len(recs))
			batch = append(batch, recs[:n]...)
			recs = recs[n:]
			if len(batch) == Batch {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	return flush()
}

func (f *feed) advance(recs []*kgo.Record) {
	last := recs[len(recs)-1]
	f.next[last.Partition].Store(last.Offset + 1)
	f.done.Add(uint64(len(recs)))
	if f.commits {
		f.client.MarkCommitRecords(last)
	}
}

// loop polls and applies in one goroutine.
func (f *feed) loop(ctx context.Context) error {
	for !f.atEnd() {
		fetches := f.client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		var err error
		fetches.EachPartition(func(t kgo.FetchTopicPartition) {
			if len(t.Records) == 0 || err != nil {
				return
			}
			if err = f.sink.apply(ctx, t.Partition, t.Records); err == nil {
				f.advance(t.Records)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}
