package engine

import (
	"sync"
	"sync/atomic"
)

// departures are the at-most-once claims whose callers have left: their contexts ended before the
// claims were durable, so they got an error and do not handle the events. Such a claim must not
// stand. It is withdrawn in a batch after its own, and no call returns Duplicate because of it:
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
// After a crash before the withdrawal the claim stands, and its event is not handled: at most once,
// as after a crash between the claim and the work.
type departures struct {
	leavable atomic.Int64 // requests that are not released and whose callers may still leave
	atRisk   atomic.Int64 // events whose callers have left and whose claims may stand, see Stats

	// A claim's stamp is the number of the last change here of a claim with its hash, or one like it.
	changes atomic.Uint64
	stamps  [1 << 12]atomic.Uint64

	n    atomic.Int64 // len(keys), so that the lock is not taken when there are none
	mu   sync.Mutex   // guards keys; no I/O under it
	keys map[string]departure
}

// A departure says whether the committer has decided what follows the claim; then it is removed
// when that is durable.
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

// changedSince reports whether a claim with that hash may have been added or removed since changes
// had the given value.
func (d *departures) changedSince(changes, hash uint64) bool {
	return d.stamps[hash%uint64(len(d.stamps))].Load() > changes
}

// has reports whether the caller of the claim has left, and no later decision on the claim is
// durable yet.
func (d *departures) has(key []byte) bool {
	_, has := d.get(key)
	return has
}

// isOpen reports whether the caller of the claim has left and the committer has not decided about
// the claim since.
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

// decide records that a group replaces or removes a claim, and adds to after what is to be done when
// that is durable. Then a look that began before does not put the old record into the cache. Only the
// committer calls it.
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
		cache.forget(hash) // after the key: a later look finds what was decided
	})
}

// remove removes a claim: what was decided about it is durable, so that new looks find that.
func (d *departures) remove(key string, hash uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stamp(hash) // before the key is removed: older looks are not trusted from here on
	delete(d.keys, key)
	d.n.Store(int64(len(d.keys)))
}
