package kafkaadapter

import (
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// firstWidth is the number of records in the first batch of an assignment.
const firstWidth = 64

// A reading is where the goroutine of an assignment is in its partition. Only that goroutine uses
// it: what others use is in the partition.
type reading struct {
	*partition
	ask    requests
	lane   *engine.LaneMember // its batches take turns with those of partitions that share keys with it
	issuer deadletter.Issuer  // of the partition's dead letters

	topicID [16]byte
	next    int64 // the store's offset
	epoch   int32
	taken   []*kgo.Record       // from the queue, and not done yet
	pending *deadletter.Pending // dead letters to publish, nil if they are still to be read from the store
	size    batchSize
	last    error // why the last attempt failed, if it was in this assignment
	blame   *blame
	lookout

	opened      bool      // the client was asked to fetch
	cause       error     // why the partition is looked up again
	waitsSince  time.Time // for an answer of the broker
	lastStop    string    // the reason of the last stop that ended
	lastStopEnd time.Time
	retry       state // what follows a stop
	retryIn     time.Duration
	retries     *backoff.ExponentialBackOff
	adopting    *adoption // the policy to apply once, usually nil
	latest      *int64    // the log's end when Latest began to wait for the store; nil if it did not
	uncertain   int64     // records below it may have been claimed by a batch of unknown outcome, and were not handled
	inStore     int64     // uncertain, once it is known that the batch is in the store
}

func newReading(p *partition, ask requests) *reading {
	opt := &p.c.opt
	most := opt.Batching.MaxBatch
	least := min(p.route.Concurrency.window(), most)
	r := &reading{
		partition: p, ask: ask, retries: backoff.NewExponentialBackOff(),
		size: batchSize{n: max(min(firstWidth, most), least), least: least, most: most, aim: opt.Batching.BatchTime},
	}
	r.retries.InitialInterval, r.retries.MaxInterval = opt.Timeouts.Backoff.Min, opt.Timeouts.Backoff.Max
	if l, _ := p.c.links.get(); l != nil {
		r.attach(l)
	}
	return r
}

// newResult is that of a batch that has done nothing.
func (r *reading) newResult() result {
	return result{topicID: r.topicID, next: r.next, epoch: r.epoch}
}

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

// A blame is why a record cannot commit, found out in a transaction that was undone. In the next
// one the record counts as failed, and its handler is not called.
type blame struct {
	offset int64
	err    error
}

// mayClaim reports whether the store is there, and everything is handled that may have been claimed
// by a batch of unknown outcome: with claims it would be skipped.
func (r *reading) mayClaim() bool {
	at, known := r.offsets.position()
	return !r.c.isAway() && (!known || at.Offset >= r.uncertain)
}

// isOutdated reports whether there is a store that the partition does not use.
func (r *reading) isOutdated() bool {
	if r.c.opt.FailOpen == nil && !r.open.Load() {
		return false
	}
	l, _ := r.c.links.get()
	return (r.open.Load() || r.link.Load() != l) && r.mayClaim()
}

// settle finds out the outcome of a batch of unknown outcome, once the store is there: its offset
// is in it with its claims.
func (r *reading) settle() error {
	if r.c.isAway() {
		return nil
	}
	l, _ := r.c.links.get()
	r.attach(l)
	o, found, err := l.eng.Offset(r.ending, r.pos)
	switch {
	case err != nil:
		return err
	case !found || o.Next < r.uncertain:
		r.uncertain, r.inStore = 0, 0
	default:
		r.inStore = r.uncertain
	}
	return nil
}

// attach has the goroutine use the store of a link.
func (r *reading) attach(l *link) {
	if r.link.Load() == l {
		return
	}
	r.lane = l.eng.JoinLane(2 * r.c.opt.Batching.BatchTime) // a batch begins no handler after half of it
	r.issuer = deadletter.Issuer{Group: r.pos.Group, Scope: r.route.Scope, Store: l.id.UUID, Incarnation: l.id.Incarnation, Secret: l.secret}
	r.link.Store(l)
}

func (r *reading) lastError(n uint32) error {
	if r.last != nil {
		return r.last
	}
	return fmt.Errorf("%d attempts in an earlier run; the process may have died in the handler", n)
}

// readState is the state in which records are handled.
func (r *reading) readState() state {
	if r.open.Load() {
		return unprotected
	}
	return running
}

// inParts reports whether n records are judged in parallel. After an unclean stop n is 1.
func (r *reading) inParts(n int) bool {
	return n > 1 && r.route.Concurrency.Handlers > 1 && r.route.transactional()
}
