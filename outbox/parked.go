package outbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/internal/entry"
)

// A ParkedMessage is a message that the broker or the client has rejected Retry.Attempts times.
type ParkedMessage struct {
	ID          string
	Topic       string
	Partition   int32 // -1: no partition was named
	Key, Value  []byte
	OrderingKey []byte
	Headers     []engine.MessageHeader
	Produced    time.Time
	Attempts    uint64 // number of failed attempts
	LastError   string
}

// Parked returns an iterator over the parked messages. It has the semantics of Engine.Scan.
func (r *Relay) Parked(ctx context.Context) iter.Seq2[ParkedMessage, error] {
	return func(yield func(ParkedMessage, error) bool) {
		for kv, err := range driver.In(r.shared.eng, entry.Space).Scan(ctx, engine.Range{Prefix: entry.ParkedPrefix}) {
			var e entry.Entry
			if err == nil {
				e, err = parse(kv)
			}
			if err != nil {
				yield(ParkedMessage{}, err)
				return
			}
			m := ParkedMessage{
				ID: e.ID, Topic: e.Topic, Partition: e.Partition, Key: e.Key, Value: e.Value, OrderingKey: e.OrderingKey,
				Produced: time.UnixMilli(e.Created).UTC(), Attempts: e.Attempts, LastError: e.LastError,
			}
			for _, h := range e.Headers {
				m.Headers = append(m.Headers, engine.MessageHeader(h))
			}
			if !yield(m, nil) {
				return
			}
		}
	}
}

// Redrive returns a parked message to the outbox. The message is due at once, with no failed
// attempts. It keeps its due time, unless that is in the future, so that the age of the oldest
// message includes the time in which it was parked. It is published after the messages of its
// ordering key that were published meanwhile. Redrive returns ErrNotParked if no parked message has
// the id.
func (r *Relay) Redrive(ctx context.Context, id string) error {
	n, err := r.unpark(ctx, entry.ParkedIDPrefix(id), newRedrive())
	if err == nil && n == 0 {
		return fmt.Errorf("%w: %s", ErrNotParked, r.shared.opt.Telemetry.IDs.Text(id))
	}
	return err
}

// RedriveAll calls Redrive for every parked message, in the order in which they were parked, and
// returns their number. It has the keys of all of them in memory. After an error, some of them may
// already have been returned to the outbox.
func (r *Relay) RedriveAll(ctx context.Context) (n int, err error) {
	return r.unpark(ctx, entry.ParkedPrefix, newRedrive())
}

// Drop permanently removes a parked message. It returns ErrNotParked if no parked message has the
// id.
func (r *Relay) Drop(ctx context.Context, id string) error {
	n, err := r.unpark(ctx, entry.ParkedIDPrefix(id), nil)
	if err == nil && n == 0 {
		return fmt.Errorf("%w: %s", ErrNotParked, r.shared.opt.Telemetry.IDs.Text(id))
	}
	return err
}

// redriven is set in the number of an entry that was parked: new entries never have such numbers.
const redriven = 1 << 63

// A redrive is a call that returns parked messages to the outbox. They become delayed entries that
// are due. The due time is never in the future: an entry with a due time from a clock that was
// ahead would not be found after the clock is corrected.
type redrive struct {
	// Due times of the last messages of each group. No message of a group is due before an earlier
	// one, which keeps their order. now has the due times of the open transaction.
	due, now map[entry.Group]int64
}

func newRedrive() *redrive { return &redrive{due: make(map[entry.Group]int64)} }

// begin starts a transaction. A transaction that conflicted has redriven nothing.
func (d *redrive) begin() { d.now = make(map[entry.Group]int64) }

func (d *redrive) committed() { maps.Copy(d.due, d.now) }

// dueOf returns the due time of the next message.
func (d *redrive) dueOf(e *entry.Entry, present int64) int64 {
	g := e.Group()
	d.now[g] = max(d.due[g], d.now[g], min(e.Due, present))
	return d.now[g]
}

// unpark removes the parked entries whose keys begin with prefix, in the order of their places. They
// are dropped if again is nil.
func (r *Relay) unpark(ctx context.Context, prefix []byte, again *redrive) (n int, err error) {
	var keys [][]byte
	for kv, err := range driver.In(r.shared.eng, entry.Space).Scan(ctx, engine.Range{Prefix: prefix}) {
		if err != nil {
			return 0, err
		}
		keys = append(keys, kv.Key)
	}
	place := func(key []byte) []byte { return key[max(len(key)-8, 0):] }
	slices.SortFunc(keys, func(a, b []byte) int { return bytes.Compare(place(a), place(b)) })
	for size := unparkMost; len(keys) > 0; {
		taken, found, err := r.unparkSome(ctx, keys[:min(size, len(keys))], again)
		switch {
		case errors.Is(err, engine.ErrConflict): // a smaller transaction has a better chance
			size = max(size/2, unparkLeast)
			continue
		case err != nil:
			return n, err
		}
		keys, n = keys[taken:], n+found
		if again != nil && found > 0 {
			r.shared.marks.lookAgain.Store(true)
			r.Wake()
		}
	}
	return n, nil
}

// Each transaction that unparks messages conflicts with the one in which the relay removes a
// published batch. So there are few such transactions, each with up to unparkMost messages or
// unparkBytes. After a conflict the next ones have fewer messages, but at least unparkLeast.
const (
	unparkMost  = 1000
	unparkLeast = 100
	unparkBytes = DefaultBatchBytes
)

// unparkSome unparks messages in one transaction: the first ones of keys. It returns how many of the
// keys it has taken, and how many of these were still parked.
func (r *Relay) unparkSome(ctx context.Context, keys [][]byte, again *redrive) (taken, found int, err error) {
	err = r.shared.eng.Update(ctx, func(tx *engine.Tx) error {
		taken, found = 0, 0
		if again != nil {
			again.begin()
		}
		return updateGone(tx, func(g *entry.Gone) error {
			for total := 0; taken < len(keys) && total < unparkBytes; taken++ {
				size, err := r.unparkOne(tx, g, keys[taken], again)
				if err != nil {
					return err
				}
				if size > 0 {
					total += size
					found++
				}
			}
			return nil
		})
	})
	if again != nil && err == nil {
		again.committed()
	}
	return taken, found, err
}

// unparkOne unparks one message and returns its size, 0 if it is no longer parked.
func (r *Relay) unparkOne(tx *engine.Tx, g *entry.Gone, key []byte, again *redrive) (size int, err error) {
	space := driver.TxIn(tx, entry.Space)
	value, found, err := space.Get(key)
	if err != nil || !found {
		return 0, err // another call has unparked it
	}
	if err := space.Delete(key); err != nil {
		return 0, err
	}
	e, err := parse(engine.KeyValue{Key: key, Value: value})
	if again == nil {
		g.Dropped++
		if err == nil { // a message that cannot be read can be dropped
			g.Bytes += e.Bytes()
		}
		return len(value), nil
	}
	if err != nil {
		return 0, err
	}
	g.Redriven++
	e.Attempts, e.Refused, e.NotBefore, e.LastError = 0, 0, 0, ""
	e.Due = again.dueOf(&e, r.shared.opt.Clock.Now().UnixMilli())
	return len(value), space.Put(entry.DelayedKey(e.Due, redriven|g.Redriven), e.Append(nil))
}
