package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
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

	written atomic.Uint64 // produced.Bytes, also of the batch that the committer makes
	removed atomic.Uint64 // Gone.Bytes when it was last read

	mu       sync.Mutex // guards watchers, which is replaced and never changed
	watchers []*watcher
}

type watcher struct{ produced func() }

// watch registers fn, see driver.OnProduced.
func (o *outbox) watch(fn func()) (stop func()) {
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

func (o *outbox) load(s storage.Store) error {
	value, found, err := s.State(outboxKey(entry.ProducedKey))
	if err != nil || !found {
		return err
	}
	if o.produced, err = entry.ParseProduced(value); err != nil {
		return fmt.Errorf("%w: %w", storage.ErrDamaged, err)
	}
	if err := o.loadRemoved(s); err != nil {
		return err
	}
	o.written.Store(o.produced.Bytes)
	return nil
}

// loadRemoved reads how much the relay has removed.
func (o *outbox) loadRemoved(s storage.Store) error {
	value, found, err := s.State(outboxKey(entry.GoneKey))
	if err != nil || !found {
		return err
	}
	gone, err := entry.ParseGone(value)
	if err != nil {
		return fmt.Errorf("%w: %w", storage.ErrDamaged, err)
	}
	o.removed.Store(gone.Bytes)
	return nil
}

// size returns the bytes of all entries, of which some may have been removed since removed was read.
func (o *outbox) size() uint64 {
	removed := o.removed.Load()
	return max(o.written.Load(), removed) - removed
}

// makeRoom returns ErrOutboxFull if an entry has no room in the outbox. It reads the store only if the
// outbox seems to be full.
func (o *outbox) makeRoom(c *core, bytes uint64) error {
	full := func() bool { return o.size()+bytes > c.opt.MaxOutboxBytes }
	if !full() {
		return nil
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if err := o.loadRemoved(c.store); err != nil {
		return c.stop(err)
	}
	if full() {
		return fmt.Errorf("%w: it has %d bytes of Options.MaxOutboxBytes, %d", ErrOutboxFull, o.size(), c.opt.MaxOutboxBytes)
	}
	return nil
}

// ErrOutboxFull means that the messages that wait to be published, or are parked, have reached
// Options.MaxOutboxBytes. Nothing was produced. The relay makes room when Kafka takes its messages;
// package kafkaadapter waits for it and does not count an attempt.
var ErrOutboxFull = errors.New("hapax: the outbox is full: find out why its messages are not published, drop or redrive the parked ones, or raise Options.MaxOutboxBytes")

// admit returns the final key of an entry: kind, due time, name and size are in the key.
func (o *outbox) admit(key []byte) []byte {
	o.produced.Entries++
	o.produced.Bytes += binary.BigEndian.Uint64(key[len(key)-8:])
	o.written.Store(o.produced.Bytes)
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
