package kafkaadapter

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
)

// firstWidth is the number of records in the first batch of an assignment.
const firstWidth = 64

// A partition is one assignment of a partition to this consumer. A worker of its own judges its records in order; it
// ends with the assignment.
type partition struct {
	c       *Consumer
	pos     engine.Position
	topicID [16]byte
	token   [16]byte
	log     *slog.Logger

	ctx    context.Context // of handlers; its end means that nothing commits any more
	cancel context.CancelCauseFunc
	ending context.Context // its end means: finish the batch that runs, begin none
	end    context.CancelFunc
	done   chan struct{} // closed when the worker has ended
	wake   chan struct{} // something is in the queue, or it is time to look around

	stable  atomic.Int64 // last stable offset that the broker told
	toldAt  atomic.Int64 // when it did, Unix nanoseconds
	nextOut atomic.Int64 // next, for those who look on
	batchAt atomic.Int64 // when the present batch or its handlers began, Unix nanoseconds; 0 between batches

	handling atomic.Pointer[kgo.Record] // what the handler has or had last, for messages

	mu        sync.Mutex // guards what follows
	queue     [][]*kgo.Record
	queued    int
	paused    bool
	pausedAt  time.Time
	slow      bool            // its queue lasted for longer than pauseAfter
	committed kgo.EpochOffset // what Kafka has
	stored    kgo.EpochOffset // what the store has
	holdAt    time.Time

	// The worker's own.
	askedAt time.Time // when the broker was asked last for the log's end
	signed  bool      // Kafka's commit bears this store's identity
	next    int64
	epoch   int32
	tries   attempts
	last    error // why the last attempt failed, if it was in this assignment
	careful int   // how many records are still to be handled one by one, their attempts stored first
	marked  bool  // the attempt at the next record is stored
	width   uint32
	size    batchSize
	buf     []*kgo.Record
	ahead   [lookAhead]sighting
	events  []engine.Event // of those ahead
	spare   []*Record      // see newRecord
}

func newPartition(c *Consumer, v *view) *partition {
	p := &partition{
		c:       c,
		pos:     engine.Position{Group: c.opt.Group, Topic: v.topic, Partition: v.partition},
		topicID: v.topicID,
		log:     c.opt.Logger.With("topic", v.topic, "partition", v.partition),
		done:    make(chan struct{}),
		wake:    make(chan struct{}, 1),
		size:    batchSize{n: min(firstWidth, c.opt.MaxBatch), most: c.opt.MaxBatch, aim: c.opt.BatchTime},
	}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.ending, p.end = context.WithCancel(p.ctx)
	p.told(v.end)
	p.committed.Offset = -1
	if v.committed != nil && v.committed.metadata == c.self {
		p.committed.Offset, p.signed = v.committed.offset, true
	}
	return p
}

func (p *partition) tp() topicPartition { return topicPartition{p.pos.Topic, p.pos.Partition} }

// push hands records to the worker.
func (p *partition) push(recs []*kgo.Record, stable int64) {
	if stable >= 0 {
		p.told(stable)
	}
	p.mu.Lock()
	if len(recs) > 0 {
		p.queue = append(p.queue, recs)
		p.queued += len(recs)
	}
	p.mu.Unlock()
	p.nudge()
}

// full reports whether the worker has enough. p.mu is held.
func (p *partition) full() bool { return p.queued >= p.c.queueLimit() }

func (p *partition) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// take returns up to n records in order, once there are any; none when the assignment ends. idle is called when there
// are none.
func (p *partition) take(n func() int, idle func()) []*kgo.Record {
	for {
		select {
		case <-p.ending.Done():
			return nil
		default:
		}
		if recs := p.pop(n()); len(recs) > 0 {
			return recs
		}
		idle()
		select {
		case <-p.ending.Done():
			return nil
		case <-p.wake:
		}
	}
}

func (p *partition) pop(n int) []*kgo.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.buf = p.buf[:0]
	for len(p.queue) > 0 && len(p.buf) < n {
		head := p.queue[0]
		k := min(n-len(p.buf), len(head))
		p.buf = append(p.buf, head[:k]...)
		clear(head[:k])
		if p.queue[0] = head[k:]; k == len(head) {
			p.queue[0] = nil
			p.queue = p.queue[1:]
		}
	}
	p.queued -= len(p.buf)
	if p.paused && p.queued <= p.c.queueLimit()/4 {
		p.paused, p.slow = false, time.Since(p.pausedAt) > pauseAfter
		p.c.whileAssigned(p, func() { p.c.client.ResumeFetchPartitions(map[string][]int32{p.pos.Topic: {p.pos.Partition}}) })
	}
	return p.buf
}

// pause stops fetching while the worker has enough.
func (p *partition) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused || !p.full() {
		return
	}
	p.paused, p.pausedAt = true, time.Now()
	p.c.whileAssigned(p, func() { p.c.client.PauseFetchPartitions(map[string][]int32{p.pos.Topic: {p.pos.Partition}}) })
	p.c.m.paused.WithLabelValues(p.pos.Topic).Inc()
}

func (p *partition) isSlow() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slow
}

// room reports whether the queue takes more.
func (p *partition) room() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused || !p.full()
}

// finish waits for the worker, but no longer than until over is closed, and then makes sure that nothing of it commits
// any more: its context ends, and it is no longer the owner in the store. It reports whether the worker had ended.
func (p *partition) finish(over <-chan struct{}, waited time.Duration) (ended bool) {
	select {
	case <-p.done:
		ended = true
	case <-over:
		select {
		case <-p.done:
			ended = true
		default:
		}
	}
	p.cancel(ErrFenced)
	if !ended && waited > 0 {
		args := []any{"waited", waited, "hint", "handlers have to end, or to watch their context, within the timeout"}
		if rec := p.handling.Load(); rec != nil {
			args = append(args, "offset", rec.Offset)
		}
		p.log.Error("a handler still runs; its work is dropped, and the record is handled again by the next owner", args...)
		p.c.m.fenced.WithLabelValues(p.pos.Topic).Inc()
	}
	if err := p.release(); err != nil {
		p.log.Error("giving up a partition in the store failed", "error", err)
	}
	return ended
}

// release makes nobody the owner, unless somebody else already is. A batch that is still being made is in conflict with
// it, or comes before it.
func (p *partition) release() error {
	return p.c.eng.Update(context.Background(), func(tx *engine.Tx) error {
		o, err := readOwner(tx, p.pos)
		if err != nil || o.token != p.token {
			return err
		}
		return tx.Put(partitionKey(keyOwner, p.pos), owner{width: o.width}.encode())
	}, engine.Retries(1000))
}

// moved notes the position that the store has.
func (p *partition) moved() {
	p.nextOut.Store(p.next)
	p.mu.Lock()
	p.stored = kgo.EpochOffset{Epoch: p.epoch, Offset: p.next}
	p.mu.Unlock()
}

// toCommit returns the offset that Kafka does not have yet.
func (p *partition) toCommit() (kgo.EpochOffset, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stored, p.stored.Offset != p.committed.Offset
}

func (p *partition) didCommit(at kgo.EpochOffset) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.committed = at
}

// under notes that a batch, or what comes of it, is under way since began. The function that it returns ends that.
func (p *partition) under(began time.Time) (over func()) {
	p.batchAt.Store(began.UnixNano())
	return func() { p.batchAt.Store(0) }
}

// batchAge is how long the present batch has been under way.
func (p *partition) batchAge() time.Duration {
	if at := p.batchAt.Load(); at != 0 {
		return max(0, time.Since(time.Unix(0, at)))
	}
	return 0
}

// told notes the last stable offset.
func (p *partition) told(stable int64) {
	p.stable.Store(stable)
	p.toldAt.Store(time.Now().UnixNano())
}

// freshFor is how long the broker's word on the end of the log counts. A partition that could not be fetched for weeks
// must not be taken for one that is caught up.
const freshFor = time.Minute

func (p *partition) isFresh() bool { return time.Since(time.Unix(0, p.toldAt.Load())) < freshFor }

// caughtUp reports whether next is the last stable offset, as the broker told not long ago.
func (p *partition) caughtUp(next int64) bool { return next >= p.stable.Load() && p.isFresh() }

// A batchSize finds the number of records of a batch whose handlers take about as long as aimed at. The time to commit
// does not count: where it is long, smaller batches would only need more of it.
type batchSize struct {
	n, most int
	aim     time.Duration
}

// took notes how long the handlers of a batch of n records took.
func (s *batchSize) took(n int, d time.Duration) {
	switch {
	case d > s.aim:
		s.n = max(1, min(s.n, n)/2)
	case n >= s.n && d < s.aim/2:
		s.n = min(2*s.n, s.most)
	}
}
