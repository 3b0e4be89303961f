package engine

import (
	"fmt"
	"sync"

	"github.com/hapax-dev/hapax/engine/internal/lane"
	"github.com/hapax-dev/hapax/engine/internal/occ"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/internal/keyspace"
)

// A txRequest has the claims, writes and reads of a transaction. It commits whole or not at all.
type txRequest struct {
	ticket    ticket
	claimant  occ.Claimant
	claims    txClaims
	claimedBy keyspace.Space // the owner of the owned claims
	writes    txWrites
	reads     occ.Reads

	// Set when the transaction is handed over.
	member *lane.Member // nil if it is not in the lane
	turn   *lane.Turn   // nil if it runs without one

	lostTo uint64 // with ErrConflict: the batch with which it conflicts, or a later one
	lostBy uint64 // the batch itself, if it is known
}

// progress returns the amount of work so far.
func (r *txRequest) progress() progress {
	return progress{claims: len(r.claims.set.claims), keys: len(r.claims.set.arena), near: len(r.claims.set.near), altered: len(r.claims.altered), writes: len(r.writes.list)}
}

// belongs returns the error for an event that an owner has claimed in the transaction.
func (r *txRequest) belongs() error {
	return belongs("event", "was claimed for this handler, and the claim", r.claimedBy, "handle the event; return an error if it cannot be handled")
}

// checkSize returns an error if the transaction cannot write that many more bytes.
func (r *txRequest) checkSize(more int) error {
	if r.writes.bytes+r.claims.dataBytes+more > limits.TxBytes {
		return fmt.Errorf("%w: %d bytes written in one transaction", ErrLimit, limits.TxBytes)
	}
	return nil
}

// checkClaims returns an error if the transaction cannot make another claim.
func (r *txRequest) checkClaims() error {
	if n := len(r.claims.set.claims); n >= limits.TxClaims || len(r.claims.set.arena) > limits.TxBytes {
		return fmt.Errorf("%w: %d claims with keys of %d bytes in one transaction", ErrLimit, n, len(r.claims.set.arena))
	}
	return nil
}

// release removes the reservations of the given claims.
func (r *txRequest) release(claims []candidate) {
	var names [askAhead]occ.Name
	for len(claims) > 0 {
		some := lockNames(claims, &names)
		r.claimant.Release(some...)
		claims = claims[len(some):]
	}
}

// moveReservations moves the reservations of a part to its transaction, after the part's claims
// were added to claims from index first on.
func (r *txRequest) moveReservations(claims []candidate, first int) {
	var names [askAhead]occ.Name
	for first < len(claims) {
		some := lockNames(claims[first:], &names)
		r.claimant.Join(some, first)
		first += len(some)
	}
}

// lockNames returns the names of the reservations of the first claims, as many as fit into the
// array.
func lockNames(claims []candidate, names *[askAhead]occ.Name) []occ.Name {
	n := min(len(claims), len(names))
	for i := range n {
		names[i] = claims[i].lock
	}
	return names[:n]
}

// write adds w as the latest write to its key. before is the index of the previous one, -1 if there
// is none.
func (r *txRequest) write(w txWrite, before int) error {
	err := r.checkSize(w.size())
	if err == nil {
		r.writes.add(w, before)
	}
	return err
}

// txSpares recycles the memory of ended transactions.
type txSpares struct{ tx, ahead sync.Pool }

func (s *txSpares) newTx() *txRequest {
	if r, ok := s.tx.Get().(*txRequest); ok {
		return r
	}
	return &txRequest{ticket: newTicket(), reads: (&occ.Reads{}).Emptied()}
}

func (s *txSpares) freeTx(r *txRequest) {
	r.writes.reset()
	*r = txRequest{ticket: ticket{done: r.ticket.done}, claims: r.claims.emptied(), writes: r.writes, reads: r.reads.Emptied()}
	s.tx.Put(r)
}
