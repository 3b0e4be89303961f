package engine

import (
	"sync"
	"sync/atomic"
)

// departures are the at-most-once claims whose callers have left: their contexts ended before the
// claims were durable, so they got an error and do not handle the events. Such a claim must not
// remain. It is withdrawn in a later batch, and no call returns Duplicate because of it:
//
//	the caller leaves     its ticket changes from waiting to left; a request that is not decided yet
//	                      is not decided any more
//	releaser              changes the others to answered, so that their callers cannot leave; adds
//	                      the claims of those that have left, before any answer that rests on them
//	prepare, transactions do not answer from a claim that is here; the committer gives it to the
//	                      next caller, who replaces the record
//	verdicts              that rest on an older look at a claim that was added or removed since are
//	                      not returned: TryClaim judges again, all others get InFlight
//
// A crash before the withdrawal leaves the claim, and its event is not handled: at most once, as
// after a crash between the claim and the work.
type departures struct {
	leavable atomic.Int64 // unreleased requests whose callers may still leave
	atRisk   atomic.Int64 // events whose callers have left and whose claims may remain, see Stats

	// A claim's stamp is the number of the last addition or removal of a claim that shares its
	// stamp.
	changes atomic.Uint64
	stamps  [1 << 12]atomic.Uint64

	n    atomic.Int64 // len(keys), which saves the lock when there are none
	mu   sync.Mutex   // guards keys; not held during I/O
	keys map[string]departure
}

// A departure says whether the committer has replaced or removed the claim. The departure is
// deleted when that is durable.
type departure struct{ decided bool }

// add adds a claim. Only the releaser calls it.
func (d *departures) add(key []byte, hash uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.keys == nil {
		d.keys = make(map[string]departure)
	}
	d.keys[string(key)] = departure{}
	d.n.Store(int64(len(d.keys)))
	d.stamp(hash) // after the key
}

func (d *departures) stamp(hash uint64) {
	d.stamps[hash%uint64(len(d.stamps))].Store(d.changes.Add(1))
}

// changedSince reports whether a claim with that hash may have been added or removed since the
// given value of d.changes.
func (d *departures) changedSince(changes, hash uint64) bool {
	return d.stamps[hash%uint64(len(d.stamps))].Load() > changes
}

// has reports whether the caller of the claim has left and no later decision on the claim is
// durable.
func (d *departures) has(key []byte) bool {
	_, has := d.get(key)
	return has
}

// isOpen reports whether the caller of the claim has left and the committer has not replaced or
// removed the claim since.
func (d *departures) isOpen(key []byte) bool {
	x, has := d.get(key)
	return has && !x.decided
}

func (d *departures) get(key []byte) (x departure, has bool) {
	if d.n.Load() == 0 {
		return departure{}, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	x, has = d.keys[string(key)]
	return x, has
}

// decide records that a group replaces or removes a claim, and appends to after what the releaser
// does when the group is durable. Look-ups that began earlier then no longer cache the old record.
// Only the committer calls it.
func (d *departures) decide(key []byte, hash uint64, cache *claimCache, after []func()) []func() {
	if !d.isOpen(key) {
		return after
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	name := string(key)
	d.keys[name] = departure{decided: true}
	return append(after, func() {
		d.remove(name, hash)
		cache.forget(hash) // after the key: later look-ups find the decision
	})
}

// remove removes a claim. The decision about it is durable, so new look-ups find that.
func (d *departures) remove(key string, hash uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stamp(hash) // before the key is removed: from here on, older look-ups are not trusted
	delete(d.keys, key)
	d.n.Store(int64(len(d.keys)))
}
