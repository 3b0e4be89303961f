package enginetest

import (
	"time"

	"github.com/hapax-dev/hapax/engine"
)

// A modelLease is a lease that the engine gave.
type modelLease struct {
	*engine.Lease
	key   claimKey
	owner uint64
}

// ended returns a record as it is after the end of its lease.
func ended(rec engine.ClaimRecord, state engine.State, data string) engine.ClaimRecord {
	rec.State, rec.Data, rec.Owner, rec.LeaseEnd = state, data, 0, time.Time{}
	return rec
}

// holds reports whether the lease holds its claim.
func (m *model) holds(l modelLease) bool {
	rec := m.told.claims[l.key]
	return rec.State == engine.Leased && rec.Owner == l.owner
}
