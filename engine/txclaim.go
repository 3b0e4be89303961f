package engine

// TryClaim judges one event as part of the transaction. Claimed becomes final when the transaction
// commits; until then all others get InFlight. If the transaction does not commit, the event can be
// claimed again.
//
// TryClaim, TryReopen and DeadLetter return an ArgumentError for an event that kafkaadapter has
// claimed for the calling handler: the handler must handle it.
func (tx *Tx) TryClaim(ev Event) (Result, error) { return asApplication(tx).tryClaim(&ev, nil) }

// TryReopen is TryClaim for the replay of a dead letter. It reopens a durable claim that is
// DeadLettered with exactly this generation: the verdict is Claimed, and the committed record is
// Done with the next generation, with FirstSeen and Origin of the first sighting. Of concurrent
// transactions that reopen a claim, at most one commits: the others get InFlight or fail with
// ErrConflict. Meanwhile TryClaim still returns Duplicate to others, because a durable claim
// exists. Every other existing claim makes the event a Duplicate, and an event without a claim is
// judged as in TryClaim, so a forged generation has no effect.
//
// Set the event's Time to the time with which it was claimed. If that was the time of its arrival,
// use FirstSeen of the claim's record.
func (tx *Tx) TryReopen(ev Event, generation uint64) (Result, error) {
	return asApplication(tx).tryClaim(&ev, &generation)
}

// TryClaim is Tx.TryClaim. The claim belongs to the owner until the transaction ends.
func (o ownerTx) TryClaim(ev Event) (Result, error) { return o.tryClaim(&ev, nil) }

// TryReopen is Tx.TryReopen. The claim belongs to the owner until the transaction ends.
func (o ownerTx) TryReopen(ev Event, generation uint64) (Result, error) {
	return o.tryClaim(&ev, &generation)
}

// DeadLetter changes a claim that this transaction has made to DeadLettered: the event was not
// handled, and TryReopen may reopen the claim with the generation of the returned record, which is
// the one that commits. Further calls change nothing; a rollback to an earlier savepoint undoes
// DeadLetter. If the transaction has not claimed the event, or has rolled the claim back,
// DeadLetter returns ErrNotClaimed.
func (tx *Tx) DeadLetter(ev Event) (ClaimRecord, error) { return asApplication(tx).DeadLetter(ev) }

// DeadLetter is Tx.DeadLetter.
func (o ownerTx) DeadLetter(ev Event) (ClaimRecord, error) {
	tx := o.tx
	if err := tx.lockStore(); err != nil {
		return ClaimRecord{}, err
	}
	defer tx.status.unlockStore()
	ev.Scope = tx.e.core.opt.scope(ev.Scope)
	i, err := tx.judge.txFinder.claimOf(&ev)
	if err != nil {
		return ClaimRecord{}, err
	}
	if tx.req.claims.set.claims[i].owned && o.by != tx.req.claimedBy {
		return ClaimRecord{}, tx.req.belongs()
	}
	if tx.req.claims.records[i].State != DeadLettered {
		tx.req.claims.alter(i, func(r *ClaimRecord) { r.end(DeadLettered, "") })
	}
	return tx.req.claims.records[i], nil
}

// tryClaim judges an event. If reopen is not nil, a claim that is dead-lettered with that
// generation may be reopened.
func (o ownerTx) tryClaim(ev *Event, reopen *uint64) (Result, error) {
	tx := o.tx
	if err := tx.lock(); err != nil {
		return Result{Verdict: Failed, Err: err}, err
	}
	defer tx.status.mu.Unlock()
	ev.Scope = tx.e.core.opt.scope(ev.Scope)
	tx.judge.by = o.by
	return tx.judge.tryClaim(ev, reopen)
}

// prefetch is driver.Prefetch.
func (tx *Tx) prefetch(events []Event) error {
	if err := tx.lockStore(); err != nil {
		return err
	}
	defer tx.status.unlockStore()
	tx.judge.prefetch(tx.e.core.opt.scoped(events))
	return nil
}

// probablyClaimed is driver.ProbablyClaimed.
func (tx *Tx) probablyClaimed() ([]bool, error) {
	if err := tx.lockStore(); err != nil {
		return nil, err
	}
	defer tx.status.unlockStore()
	if tx.judge.ahead == nil {
		return nil, nil
	}
	return tx.judge.ahead.probablyClaimed(tx.judge.finder.filters), nil
}
