package engine

import (
	"fmt"
	"sync"

	"github.com/hapax-dev/hapax/engine/internal/lane"
	"github.com/hapax-dev/hapax/engine/limits"
)

// A txRequest has the claims, writes and reads of a transaction. It commits whole or not at all.
type txRequest struct {
	ticket    ticket
	claimant  claimant
	claims    txClaims
	claimedBy Space // the owner of the claims that are owned
	writes    txWrites
	reads     readSet

	// Set when the transaction is handed over.
	member *lane.Member // nil if it is not in the lane
	turn   *lane.Turn   // nil if it runs without one

	lostTo uint64 // with ErrConflict: the batch with which it conflicts, or a later one
}

// progress returns the amount of work so far.
func (r *txRequest) progress() progress {
	return progress{claims: len(r.claims.set.claims), keys: len(r.claims.set.arena), near: len(r.claims.set.near), altered: len(r.claims.altered), writes: len(r.writes.list)}
}

// belongs is the error for an event that an owner has claimed in the transaction.
func (r *txRequest) belongs() error {
	return belongs("event", "was claimed for this handler, and the claim", r.claimedBy, "handle the event; return an error if it cannot be handled")
}

// checkSize returns an error if the transaction must not write that many more bytes.
func (r *txRequest) checkSize(more int) error {
	if r.writes.bytes+r.claims.dataBytes+more > limits.TxBytes {
		return fmt.Errorf("%w: %d bytes written in one transaction", ErrLimit, limits.TxBytes)
	}
	return nil
}

// write makes w the latest write to its key; before is the previous latest one, -1 for none.
func (r *txRequest) write(w txWrite, before int) error {
	err := r.checkSize(w.size())
	if err == nil {
		r.writes.add(w, before)
	}
	return err
}

// txSpares are the parts of ended transactions, reused with their memory.
type txSpares struct{ tx, ahead sync.Pool }

func (s *txSpares) newTx() *txRequest {
	if r, ok := s.tx.Get().(*txRequest); ok {
		return r
	}
	return &txRequest{ticket: newTicket(), reads: (&readSet{}).emptied()}
}

func (s *txSpares) freeTx(r *txRequest) {
	r.writes.reset()
	*r = txRequest{ticket: ticket{done: r.ticket.done}, claims: r.claims.emptied(), writes: r.writes, reads: r.reads.emptied()}
	s.tx.Put(r)
}
