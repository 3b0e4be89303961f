package engine

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A request is decided by the committer. There are three kinds: at-most-once claims (ownClaims), a
// transaction (txRequest), and a command.
type request interface{ slip() *ticket }

// A ticket is the part of a request on which its caller waits.
type ticket struct {
	handed bool // handed to the committer
	err    error
	done   chan struct{} // receives one value when the answers may be returned
	state  atomic.Uint32
}

// The states of a ticket. It changes once, from waiting to another state.
const (
	waiting  = iota
	decided  // a transaction or a command was decided, so its effects cannot be withdrawn
	left     // the caller has left without an answer
	answered // at-most-once claims are durable, and the caller gets the answers
)

// leave ends the caller's wait. It returns false if the caller must wait for the answers.
func (t *ticket) leave() bool { return t.state.CompareAndSwap(waiting, left) }

func newTicket() ticket { return ticket{done: make(chan struct{}, 1)} }

func (c *ownClaims) slip() *ticket { return &c.ticket }
func (c *command) slip() *ticket   { return &c.ticket }
func (r *txRequest) slip() *ticket { return &r.ticket }

// await waits for the answers to a request that was handed over; t.err then reports whether they
// are valid. It returns false if ctx ends first.
func (t *ticket) await(ctx context.Context) bool {
	select {
	case <-t.done:
		return true
	default:
	}
	select {
	case <-t.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// ownClaims are at-most-once claims, each independent of the others, and changes of leased claims.
type ownClaims struct {
	ticket ticket
	set    claimSet
	open   int        // number of claims that the committer decides
	asOf   uint64     // last batch applied before the filters were read
	more   bool       // another part of the ClaimBatch is handed over next
	next   *ownClaims // next part of the ClaimBatch, nil if there is none

	leavable  bool   // counted in departures.leavable
	departed  uint64 // departures.changes before anything was looked up
	withdrawn bool   // the claims must be withdrawn
}

// A command runs in the committer, alone in its batch, after everything before it is applied.
type command struct {
	ticket ticket
	run    func(g *group) error
}

// spares recycles requests.
type spares struct{ own sync.Pool }

func (s *spares) newOwn() *ownClaims {
	if r, ok := s.own.Get().(*ownClaims); ok {
		return r
	}
	return &ownClaims{ticket: newTicket()}
}

func (s *spares) freeOwn(r *ownClaims) {
	*r = ownClaims{ticket: ticket{done: r.ticket.done}, set: r.set.emptied()}
	s.own.Put(r)
}

// A group has the contents of one batch of the store and the requests that wait for it. The
// committer owns it until it hands it over, then the applier, then the releaser.
type group struct {
	batch   storage.Batch
	changes bool // the batch must be applied
	journal filters.Entry

	requests []request
	awaited  bool     // a caller without further parts waits for the group
	claims   int      // number of claims put by this batch
	bytes    int      // size of keys and state
	produced bool     // entries of the outbox are in the batch
	after    []func() // run by the releaser when the batch is durable, before any caller gets an answer

	tried bool         // the batch was handed to the store
	wait  func() error // returned by the store, nil if nothing was applied
	since time.Time
	took  time.Duration // from since until it was durable
	seq   uint64        // newest batch on which the group's answers may depend
}

const (
	maxGroupClaims = maxBatchEvents // a group is complete with this many claims, or
	maxGroupBytes  = 4 << 20        // this many bytes of keys and state
	fewGroupClaims = 1024           // a group on which no caller waits is complete with this many claims
	groupsAhead    = 4              // batches applied and not yet durable: with fewer, slow syncs block; more only make the groups smaller
	groups         = groupsAhead + 2
)

func (g *group) full() bool { return g.claims >= maxGroupClaims || g.bytes >= maxGroupBytes }

// expects reports whether the group should wait for the next part of a ClaimBatch, because a sync
// costs as much as many claims.
func (g *group) expects() bool { return !g.awaited && g.claims < fewGroupClaims }

func (g *group) reset() {
	clear(g.batch.Claims)
	clear(g.batch.State)
	clear(g.requests)
	clear(g.after)
	g.journal.Reset()
	*g = group{
		batch:    storage.Batch{Claims: g.batch.Claims[:0], State: g.batch.State[:0], Journal: g.batch.Journal[:0]},
		journal:  g.journal,
		requests: g.requests[:0],
		after:    g.after[:0],
	}
}

// A queue hands requests to the committer.
type queue struct {
	core     *core
	requests chan request
	spares   spares
}

// handOver gives a request to the committer.
func (q *queue) handOver(ctx context.Context, r request) error {
	select {
	case q.requests <- r:
		r.slip().handed = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// handOverBehind gives a request to the committer in the background. The caller must be between
// enter and leave.
func (q *queue) handOverBehind(r request) {
	select {
	case q.requests <- r:
		return
	default:
	}
	if q.core.enter() != nil { // Close waits for the caller, and may wait a little longer
		q.requests <- r
		return
	}
	go func() {
		defer q.core.leave()
		q.requests <- r
	}()
}

// submit hands a request to the committer and waits for its answers. If ctx ends first, the error
// wraps errLeft: a transaction or a command will not be decided; a change of a lease may be. The
// committer may still refer to the request until its ticket is done.
func (q *queue) submit(ctx context.Context, r request) error {
	if err := q.handOver(ctx, r); err != nil {
		return err
	}
	t := r.slip()
	if !t.await(ctx) {
		if t.leave() {
			return fmt.Errorf("%w: %w", errLeft, ctx.Err())
		}
		t.await(context.Background())
	}
	return t.err
}

// control runs fn in the committer after everything before it is applied, and waits until fn's
// writes to the batch are durable.
func (q *queue) control(ctx context.Context, fn func(g *group) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := q.core.enter(); err != nil {
		return err
	}
	defer q.core.leave()
	return q.submit(ctx, &command{ticket: newTicket(), run: fn})
}

// withdraw withdraws the claims of a request whose caller has left, once they are durable. It must
// be called between enter and leave, so that Close waits.
func (q *queue) withdraw(r *ownClaims, events int) {
	defer q.core.left.atRisk.Add(-int64(events))
	<-r.ticket.done
	if r.ticket.err != nil {
		return // nothing was claimed, or the store has failed and nothing more can be written
	}
	r.ticket.state.Store(waiting)
	r.withdrawn, r.more, r.leavable = true, false, false
	q.requests <- r
	<-r.ticket.done
	if r.ticket.err == nil {
		q.spares.freeOwn(r)
	}
}
