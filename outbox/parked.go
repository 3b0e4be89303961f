package outbox

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/hapax-dev/hapax/engine"
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
	Attempts    uint64 // of the last failed attempt
	LastError   string
}

// Parked returns an iterator over the parked messages. It has the semantics of Engine.Scan.
func (r *Relay) Parked(ctx context.Context) iter.Seq2[ParkedMessage, error] {
	return func(yield func(ParkedMessage, error) bool) {
		for kv, err := range r.eng.In(entry.Space).Scan(ctx, engine.Range{Prefix: entry.ParkedPrefix}) {
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

// Redrive returns a parked message to the outbox. The message is due now, with no failed attempts.
// It is published after the messages of its ordering key that were published meanwhile. Redrive
// returns ErrNotParked if no parked message has the id.
func (r *Relay) Redrive(ctx context.Context, id string) error {
	n, err := r.unpark(ctx, entry.ParkedIDPrefix(id), true)
	if err == nil && n == 0 {
		return fmt.Errorf("%w: %q", ErrNotParked, id)
	}
	return err
}

// RedriveAll calls Redrive for every parked message, in the order in which they were parked, and
// returns their number. It has the keys of all of them in memory. After an error, some of them may
// already have been returned to the outbox.
func (r *Relay) RedriveAll(ctx context.Context) (n int, err error) {
	return r.unpark(ctx, entry.ParkedPrefix, true)
}

// Drop permanently removes a parked message. It returns ErrNotParked if no parked message has the
// id.
func (r *Relay) Drop(ctx context.Context, id string) error {
	n, err := r.unpark(ctx, entry.ParkedIDPrefix(id), false)
	if err == nil && n == 0 {
		return fmt.Errorf("%w: %q", ErrNotParked, id)
	}
	return err
}

// redriven is set in the number of an entry that was parked: new entries never have such numbers.
const redriven = 1 << 63

// unpark removes the parked entries whose keys begin with prefix, in the order of their places, and
// returns them to the outbox if redrive is set.
func (r *Relay) unpark(ctx context.Context, prefix []byte, redrive bool) (n int, err error) {
	var keys [][]byte
	for kv, err := range r.eng.In(entry.Space).Scan(ctx, engine.Range{Prefix: prefix}) {
		if err != nil {
			return 0, err
		}
		keys = append(keys, kv.Key)
	}
	place := func(key []byte) []byte { return key[max(len(key)-8, 0):] }
	slices.SortFunc(keys, func(a, b []byte) int { return bytes.Compare(place(a), place(b)) })
	for _, key := range keys {
		found, err := r.unparkOne(ctx, key, redrive)
		if err != nil {
			return n, err
		}
		if found {
			n++
		}
	}
	if redrive && n > 0 {
		r.Wake()
	}
	return n, nil
}

func (r *Relay) unparkOne(ctx context.Context, key []byte, redrive bool) (found bool, err error) {
	err = r.eng.Update(ctx, func(tx *engine.Tx) error {
		space := tx.In(entry.Space)
		var value []byte
		if value, found, err = space.Get(key); err != nil || !found {
			return err // another call was first
		}
		if err := space.Delete(key); err != nil {
			return err
		}
		return updateGone(tx, func(g *entry.Gone) error {
			if !redrive {
				g.Dropped++
				return nil
			}
			e, err := parse(engine.KeyValue{Key: key, Value: value})
			if err != nil {
				return err
			}
			g.Redriven++
			e.Attempts, e.Refused, e.NotBefore, e.LastError = 0, 0, 0, ""
			e.Due = r.opt.Clock.Now().UnixMilli()
			return space.Put(entry.DelayedKey(e.Due, redriven|g.Redriven), e.Append(nil))
		})
	}, engine.Retries(leaseRetries))
	return found, err
}
