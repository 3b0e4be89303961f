package engine

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/entry"
)

// Produce writes an outgoing message in the batch of the transaction: it is published by the relay
// of package outbox if the transaction commits, and never if it does not. It returns the message's
// id, which the published record carries in a header. Going back to an earlier savepoint undoes it.
// The message's slices are copied.
func (tx *Tx) Produce(m Message) (id string, err error) {
	if err := m.check(); err != nil {
		return "", err
	}
	if err := tx.lock(); err != nil {
		return "", err
	}
	now := tx.e.now()
	tx.mu.Unlock()
	en, err := m.entry(now)
	if err != nil {
		return "", err
	}
	key := make([]byte, 0, 32)
	key = append(key, stateProduced)
	if en.Due > en.Created {
		key = append(key, entry.DelayedPrefix...)
	} else {
		key = append(key, entry.ReadyPrefix...)
	}
	key = binary.BigEndian.AppendUint64(key, uint64(en.Due))
	key = binary.BigEndian.AppendUint64(key, tx.e.outbox.names.Add(1))
	return en.ID, tx.write(key, en.Append(make([]byte, 0, en.Size())))
}

// OnProduced registers fn to be called after messages became durable in the outbox. fn must return
// at once and not use the engine. stop ends that; a call may still be under way then.
func (e *Engine) OnProduced(fn func()) (stop func()) {
	o := &e.outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	w := &watcher{fn}
	o.watchers = append(o.watchers, w)
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.watchers = slices.DeleteFunc(slices.Clone(o.watchers), func(x *watcher) bool { return x == w })
	}
}

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

// count is the write that keeps the counts, of a batch with entries.
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
