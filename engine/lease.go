package engine

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hapax-dev/hapax/engine/limits"
)

// A Lease is the right to finish a pending claim (Event.Lease). It is an owner token: once another
// caller has taken over the claim, it has no effect (ErrLeaseLost). Until then, even an expired
// lease holds its claim. A lease does not survive its process; after a restart, the claim can be
// taken over when the lease has expired. In the same process it remains valid for an engine that
// opens the store again, whatever its options. It ends only when its claim is lost, for example
// because the claim's week or scope is dropped.
//
// A Lease is immutable and safe for concurrent use.
type Lease struct {
	event Event
	owner uint64
	seen  time.Time // time of the claim
}

// newLease returns the lease on a new claim, nil if the event has none.
func newLease(ev *Event, r *ClaimRecord, seen time.Time) *Lease {
	if r.State != Leased {
		return nil
	}
	l := &Lease{event: *ev, owner: r.Owner, seen: seen}
	l.event.ID = append([]byte(nil), ev.ID...) // the engine keeps no reference to the caller's slice
	return l
}

func newOwner() uint64 { return max(1, rand.Uint64()) }

func leaseEnd(now time.Time, d time.Duration) time.Time { return now.Add(d).Truncate(time.Millisecond) }

func checkData(data []byte) error {
	if len(data) > limits.DataBytes {
		return &EventError{"data", fmt.Sprintf("has %d bytes, the cap is %d: keep a reference to it", len(data), limits.DataBytes)}
	}
	return nil
}
