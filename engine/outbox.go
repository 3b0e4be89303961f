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

// outbox numbers the entries of the outbox in the order of their commits. A transaction writes an
// entry under a unique key that begins with stateProduced; the committer replaces it with the final
// key, so that transactions never conflict in the outbox.
type outbox struct {
	produced entry.Produced // used by the committer only
	names    atomic.Uint64  // last number of a key that begins with stateProduced

	written atomic.Uint64 // produced.Bytes, including the batch that is being decided
	removed atomic.Uint64 // Gone.Bytes when last read

	mu       sync.Mutex // guards watchers, which is replaced, never modified
	watchers []*watcher
}

type watcher struct{ produced func() }

// watch is driver.OnProduced.
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

func (o *outbox) load(s storage.Reader) error {
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

// loadRemoved reads how many bytes the relay has removed.
func (o *outbox) loadRemoved(s storage.Reader) error {
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

// size returns the bytes of all entries, including those removed since the last loadRemoved.
func (o *outbox) size() uint64 {
	removed := o.removed.Load()
	return max(o.written.Load(), removed) - removed
}

// makeRoom returns ErrOutboxFull if the outbox has no room for an entry. It reads the store only if
// the outbox seems to be full.
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
		return fmt.Errorf("%w: it has %d bytes, Options.MaxOutboxBytes is %d", ErrOutboxFull, o.size(), c.opt.MaxOutboxBytes)
	}
	return nil
}

// ErrOutboxFull means that the unpublished and parked messages have reached Options.MaxOutboxBytes.
// Nothing was produced. The relay makes room as Kafka accepts messages; package kafkaadapter waits
// for that and does not count an attempt.
var ErrOutboxFull = errors.New("hapax: the outbox is full: find out why its messages are not published, drop or redrive the parked ones, or raise Options.MaxOutboxBytes")

// admit counts an entry and returns its final key. key has the entry's kind, due time, number and
// size.
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

// count returns the write that stores the counts. Every batch with entries has one.
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
