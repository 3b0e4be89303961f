package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A feed reads the topic and hands batches to a sink, with a goroutine for each partition. Offsets
// are committed to Kafka often, never ahead of the sink.
type feed struct {
	*Order
	sink   sink
	client *kgo.Client
	admin  *kadm.Client
	next   []atomic.Int64 // by partition: the first offset that is not done
	done   atomic.Uint64  // records
	clock  clock
}

// A looping sink is called by the goroutine that polls, with what a poll has brought.
type looping interface{ loops() }

// commitEvery is short beside a run, so that a kill half-way finds committed offsets.
const commitEvery = 100 * time.Millisecond

func consume(ctx context.Context, o *Order, s sink, progress func(uint64)) (Result, error) {
	f := &feed{Order: o, sink: s, next: make([]atomic.Int64, len(o.Ends))}
	if err := f.open(ctx); err != nil {
		return Result{}, err
	}
	defer f.client.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopped := make(chan struct{})
	var beside sync.WaitGroup
	beside.Go(func() { f.commitOften(ctx, stopped, cancel) })
	beside.Go(func() { f.report(stopped, progress) })
	err := f.read(ctx, cancel)
	seconds := f.clock.seconds()
	if o.Hold && err == nil {
		<-ctx.Done()
	}
	close(stopped)
	beside.Wait()
	if err == nil {
		err = f.commit(ctx)
	}
	if err != nil {
		return Result{}, err
	}
	r, err := s.state(ctx)
	r.Seconds = seconds
	return r, err
}

// open finds out where to go on, and connects.
func (f *feed) open(ctx context.Context) error {
	plain, err := kgo.NewClient(kgo.SeedBrokers(f.Brokers...))
	if err != nil {
		return err
	}
	f.admin = kadm.NewClient(plain)
	next, err := f.sink.offsets(ctx)
	if err == nil && next == nil {
		next, err = f.committed(ctx)
	}
	if err != nil {
		plain.Close()
		return err
	}
	from := map[int32]kgo.Offset{}
	for p, at := range next {
		f.next[p].Store(at)
		if at < f.Ends[p] {
			from[int32(p)] = kgo.NewOffset().At(at)
		}
	}
	plain.Close()
	f.client, err = kgo.NewClient(kgo.SeedBrokers(f.Brokers...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{f.Topic: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.WithHooks(&f.clock))
	f.admin = kadm.NewClient(f.client)
	return err
}

// committed asks Kafka for the group's offsets.
func (f *feed) committed(ctx context.Context) ([]int64, error) {
	next := make([]int64, len(f.Ends))
	var offsets kadm.OffsetResponses
	var err error
	for range 60 { // a broker that has never had a group makes their topic first
		offsets, err = f.admin.FetchOffsets(ctx, f.Group)
		if err == nil || !kerr.IsRetriable(err) {
			break
		}
		time.Sleep(500 * time.Millisecond)
	}
	if errors.Is(err, kerr.GroupIDNotFound) { // it is new
		return next, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking up the group's offsets: %w", err)
	}
	offsets.Each(func(o kadm.OffsetResponse) {
		if o.Topic == f.Topic && o.At > 0 {
			next[o.Partition] = o.At
		}
	})
	return next, nil
}

func (f *feed) commitOften(ctx context.Context, stopped <-chan struct{}, fail context.CancelCauseFunc) {
	tick := time.NewTicker(commitEvery)
	defer tick.Stop()
	for {
		select {
		case <-stopped:
			return
		case <-tick.C:
			if err := f.commit(ctx); err != nil && ctx.Err() == nil {
				fail(fmt.Errorf("committing offsets: %w", err))
				return
			}
		}
	}
}

func (f *feed) commit(ctx context.Context) error {
	offsets := make(kadm.Offsets)
	for p := range f.next {
		offsets.Add(kadm.Offset{Topic: f.Topic, Partition: int32(p), At: f.next[p].Load(), LeaderEpoch: -1})
	}
	committed, err := f.admin.CommitOffsets(ctx, f.Group, offsets)
	if err == nil {
		err = committed.Error()
	}
	if kerr.IsRetriable(err) { // as above; it is tried again
		return nil
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
	for p, end := range f.Ends {
		if f.next[p].Load() < end {
			return false
		}
	}
	return true
}

// read hands over all records, and returns when the sink has applied them.
func (f *feed) read(ctx context.Context, fail context.CancelCauseFunc) error {
	if _, ok := f.sink.(looping); ok {
		return f.loop(ctx)
	}
	lanes := make([]chan []*kgo.Record, len(f.Ends))
	var all sync.WaitGroup
	left := make([]int64, len(f.Ends)) // to be polled
	waiting := int64(0)
	for p := range lanes {
		left[p] = f.Ends[p] - f.next[p].Load()
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

// lane cuts a partition's records into batches.
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
