package driver

import "github.com/hapax-dev/hapax/engine"

// Prefetch announces the events of the next calls of TryClaim, in order, so that part of the work
// is done for many events at once: it computes keys and hashes, and TryClaim reads the filters for
// several events at a time. Prefetch reserves nothing, changes no verdict, and keeps no reference
// to events; TryClaim may be called for other events in between. FirstSeen of these events is the
// time of Prefetch. Events with a window, a lease or a fingerprint are not prepared. A few dozen
// events at once are enough, but see UpdateOptions.Expected.
func Prefetch(tx *engine.Tx, events []engine.Event) error { return tx.Driver(key).Prefetch(events) }

// ProbablyClaimed has an element for each event of the last call of Prefetch: true if the filters
// contain its claim, which is wrong for about one new event in a thousand. False is no verdict: the
// event may be claimed meanwhile. It is always false for events that Prefetch does not prepare, and
// while the filters are being rebuilt. Use ProbablyClaimed to omit work for events that are
// probably duplicates.
func ProbablyClaimed(tx *engine.Tx) ([]bool, error) { return tx.Driver(key).ProbablyClaimed() }

// Unclaim withdraws a claim in the store, for an event whose handling has not begun: when the
// transaction has committed, the event can be claimed again. rec is the claim's record, as TryClaim
// or TryReopen returned it with the verdict Claimed. A claim with an earlier generation, such as a
// reopened dead letter, becomes Released; any other claim is removed. A rollback to an earlier
// savepoint undoes Unclaim.
//
// engine.ErrNotClaimed means that there is nothing to withdraw: the store has no claim on the event
// with exactly this record. The claim was forgotten, its week was dropped, another delivery has
// made it, or this transaction has made it: then use RollbackTo. If the claim changes before the
// transaction commits, the transaction fails with engine.ErrConflict.
//
// Unclaim returns an ArgumentError for an event that kafkaadapter has claimed for the calling
// handler.
func Unclaim(tx *engine.Tx, ev engine.Event, rec engine.ClaimRecord) error {
	return tx.Driver(key).Unclaim(ev, rec)
}
