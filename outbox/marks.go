package outbox

import (
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/entry"
)

// marks are set by the session, and read by metrics and by the search for work; lookAgain is set by
// Redrive, and read by the session.
type marks struct {
	due    atomic.Int64           // due time of the oldest held entry while the lease is held, 0 if there is none
	passed atomic.Pointer[[]byte] // key up to which no ready entries are left; nil: unknown

	lookAgain atomic.Bool // messages were redriven: the next look at delayed entries must begin at the first
}

// ready selects the ready entries. Ranges that are known to be empty are omitted: a store may need
// long to pass deleted keys.
func (m *marks) ready() engine.Range {
	rest := engine.Range{Prefix: entry.ReadyPrefix}
	if passed := m.passed.Load(); passed != nil {
		rest.After = *passed
	}
	return rest
}
