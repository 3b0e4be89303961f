package engine

import (
	"context"
	"sync"
)

// A request is something for the committer to decide. There are three kinds: claims that commit by
// themselves (ownClaims), a transaction (txClaims), and a command. decide.go decides all of them.
type request interface {
	// admit decides the request, sets the ticket's error, and puts what follows from it into the
	// group. It reports whether the caller has to wait until the group is durable: a conflict rests on
	// nothing that has to be. The committer calls it.
	admit(e *Engine, g *group) (wait bool)

	applied() // is called once the group's batch is visible to reads
	durable() // is called once it is durable and the request did not fail, before its caller gets the answer

	slip() *ticket
}

// A ticket is what the caller of a request waits with.
type ticket struct {
	handed bool // to the committer
	err    error
	done   chan struct{} // receives one value when the answers are set and may be returned
}

func newTicket() ticket { return ticket{done: make(chan struct{}, 1)} }

func (t *ticket) slip() *ticket { return t }
func (t *ticket) applied()      {}
func (t *ticket) durable()      {}

// await waits for the answers to a request that was handed over.
func (t *ticket) await() error {
	<-t.done
	return t.err
}

// ownClaims are claims that commit by themselves, each on its own, and changes of leased claims.
type ownClaims struct {
	ticket
	claimSet
}

// txClaims are the claims of a transaction, which commits whole or not at all.
type txClaims struct {
	ticket
	claimSet
	tx      *Tx
	records []Record // what commits, of each of its claims
	writes  txWrites
	reads   map[string]uint64
}

func (r *txClaims) applied() { r.tx.turn.end() }
func (r *txClaims) durable() { r.tx.durable() }

// A command runs in the committer, alone in its batch, with everything before it applied.
type command struct {
	ticket
	run func(g *group) error
}

// spares are requests that are reused, with their memory.
type spares struct{ own, tx, ahead sync.Pool }

func (s *spares) newOwn() *ownClaims {
	if r, ok := s.own.Get().(*ownClaims); ok {
		return r
	}
	return &ownClaims{ticket: newTicket()}
}

func (s *spares) freeOwn(r *ownClaims) {
	*r = ownClaims{ticket{done: r.done}, r.claimSet.emptied()}
	s.own.Put(r)
}

// keptReads bounds the memory that is kept for the next transaction.
const keptReads = 1 << 12

func (s *spares) newTx() *txClaims {
	if r, ok := s.tx.Get().(*txClaims); ok {
		return r
	}
	return &txClaims{ticket: newTicket()}
}

func (s *spares) freeTx(r *txClaims) {
	clear(r.records)
	r.writes.reset()
	if len(r.reads) > keptReads {
		r.reads = nil
	}
	clear(r.reads)
	*r = txClaims{
		ticket: ticket{done: r.done}, claimSet: r.claimSet.emptied(),
		records: r.records[:0], writes: r.writes, reads: r.reads,
	}
	s.tx.Put(r)
}

func (s *spares) newAhead() *ahead {
	if a, ok := s.ahead.Get().(*ahead); ok {
		return a
	}
	return &ahead{}
}

func (s *spares) freeAhead(a *ahead) {
	clear(a.expected)
	*a = ahead{a.claimSet.emptied(), a.expected[:0]}
	s.ahead.Put(a)
}

// handOver gives a request to the committer.
func (e *Engine) handOver(ctx context.Context, r request) error {
	select {
	case e.requests <- r:
		r.slip().handed = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// submit hands a request to the committer and waits for its answers.
func (e *Engine) submit(ctx context.Context, r request) error {
	if err := e.handOver(ctx, r); err != nil {
		return err
	}
	return r.slip().await()
}
