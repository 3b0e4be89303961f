package engine

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/entry"
)

// outbox numbers the entries of the outbox in the order in which they commit. A transaction writes
// an entry under a key that begins with stateProduced and is its own; the committer replaces that
// key by the final one, so that no two transactions ever meet in the outbox.
type outbox struct {
	produced entry.Produced // the committer's own
	names    atomic.Uint64  // of keys that begin with stateProduced

	mu       sync.Mutex // guards watchers, which is replaced and never changed
	watchers []*watcher
}

type watcher struct{ produced func() }

func (o *outbox) load(s storage.Store) error {
	value, found, err := s.State(outboxKey(entry.ProducedKey))
	if err != nil || !found {
		return err
	}
	if o.produced, err = entry.ParseProduced(value); err != nil {
		return fmt.Errorf("%w: %w", storage.ErrDamaged, err)
	}
	return nil
}

// admit returns the final key of an entry.
func (o *outbox) admit(key []byte) []byte {
	o.produced.Entries++
	if key[1] == entry.DelayedPrefix[0] {
		o.produced.Delayed++
		return outboxKey(entry.DelayedKey(int64(binary.BigEndian.Uint64(key[2:])), o.produced.Entries))
	}
	return outboxKey(entry.ReadyKey(o.produced.Entries))
}

// count returns the write of the counts, for a batch with entries.
func (o *outbox) count() storage.StateWrite {
	return storage.StateWrite{Key: outboxKey(entry.ProducedKey), Value: o.produced.Append(nil)}
}

// durable notifies the watchers.
func (o *outbox) durable() {
	o.mu.Lock()
	watchers := o.watchers
	o.mu.Unlock()
	for _, w := range watchers {
		w.produced()
	}
}

var outboxSpace = spacePrefix(entry.Space)

func outboxKey(key []byte) []byte { return join(outboxSpace, key) }
