package engine

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hapax-dev/hapax/engine/limits"
)

// A Lease is the right to finish a claim that is pending (Event.Lease). It is an owner token: once
// another caller has taken the claim over, it changes nothing any more (ErrLeaseLost). One that has
// run out still holds its claim until then. It does not survive its process; after a restart the
// claim can be taken over once the lease has run out. In the same process it is good for an engine
// that opens the store again, whatever its options: only the loss of its claim, also with the
// claim's week or scope, ends it.
//
// A Lease does not change and is safe for use by several goroutines.
type Lease struct {
	event Event
	owner uint64
	seen  time.Time // when the claim was made
}

// newLease returns the lease on a claim that was just made, nil if it has none.
func newLease(ev *Event, r *Record, seen time.Time) *Lease {
	if r.State != Leased {
		return nil
	}
	l := &Lease{event: *ev, owner: r.Owner, seen: seen}
	l.event.ID = append([]byte(nil), ev.ID...) // the engine keeps no reference to the caller's
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
