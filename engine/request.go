package engine

import (
	"context"
	"sync"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A request is something for the committer to decide. There are three kinds: claims that commit by
// themselves (ownClaims), a transaction (txRequest), and a command. decide.go decides all of them.
type request interface{ slip() *ticket }

// A ticket is what the caller of a request waits with.
type ticket struct {
	handed bool // to the committer
	err    error
	done   chan struct{} // receives one value when the answers are set and may be returned
}

func newTicket() ticket { return ticket{done: make(chan struct{}, 1)} }

func (t *ticket) slip() *ticket { return t }

// await waits for the answers to a request that was handed over.
func (t *ticket) await() error {
	<-t.done
	return t.err
}

// ownClaims are claims that commit by themselves, each on its own, and changes of leased claims.
type ownClaims struct {
	ticket
	claimSet
	open int // claims that the committer is to decide
}

// A command runs in the committer, alone in its batch, with everything before it applied.
type command struct {
	ticket
	run func(g *group) error
}

// spares are requests that are reused, with their memory.
type spares struct{ own sync.Pool }

func (s *spares) newOwn() *ownClaims {
	if r, ok := s.own.Get().(*ownClaims); ok {
		return r
	}
	return &ownClaims{ticket: newTicket()}
}

func (s *spares) freeOwn(r *ownClaims) {
	*r = ownClaims{ticket: ticket{done: r.done}, claimSet: r.emptied()}
	s.own.Put(r)
}

// A group is what one batch of the store carries and who waits for it. It is the committer's until
// it is handed over, then the applier's, then the releaser's.
type group struct {
	batch   storage.Batch
	changes bool // the batch is to be applied
	journal journalWriter

	requests []request
	claims   int      // put by this batch
	bytes    int      // of keys and state
	produced bool     // entries of the outbox are in the batch
	after    []func() // run by the releaser once the batch is durable, before any caller gets an answer

	tried bool         // the batch was handed to the store
	wait  func() error // the store's, nil if nothing was applied
	since time.Time
	took  time.Duration // from since until it was durable
	seq   uint64        // of the newest batch that the group's answers may rest on
}

const (
	maxGroupClaims = maxBatchEvents // a group is closed once it has the given number of claims, or
	maxGroupBytes  = 4 << 20        // the given number of bytes of keys and state
	groupsAhead    = 2              // batches applied and not yet durable; more only make the groups smaller
	groups         = groupsAhead + 2
)

func (g *group) full() bool { return g.claims >= maxGroupClaims || g.bytes >= maxGroupBytes }

func (g *group) reset() {
	clear(g.batch.Claims)
	clear(g.batch.State)
	clear(g.requests)
	clear(g.after)
	g.journal.reset()
	*g = group{
		batch:    storage.Batch{Claims: g.batch.Claims[:0], State: g.batch.State[:0], Journal: g.batch.Journal[:0]},
		journal:  g.journal,
		requests: g.requests[:0],
		after:    g.after[:0],
	}
}

// A queue hands requests to the committer.
type queue struct {
	*core
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

// submit hands a request to the committer and waits for its answers.
func (q *queue) submit(ctx context.Context, r request) error {
	if err := q.handOver(ctx, r); err != nil {
		return err
	}
	return r.slip().await()
}

// control runs fn in the committer, with everything before it applied, and waits until what fn put
// into the batch is durable.
func (q *queue) control(ctx context.Context, fn func(g *group) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := q.enter(); err != nil {
		return err
	}
	defer q.leave()
	return q.submit(ctx, &command{ticket: newTicket(), run: fn})
}
