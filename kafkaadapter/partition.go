package kafkaadapter

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/wait"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/feed"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/owner"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// A partition is one assignment of a partition to this consumer, as the poll loop, the callbacks of
// the group and the application see it. Its goroutine, the worker, has the rest of the state.
type partition struct {
	c        *shared
	all      *assignments
	pos      engine.OffsetKey
	route    *Route
	log      *slog.Logger
	queue    *feed.Queue          // filled by the poll loop, emptied by the goroutine
	links    *links               // to the store: the consumer's, or with a changelog the partition's
	store    ownStore             // with a changelog
	link     atomic.Pointer[link] // the one that the goroutine uses; nil before the first
	open     atomic.Bool          // records are handled without claims: see unprotected.go
	fence    owner.Fence          // owns the partition in the store
	offsets  offsets
	backlog  backlog
	ends     logEnds
	hold     hold
	shape    atomic.Pointer[resume.Topic] // of the topic, as it was taken over; nil if it does not matter
	handlers handlers

	ctx    context.Context // of handlers; nothing commits after it has ended
	cancel context.CancelCauseFunc
	ending context.Context // after it has ended, the running batch finishes and no other begins
	end    context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended

	cutOff sync.Once
	// closed when the store has the end of the ownership of a partition that was cut off
	released chan struct{}

	// an earlier assignment that was not revoked and is to be fenced; usually nil
	before    atomic.Pointer[partition]
	adoptions chan *adoption // to the stopped goroutine

	onStop   stopHook
	progress progress                  // used only by watchLoop
	standing atomic.Pointer[StopError] // of watchLoop: it does not move; usually nil
	hindered atomic.Pointer[hindrance] // why the record at its offset has not committed; nil if it was not tried

	mu   sync.Mutex // guards stat
	stat status

	// Used only by the poll loop.
	fetchAt int64    // where the client begins to fetch when it is resumed for the first time
	fetchID [16]byte // the topic's id; zero until then, and for brokers without topic ids
	fetched bool     // the client was resumed
}

// newPartition makes an assignment that has not begun. The client fetches from the offset when it
// is first resumed.
func newPartition(c *shared, all *assignments, tp topicPartition, committed *brokers.Commit, at int64) *partition {
	pos := engine.OffsetKey{Group: c.opt.Group, Topic: tp.topic, Partition: tp.partition}
	route := c.opt.route(tp.topic)
	p := &partition{
		c: c, all: all, pos: pos, route: route, links: &c.links,
		log:       c.opt.Telemetry.Logger.With("topic", tp.topic, "partition", tp.partition),
		offsets:   offsets{stored: kgo.EpochOffset{Offset: at}, kafka: committed, seen: committed},
		hold:      hold{name: holdName(pos), lateness: route.allowedLateness + route.Window},
		handlers:  handlers{limit: route.HandlerTimeout, ends: make([]atomic.Int64, max(1, route.Concurrency.handlers))},
		done:      make(chan struct{}),
		released:  make(chan struct{}),
		adoptions: make(chan *adoption, 1),
		onStop:    newStopHook(c.opt.OnStop),
		fetchAt:   at,
	}
	if c.stores != nil {
		p.links, p.store.stores = &links{}, c.stores
	}
	p.queue = feed.NewQueue(all.memory, p)
	p.fence = owner.New(ownerStore{p.engine, pos})
	p.handlers.running.Store(-1)
	p.stat.state = p.store.first()
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.ending, p.end = context.WithCancel(p.ctx)
	return p
}

// engine is that of the link; nil before the first.
func (p *partition) engine() *engine.Engine {
	if l := p.link.Load(); l != nil {
		return l.eng
	}
	return nil
}

func (p *partition) tp() topicPartition { return topicPartition{p.pos.Topic, p.pos.Partition} }

// only returns the partition in the form that the client expects.
func (p *partition) only() map[string][]int32 {
	return map[string][]int32{p.pos.Topic: {p.pos.Partition}}
}

func (p *partition) isEnding() bool { return p.ending.Err() != nil }

// wait pauses; it returns false if the assignment ends.
func (p *partition) wait(d time.Duration) bool {
	return wait.For(p.ending, d) == nil
}

// finish waits for the goroutine until over is closed. After that, the work is cut off: its context
// ends, and the assignment is no longer the owner in the store, so that nothing of it commits. It
// reports whether the goroutine had ended. It does not wait for a store that does not answer: a
// write that hangs there commits before the next owner begins, or not at all.
func (p *partition) finish(over <-chan struct{}, waited time.Duration) (ended bool) {
	// cut off when this assignment began, and perhaps not fenced yet
	if before := p.before.Load(); before != nil {
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
	p.cutOff.Do(func() { p.cut(waited) })
	select {
	case <-p.released:
	case <-time.After(fenceTime):
		if !p.store.exists() {
			p.log.Error("the store does not answer; the partition is given up when it does", "waited", fenceTime)
		}
	}
	p.store.revoke()
	return false
}

// fenceTime bounds the wait for the store when an assignment is cut off.
const fenceTime = time.Second

// leave ends the ownership when the goroutine ends normally. An attempt that was stored but did not
// begin is removed.
func (p *partition) leave() {
	if err := p.fence.Unmark(p.ctx); err != nil && !isEnd(err) && !p.store.isRevoked() {
		p.log.Warn("an attempt that did not begin could not be removed and still counts", "offset", p.fence.Tries().Offset, "error", err)
	}
	if err := p.fence.Release(); err != nil && !p.store.isRevoked() {
		p.log.Error("releasing a partition in the store failed", "error", err)
	}
}

// cut ends the work after the time limit, and begins to release the ownership of the partition in
// the store. With AtMostOnce, claims whose handlers have not begun are withdrawn before.
func (p *partition) cut(waited time.Duration) {
	inOrder := waited > 0
	var b *result
	var rest []claimed // AtMostOnce: only the running handler has begun
	if inOrder {
		b, rest = p.backlog.cut()
	}
	p.cancel(ErrFenced)
	p.queue.Drop()
	if !inOrder {
		p.store.revoke()
	}
	if inOrder {
		args := []any{"waited", waited, "hint", "handlers have to end, or to watch their context, within the timeout"}
		if offset := p.handlers.running.Load(); offset >= 0 {
			args = append(args, "offset", offset)
		}
		p.log.Error("a handler still runs, or Decode, or Changelog.OnOwned; its work is dropped, and the record is handled again by the next owner", args...)
		p.c.m.fenced.WithLabelValues(p.pos.Topic).Inc()
	}
	if p.open.Load() { // the store has nothing of it
		p.endBacklog(b, rest)
		close(p.released)
		return
	}
	go func() {
		defer close(p.released)
		p.endBacklog(b, rest)
		if err := p.fence.Release(); err != nil && !p.store.isRevoked() {
			p.log.Error("giving up a partition in the store failed", "error", err)
		}
	}()
}

// markUncertain makes Kafka's commit say that records below until may be claimed but not handled. It is
// committed when the assignment ends, if not earlier: the next owner handles these records without
// claims.
func (p *partition) markUncertain(until int64) {
	if p.c.opt.ReopenStore != nil {
		p.offsets.markUncertain(authorOf(p.link.Load().id).OpenMark(until))
	}
}

// attemptLimit is the maximum number of attempts at a record. The store counts them in 32 bits.
func (p *partition) attemptLimit() uint64 {
	if m, ok := p.route.Mode.(Transactional); ok {
		return min(uint64(m.MaxAttempts), math.MaxUint32)
	}
	return math.MaxUint64
}

// IsPaused reports whether the application has paused the partition.
func (p *partition) IsPaused() bool { return p.c.pauses.has(p.tp()) }

// Stable, Pause and Resume are for the queue, see feed.Owner.
func (p *partition) Stable() int64 { return p.ends.stable.Load() }

func (p *partition) Pause(change func() bool) {
	p.all.whileAssigned(p, func() {
		if change() {
			p.c.brokers.client.PauseFetchPartitions(p.only())
			p.c.m.paused.WithLabelValues(p.pos.Topic).Inc()
		}
	})
}

func (p *partition) Resume(change func() bool) {
	p.all.whileAssigned(p, func() {
		if change() {
			p.c.brokers.client.ResumeFetchPartitions(p.only())
		}
	})
}

// status returns the state, the reason if the partition is not read or does not move, and the time of
// the next try.
func (p *partition) status() status {
	s := p.currentStatus()
	if e := p.standing.Load(); e != nil && s.stop == nil && s.state != ended {
		s.stop = e
	}
	return s
}

// currentStatus is status without what watchLoop has found.
func (p *partition) currentStatus() status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stat
}

func (p *partition) enter(s state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stat.state = s
}

// progress is what watchLoop knows of a partition.
type progress struct {
	next  int64     // the partition's offset
	since time.Time // when it was first seen there with something to wait for; zero if it waits for nothing
}

// A hindrance is why the record at an offset has not committed yet, as the partition's goroutine has
// last found.
type hindrance struct {
	offset int64
	reason string // of a StopError
	err    error
}
