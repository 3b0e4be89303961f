package engine

import (
	"time"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/internal/occ"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A claimSet has events that are being judged, and the keys of their claims.
type claimSet struct {
	claims []candidate
	// keys of the claims, of their adjacent places and of found claims; for Prefetch also ids
	arena       []byte
	near        []place      // the claims' keys in the adjacent weeks (adjacent.go)
	nearVersion uint64       // filters.Version for the earliest of these, 0 if there are none
	found       []foundClaim // found in the store
	looked      bool         // the store was read, so answers may depend on claims that are not durable yet
	epoch       uint64       // epoch of the cache before that read
}

// emptied returns an empty set that reuses the memory.
func (r *claimSet) emptied() claimSet {
	clear(r.claims)
	clear(r.found)
	return claimSet{claims: r.claims[:0], arena: r.arena[:0], near: r.near[:0], found: r.found[:0]}
}

// askAhead is the number of events for which the filters or reservations are prefetched at once.
const askAhead = 32

// A candidate is an event that is being judged.
type candidate struct {
	result          *Result // at-most-once claims only: receives the verdict; already has the record and lease for Claimed
	scope           string
	place           place
	nearAt, nearEnd int // its adjacent places in the request (adjacent.go)
	seen            time.Time
	sent            int64    // Event.Sent in Unix milliseconds, 0 if unknown
	lock            occ.Name // in a transaction only: name of its reservation
	fingerprint     string
	arrives         bool // the event has the time of its arrival
	owned           bool // in a transaction only: it belongs to an owner, see ownerTx
	again           bool // the claim replaces a record
	answered        bool // at-most-once claims only: the verdict is final
	absent          bool // there was no claim as of batch asOf or a later one
	certain         bool // the filters alone showed that
	asOf            uint64
	change          *leaseChange // a change of a leased claim instead of a verdict
}

// takes reports whether the candidate can replace an existing claim.
func (c *candidate) takes(r *ClaimRecord) bool {
	return r.free(c.seen, c.sent) && !r.conflicts(c.fingerprint, c.seen, c.sent)
}

// answer returns the result for an existing claim that the candidate does not replace.
func (c *candidate) answer(r *ClaimRecord) Result {
	switch {
	case r.conflicts(c.fingerprint, c.seen, c.sent):
		return Result{Verdict: Mismatch, Record: *r}
	case r.State == Leased:
		return Result{Verdict: Pending, Record: *r}
	}
	return Result{Verdict: Duplicate, Record: *r}
}

// newRecord returns the record of a new claim.
func newRecord(ev *Event, seen time.Time) (r ClaimRecord) {
	r.begin(ev, seen, seen.Truncate(time.Millisecond))
	return r
}

// begin initializes r, which is zero, as the record of a new claim. first is the current time in
// milliseconds.
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

// A place is the key and hash under which a claim may be stored. Its key is arena[keyAt:keyEnd] of
// a request.
type place struct {
	week          weekbucket.Week
	hash          uint64
	keyAt, keyEnd int
}

// hash returns the week and the hash of the i-th claim.
func (r *claimSet) hash(i int) (weekbucket.Week, uint64) {
	p := &r.claims[i].place
	return p.week, p.hash
}

func (r *claimSet) key(p *place) []byte { return r.arena[p.keyAt:p.keyEnd] }

// nearOf returns the adjacent places of a candidate.
func (r *claimSet) nearOf(c *candidate) []place { return r.near[c.nearAt:c.nearEnd] }

// certainlyNew reports whether the filters show that no claim counts for the candidate. It does no
// I/O.
func (r *claimSet) certainlyNew(view *filters.View, c *candidate) bool {
	near := r.nearOf(c)
	for i := range near {
		if !view.CertainlyNew(near[i].week, near[i].hash) {
			return false
		}
	}
	return view.CertainlyNew(c.place.week, c.place.hash)
}

// take copies a place and its key from another request.
func (r *claimSet) take(from *claimSet, p *place) place {
	at := len(r.arena)
	r.arena = append(r.arena, from.key(p)...)
	return place{week: p.week, hash: p.hash, keyAt: at, keyEnd: len(r.arena)}
}

// isClaim reports whether there is an i-th claim with that key.
func (r *claimSet) isClaim(i int, key []byte) bool {
	return i >= 0 && i < len(r.claims) && string(r.key(&r.claims[i].place)) == string(key)
}

// A leaseChange is a change of a claim by the holder of its lease.
type leaseChange struct {
	lease *Lease
	apply func(r *ClaimRecord, now time.Time)
	err   error // why it was rejected
}

// claimed reports whether an at-most-once claim got the verdict Claimed.
func (c *candidate) claimed() bool { return c.change == nil && c.result.Verdict == Claimed }
