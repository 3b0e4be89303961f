package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/entry"
)

// An OutboxMessage is a message in the outbox.
type OutboxMessage struct {
	// State is "ready", "delayed" (it is due later), "held" (an attempt has failed, or waits for an
	// earlier message of its ordering key) or "parked" (it is not tried again).
	State string

	ID          string
	Topic       string
	Partition   int32 // -1: no partition was named
	Key, Value  []byte
	OrderingKey []byte
	Headers     []MessageHeader
	Produced    time.Time
	Due         time.Time
	Attempts    uint64 // number of failed attempts
	LastError   string
}

// outboxStates are the kinds of entries, in the order in which they are listed.
var outboxStates = []struct {
	prefix []byte
	state  string
}{
	{entry.ReadyPrefix, "ready"}, {entry.DelayedPrefix, "delayed"}, {entry.HeldPrefix, "held"}, {entry.ParkedPrefix, "parked"},
}

// outbox is Admin.Outbox.
func (q *queries) outbox(ctx context.Context) iter.Seq2[OutboxMessage, error] {
	return func(yield func(OutboxMessage, error) bool) {
		for _, kind := range outboxStates {
			for kv, err := range q.core.pages(ctx, storage.Span{Prefix: outboxKey(kind.prefix)}, 0) {
				var m OutboxMessage
				if err == nil {
					m, err = parseOutboxMessage(kv.Value)
				}
				m.State = kind.state
				if !yield(m, err) || err != nil {
					return
				}
			}
		}
	}
}

func parseOutboxMessage(value []byte) (OutboxMessage, error) {
	e, err := entry.Parse(value)
	switch {
	case errors.Is(err, entry.ErrVersion):
		return OutboxMessage{}, fmt.Errorf("%w: %w", storage.ErrNewerFormat, err)
	case err != nil:
		return OutboxMessage{}, fmt.Errorf("%w: outbox: %w", storage.ErrDamaged, err)
	}
	m := OutboxMessage{
		ID: e.ID, Topic: e.Topic, Partition: e.Partition, Key: e.Key, Value: e.Value, OrderingKey: e.OrderingKey,
		Produced: time.UnixMilli(e.Created).UTC(), Due: time.UnixMilli(e.Due).UTC(), Attempts: e.Attempts, LastError: e.LastError,
	}
	for _, h := range e.Headers {
		m.Headers = append(m.Headers, MessageHeader(h))
	}
	return m, nil
}
