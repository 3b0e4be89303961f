package engine

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hapax-dev/hapax/engine/limits"
)

// A Lease is the right to finish a pending claim (Event.Lease). It is an owner token: after another
// caller has taken the claim over, it has no effect (ErrLeaseLost). An expired lease still holds
// its claim until then. It does not survive its process; after a restart, the claim can be taken
// over when the lease has expired. In the same process it remains valid for an engine that opens
// the store again, whatever its options: only the loss of its claim ends it, for example with the
// claim's week or scope.
//
// A Lease is immutable and safe for concurrent use.
type Lease struct {
	event Event
	owner uint64
	seen  time.Time // the time of the claim
}

// newLease returns the lease on a claim that was just made, nil if it has none.
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
