package kafkaadapter

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// firstWidth is the number of records in the first batch of an assignment.
const firstWidth = 64

// requests are what a partition asks others for.
type requests struct {
	openings   *openings
	forgetting chan *partition // whose topics the client is to forget and find again; the partitions are assigned anew then
	commits    *committer
}

// forget asks for the topic of p to be forgotten.
func (r requests) forget(p *partition) {
	select {
	case r.forgetting <- p:
	default: // it asks again
	}
}

// A partition is one assignment of a partition to this consumer: a queue that the poll loop fills,
// the fence that owns the partition in the store, and a goroutine that goes through the states and
// handles the records in order.
type partition struct {
	c       *shared
	all     *assignments
	ask     requests
	pos     engine.Position
	route   *Route
	issuer  deadletter.Issuer // of the partition's dead letters
	log     *slog.Logger
	queue   queue
	lane    *engine.LaneMember   // its batches take turns with those of partitions that share keys with it
	link    atomic.Pointer[link] // to the store; nil before the first
	open    atomic.Bool          // records are handled without claims: see unprotected.go
	fence   fence
	offsets offsets
	backlog backlog
	ends    logEnds

	ctx    context.Context // of handlers; after its end nothing commits
	cancel context.CancelCauseFunc
	ending context.Context // after its end the running batch finishes and no other begins
	end    context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended

	before    atomic.Pointer[partition] // an earlier assignment that was not taken away and is to be fenced; usually nil
	adoptions chan *adoption            // to the stopped goroutine

	batchAt  atomic.Int64               // when the present batch or its handlers began, Unix nanoseconds; 0 between batches
	handling atomic.Pointer[kgo.Record] // the record that the handler has or had last, for messages

	handlerEnds []atomic.Int64 // when the contexts of running handlers end, by slot, Unix nanoseconds; 0 if that is not bounded

	mu     sync.Mutex // guards what follows
	stat   status
	holdAt time.Time

	// The poll loop's own.
	fetchAt int64    // the client fetches from here when it is resumed for the first time
	fetchID [16]byte // the topic's id; zero until then, and for brokers without topic ids
	fetched bool     // it was resumed

	// The goroutine's own.
	topicID     [16]byte
	view        *view  // as looked up last
	opened      bool   // the client was asked to fetch
	cause       error  // why the partition is looked up again
	lastStop    string // the reason of the last stop that ended
	lastStopEnd time.Time
	retry       state // what follows a stop
	retryIn     time.Duration
	retries     *backoff.ExponentialBackOff
	adopting    *adoption // the policy to apply once, usually nil
	uncertain   int64     // records below it may have been claimed by a batch of unknown outcome, and were not handled
	inStore     int64     // uncertain, once it is known that the batch is in the store
	worker
}

// newPartition makes an assignment that has not begun. The client fetches from the offset at once
// it is resumed.
func newPartition(a *assigner, tp topicPartition, committed *commit, at int64) *partition {
	c := a.shared
	pos := engine.Position{Group: c.opt.Group, Topic: tp.topic, Partition: tp.partition}
	p := &partition{
		c: c, all: a.parts, ask: a.requests, pos: pos, route: c.opt.route(tp.topic),
		log:       c.opt.Telemetry.Logger.With("topic", tp.topic, "partition", tp.partition),
		queue:     queue{wake: make(chan struct{}, 1)},
		offsets:   offsets{kafka: committed, seen: committed},
		done:      make(chan struct{}),
		adoptions: make(chan *adoption),
		fetchAt:   at,
		retries:   backoff.NewExponentialBackOff(),
		worker:    worker{size: batchSize{n: min(firstWidth, c.opt.Batching.MaxBatch), most: c.opt.Batching.MaxBatch, aim: c.opt.Batching.BatchTime}},
	}
	p.handlerEnds = make([]atomic.Int64, max(1, p.route.Concurrency.Handlers))
	p.size.least = min(p.route.Concurrency.window(), p.size.most)
	p.size.n = max(p.size.n, p.size.least)
	p.retries.InitialInterval, p.retries.MaxInterval = c.opt.Backoff.Min, c.opt.Backoff.Max
	p.fence = newFence(p.engine, pos)
	if c.opt.FailOpen != nil && committed != nil {
		p.uncertain = parseOpenMark(committed.metadata).until
		if committed.offset < p.uncertain { // failOpen begins there; the client may not take a seek backwards before it has the partition
			p.fetchAt = min(p.fetchAt, committed.offset)
		}
	}
	if l, _ := c.links.get(); l != nil {
		p.attach(l)
	}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.ending, p.end = context.WithCancel(p.ctx)
	return p
}

// attach has the goroutine use the store of a link.
func (p *partition) attach(l *link) {
	if p.link.Load() == l {
		return
	}
	p.lane = l.eng.JoinLane(2 * p.c.opt.Batching.BatchTime) // a batch begins no handler after half of it
	p.issuer = deadletter.Issuer{Group: p.pos.Group, Scope: p.route.Scope, Store: l.id.UUID, Incarnation: l.id.Incarnation, Secret: l.secret}
	p.link.Store(l)
}

// engine is that of the link; nil before the first.
func (p *partition) engine() *engine.Engine {
	if l := p.link.Load(); l != nil {
		return l.eng
	}
	return nil
}

func (p *partition) tp() topicPartition { return topicPartition{p.pos.Topic, p.pos.Partition} }

// only names the partition as the client wants it.
func (p *partition) only() map[string][]int32 {
	return map[string][]int32{p.pos.Topic: {p.pos.Partition}}
}

func (p *partition) isEnding() bool { return p.ending.Err() != nil }

// wait pauses; it returns false if the assignment ends.
func (p *partition) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.ending.Done():
		return false
	case <-t.C:
		return true
	}
}

// finish waits for the goroutine until over is closed. After that the work is cut off: its context
// ends, and the assignment is no longer the owner in the store, so that nothing of it commits. It
// reports whether the goroutine had ended. A store that does not answer is not waited for: what
// hangs there comes before the next owner, or not at all.
func (p *partition) finish(over <-chan struct{}, waited time.Duration) (ended bool) {
	if before := p.before.Load(); before != nil { // it was cut off when this assignment began, and may not be fenced yet
		now := make(chan struct{})
		close(now)
		before.finish(now, 0)
	}
	select {
	case <-p.done:
		return true
	case <-over:
		select {
		case <-p.done:
			return true
		default:
		}
	}
	inOrder := waited > 0
	var b *batch
	var rest []claimed // of AtMostOnce: the handler that still runs is the only one that has begun
	if inOrder {
		b, rest = p.backlog.rest()
	}
	p.cancel(ErrFenced)
	if inOrder {
		args := []any{"waited", waited, "hint", "handlers have to end, or to watch their context, within the timeout"}
		if rec := p.handling.Load(); rec != nil {
			args = append(args, "offset", rec.Offset)
		}
		p.log.Error("a handler still runs; its work is dropped, and the record is handled again by the next owner", args...)
		p.c.m.fenced.WithLabelValues(p.pos.Topic).Inc()
	}
	if p.open.Load() {
		p.endBacklog(b, rest)
		return false // nothing of it is in the store
	}
	released := make(chan error, 1)
	go func() {
		p.endBacklog(b, rest)
		released <- p.fence.release()
	}()
	select {
	case err := <-released:
		if err != nil {
			p.log.Error("giving up a partition in the store failed", "error", err)
		}
	case <-time.After(fenceTime):
		p.log.Error("the store does not answer; the partition is given up when it does", "waited", fenceTime)
	}
	return false
}

// under notes that a batch, or its handlers, have been under way since began. Call the returned
// func when done.
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

// overdue is how long a handler has been running since its context ended by Route.HandlerTimeout,
// the longest if there are several, or less than 0.
func (p *partition) overdue() (most time.Duration) {
	most = -1
	for i := range p.handlerEnds {
		if at := p.handlerEnds[i].Load(); at != 0 {
			most = max(most, time.Since(time.Unix(0, at)))
		}
	}
	return most
}
