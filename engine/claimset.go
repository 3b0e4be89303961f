package engine

import (
	"time"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/internal/occ"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A claimSet is events on their way to a verdict, with the keys of their claims.
type claimSet struct {
	claims []candidate
	// keys of the claims, of the same event in the adjacent weeks, and of the found claims; for
	// Prefetch also ids
	arena       []byte
	near        []place      // the claims' keys in the adjacent weeks (adjacent.go)
	nearVersion uint64       // the weeksVersion of the filters for the earliest of these, 0 if there are none
	found       []foundClaim // in the store
	looked      bool         // the store was read: answers may depend on claims that are not durable yet
	epoch       uint64       // the epoch of the cache before that read
}

// emptied returns an empty set with the same memory.
func (r *claimSet) emptied() claimSet {
	clear(r.claims)
	clear(r.found)
	return claimSet{claims: r.claims[:0], arena: r.arena[:0], near: r.near[:0], found: r.found[:0]}
}

// askAhead is the number of events for which the filters, or the reservations, are read at once.
const askAhead = 32

// A candidate is an event on its way to a verdict.
type candidate struct {
	result          *Result // at-most-once claims only: where the verdict goes; it has the record and the lease of the verdict Claimed
	scope           string
	place           place
	nearAt, nearEnd int // places in its request that also count (adjacent.go)
	seen            time.Time
	sent            int64    // Event.Sent in Unix milliseconds, 0 if unknown
	lock            occ.Name // in a transaction only: the name of its reservation
	fingerprint     string
	arrives         bool // the event has the time of its arrival
	owned           bool // in a transaction only: it is the owner's, see ownerTx
	again           bool // there is a record, which is replaced
	answered        bool // at-most-once claims only: the verdict is final
	absent          bool // there was no claim, as of the batch asOf or a later one
	certain         bool // the filters alone said so
	asOf            uint64
	change          *leaseChange // of a leased claim, instead of a verdict
}

// takes reports whether the candidate can take the claim although it exists.
func (c *candidate) takes(r *ClaimRecord) bool {
	return r.free(c.seen, c.sent) && !r.conflicts(c.fingerprint, c.seen, c.sent)
}

// answer returns the result for an existing claim that the candidate does not take.
func (c *candidate) answer(r *ClaimRecord) Result {
	switch {
	case r.conflicts(c.fingerprint, c.seen, c.sent):
		return Result{Verdict: Mismatch, Record: *r}
	case r.State == Leased:
		return Result{Verdict: Pending, Record: *r}
	}
	return Result{Verdict: Duplicate, Record: *r}
}

// newRecord returns the record of a claim that is made now.
func newRecord(ev *Event, seen time.Time) (r ClaimRecord) {
	r.begin(ev, seen, seen.Truncate(time.Millisecond))
	return r
}

// begin makes r, which is zero, the record of a claim that is made now; first is the current time
// in milliseconds.
func (r *ClaimRecord) begin(ev *Event, seen, first time.Time) {
	r.State, r.FirstSeen, r.Origin, r.Fingerprint = Done, first, ev.Origin, ev.Fingerprint
	if ev.Window > 0 {
		r.Window = ev.Window.Truncate(time.Millisecond)
		r.SentUnixMilli = ev.sent()
	}
	if ev.Lease > 0 {
		r.State, r.Owner, r.LeaseEnd = Leased, newOwner(), leaseEnd(seen, ev.Lease)
	}
}

// A place is the position of a claim, present or absent. Its key is arena[keyAt:keyEnd] of a
// request.
type place struct {
	week          weekbucket.Week
	hash          uint64
	keyAt, keyEnd int
}

// hash returns the week and the hash of a claim by its index.
func (r *claimSet) hash(i int) (weekbucket.Week, uint64) {
	p := &r.claims[i].place
	return p.week, p.hash
}

func (r *claimSet) key(p *place) []byte { return r.arena[p.keyAt:p.keyEnd] }

// nearOf returns the places of a candidate's id in the weeks before and after, if claims there
// count.
func (r *claimSet) nearOf(c *candidate) []place { return r.near[c.nearAt:c.nearEnd] }

// certainlyNew reports that no claim that counts for the candidate was ever put, without I/O.
func (r *claimSet) certainlyNew(view *filters.View, c *candidate) bool {
	near := r.nearOf(c)
	for i := range near {
		if !view.CertainlyNew(near[i].week, near[i].hash) {
			return false
		}
	}
	return view.CertainlyNew(c.place.week, c.place.hash)
}

// take copies a place, and its key, from another request.
func (r *claimSet) take(from *claimSet, p *place) place {
	at := len(r.arena)
	r.arena = append(r.arena, from.key(p)...)
	return place{week: p.week, hash: p.hash, keyAt: at, keyEnd: len(r.arena)}
}

// isClaim reports whether the claim with that index exists, under that key.
func (r *claimSet) isClaim(i int, key []byte) bool {
	return i >= 0 && i < len(r.claims) && string(r.key(&r.claims[i].place)) == string(key)
}

// A leaseChange is a change by the holder of a lease to its claim.
type leaseChange struct {
	lease *Lease
	apply func(r *ClaimRecord, now time.Time)
	err   error // why it was rejected
}

// claimed reports whether an at-most-once claim got the verdict Claimed.
func (c *candidate) claimed() bool { return c.change == nil && c.result.Verdict == Claimed }
