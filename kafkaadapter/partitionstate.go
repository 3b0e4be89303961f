package kafkaadapter

import (
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// firstWidth is the number of records in the first batch of an assignment.
const firstWidth = 64

// A partitionState is the position of an assignment's goroutine in its partition, with the state that goes
// with it. Only that goroutine uses it; the state that others use is in the partition.
type partitionState struct {
	partition *partition
	ask       requests
	lane      *driver.LaneMember // its batches take turns with those of partitions that share keys with it
	issuer    deadletter.Builder // of the partition's dead letters
	rules     identify.Rules     // of the route
	// the longest window that the engine keeps for events of the route that have no time
	longest time.Duration

	topicID [16]byte
	next    int64 // the store's offset
	epoch   int32
	taken   []*kgo.Record // from the queue, and not done yet
	buf     []*kgo.Record // the memory of taken
	large   *largeBatch   // the batch that is passed, nil if there is none
	// dead letters to publish, nil if they have not been read from the store yet
	pending *deadletter.Pending
	size    batchSize
	last    error // the error of the last attempt, if this assignment made it
	blame   *blame
	lookout lookout

	lost        bool   // the changelog seemed to have lost records, see restore
	refused     bool   // the group's commit could not be fetched at the assignment
	opened      bool   // the client was asked to fetch
	cause       error  // why the partition is looked up again
	lastStop    string // the reason of the last stop that ended
	lastStopEnd time.Time
	retry       state // the state after a stop
	retryIn     time.Duration
	retries     *backoff.ExponentialBackOff
	adopting    *adoption // the policy to apply once, usually nil
	latest      *int64    // the log's end when Latest began to wait for the store; nil if it did not
	// records below it may have been claimed by a batch of unknown outcome, and were not handled
	uncertain int64
	inStore   int64 // uncertain, once the batch is known to be in the store
}

func newReading(p *partition, ask requests) *partitionState {
	opt := &p.c.opt
	most := opt.MaxBatch
	least := min(p.route.Concurrency.window(), most)
	r := &partitionState{
		partition: p, ask: ask, retries: backoff.NewExponentialBackOff(),
		size: batchSize{n: max(min(firstWidth, most), least), least: least, most: most, aim: opt.batchTime},
	}
	r.rules = p.handlers.hands.rules(p.route.Identify)
	r.retries.InitialInterval, r.retries.MaxInterval = opt.backoff.Min, opt.backoff.Max
	if l, _ := p.links.get(); l != nil {
		r.attach(l)
	}
	return r
}

// newResult returns the result of an empty batch.
func (r *partitionState) newResult() result {
	return result{topicID: r.topicID, next: r.next, epoch: r.epoch, claimed: r.partition.backlog.spare}
}

// requests are the requests of a partition to the loops.
type requests struct {
	openings *openings
	// topics that the client must forget and find again; their partitions are then assigned anew
	forgetting chan *partition
	commits    *committer
}

// forget requests that the topic of p is forgotten.
func (r requests) forget(p *partition) {
	select {
	case r.forgetting <- p:
	default: // it repeats the request
	}
}

// A blame is the reason why a record cannot commit, found in a transaction that was rolled back. In
// the next one the record counts as failed, and its handler is not called. With AtMostOnce the
// record is handled without a claim.
type blame struct {
	offset int64
	err    error
}

// blames reports whether a record is known not to commit.
func (r *partitionState) blames(rec *kgo.Record) bool {
	return r.blame != nil && r.blame.offset == rec.Offset
}

// attach makes the goroutine use the store of a link.
func (r *partitionState) attach(l *link) {
	if r.partition.link.Load() == l {
		return
	}
	r.lane = driver.JoinLane(l.eng, 2*r.partition.c.opt.batchTime) // a batch begins no handler after half of it
	r.issuer = deadletter.Builder{
		Group: r.partition.pos.Group, Scope: r.partition.route.Scope, Store: l.id.UUID, Incarnation: l.id.Incarnation, Topics: r.partition.route.Topics,
		Secrets: l.secrets, Present: func() deadletter.Secrets { return l.secrets.Present(r.partition.ending, l.eng) },
	}
	if o := r.partition.route.DeadLetters; o != nil {
		r.issuer.Options = *o
	}
	r.longest = longestWindow(l.eng, r.partition.route)
	r.partition.link.Store(l)
}

func (r *partitionState) lastError(n uint32) error {
	if r.last != nil {
		return r.last
	}
	return fmt.Errorf("%d attempts in an earlier run; the process may have died in the handler", n)
}

// readState is the state in which records are handled.
func (r *partitionState) readState() state {
	if r.partition.open.Load() {
		return unprotected
	}
	return running
}

// inParts reports whether n records are judged in parallel. After an unclean stop n is 1.
func (r *partitionState) inParts(n int) bool {
	return n > 1 && r.partition.route.Concurrency.handlers > 1 && r.partition.route.transactional()
}

// A batchSize finds the number of records of a batch whose handlers take about the intended time,
// but at least enough for handlers that run in parallel. The time of the commit does not count:
// where commits are slow, smaller batches would only need more of them.
type batchSize struct {
	n, least, most int
	aim            time.Duration
}

// took records how long the handlers of a batch of n records took.
func (s *batchSize) took(n int, d time.Duration) {
	switch {
	case d > s.aim:
		s.n = max(1, s.least, min(s.n, n)/2)
	case n >= s.n && d < s.aim/2:
		s.n = min(2*s.n, s.most)
	}
}
