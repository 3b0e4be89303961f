package outbox

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kgohooks"
	"github.com/hapax-dev/hapax/internal/reach"
)

// shared contains what a relay and its sessions have in common.
type shared struct {
	marks   marks
	eng     *engine.Engine
	opt     Options
	lease   *lease // only Run uses it
	metrics *metrics

	wake    chan struct{} // receives a value when there may be entries to publish
	closing sync.WaitGroup
	hooks   kgohooks.Owner // makes all clients
	reach   reach.Watch    // of all clients
	limits  batchLimits
	holds   holds

	dial func(o ...kgo.Opt) (client, error) // makes a client; tests replace it
}

func (s *shared) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default: // it will wake in any case
	}
}
