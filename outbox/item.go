package outbox

import (
	"errors"
	"fmt"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/entry"
)

// An item is an entry of the outbox that a batch processes.
type item struct {
	Entry entry.Entry
	key   []byte // its key in the store
	group entry.Group
	place uint64 // place of a held entry

	outcome outcome
	offset  int64 // at which it was published
	by      producerID
	err     error     // why it failed
	on      partition // the held partition for which it waits
	until   int64     // when its partition is tried again; 0: when that answers
}

// A producerID identifies the client that has published an item.
type producerID struct {
	id    int64
	epoch int16
}

// An outcome is the result of an item in a batch.
type outcome uint8

const (
	left outcome = iota // not published, and not at fault
	published
	failed
	aborted // acknowledged in a transaction that was aborted; otherwise like left
	waiting // not sent, because its partition is held
	flying  // sent, and left to the client
)

func (i *item) held() bool    { return i.key[0] == entry.HeldPrefix[0] }
func (i *item) delayed() bool { return i.key[0] == entry.DelayedPrefix[0] }

// free reports whether the client chooses any partition for an item.
func (i *item) free() bool { return i.Entry.Partition == entry.NoPartition && i.Entry.Key == nil }

func (i *item) size() int { return i.Entry.Size() + len(i.key) }

func parse(kv engine.KeyValue) (entry.Entry, error) {
	e, err := entry.Parse(kv.Value)
	if errors.Is(err, entry.ErrVersion) {
		return e, fmt.Errorf("%w: %w", storage.ErrNewerFormat, err)
	}
	if err != nil {
		return e, damaged(fmt.Errorf("key %x: %w", kv.Key, err))
	}
	return e, nil
}

func damaged(err error) error { return fmt.Errorf("%w: outbox: %w", storage.ErrDamaged, err) }

func newItem(kv engine.KeyValue) (*item, error) {
	e, err := parse(kv)
	if err != nil {
		return nil, err
	}
	i := &item{Entry: e, key: kv.Key, group: e.Group()}
	if i.held() {
		_, i.place, err = entry.ParseHeldKey(kv.Key)
	}
	return i, err
}
