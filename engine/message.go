package engine

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/internal/entry"
)

// A Message is a record that a transaction sends to Kafka through the outbox (see Tx.Produce).
// Topic must be set.
type Message struct {
	// ID identifies the message on every attempt to publish it; consumers detect repetitions by it.
	// If it is empty, Produce sets a UUIDv7. An id derived from the event that causes the message
	// stays the same when that event is handled again.
	ID string

	Topic string
	// Partition is the partition to publish to. If it is nil, the partitioner of the relay's client
	// chooses by the key.
	Partition *int32

	Key     []byte
	Value   []byte // nil is a tombstone; an empty slice is not
	Headers []MessageHeader

	// OrderingKey groups messages that are published in the order of their commits; a message that
	// is due later is ordered from its due time on. If it is empty, topic and key are the ordering
	// key; a message without a key has no order.
	OrderingKey []byte

	// Time is the event time of the message, from which consumers that use the engine compute its
	// week. It is published in a header and is the same on every attempt. Zero means the time of
	// Produce, or Due if that is later. If Time is set, it is also the timestamp of the Kafka
	// record, so that a forwarded record keeps its timestamp; otherwise the timestamp is the time
	// of publication. A topic whose retention is shorter than the age of the timestamp deletes the
	// record soon after it is published.
	Time time.Time

	// Due is the earliest time at which the message is published, by the engine's clock. Zero or a
	// time in the past means at once.
	Due time.Time
}

// A MessageHeader is a header of an outgoing message.
type MessageHeader struct {
	Key   string
	Value []byte
}

func (m *Message) check() error {
	size := len(m.ID) + len(m.Topic) + len(m.Key) + len(m.Value) + len(m.OrderingKey)
	for _, h := range m.Headers {
		size += len(h.Key) + len(h.Value)
	}
	switch {
	case m.Topic == "" || len(m.Topic) > limits.TopicBytes:
		return &ArgumentError{"message topic", fmt.Sprintf("has %d bytes: give 1 to %d", len(m.Topic), limits.TopicBytes)}
	case len(m.ID) > limits.MessageIDBytes || !utf8.ValidString(m.ID):
		return &ArgumentError{"message id", fmt.Sprintf("has %d bytes: give UTF-8 of at most %d, or none", len(m.ID), limits.MessageIDBytes)}
	case m.Partition != nil && *m.Partition < 0:
		return &ArgumentError{"message partition", fmt.Sprintf("is %d: give one from 0, or nil", *m.Partition)}
	case len(m.OrderingKey) > limits.OrderingKeyBytes:
		return &ArgumentError{"message ordering key", fmt.Sprintf("has %d bytes, the cap is %d", len(m.OrderingKey), limits.OrderingKeyBytes)}
	case len(m.Headers) > limits.MessageHeaders:
		return &ArgumentError{"message headers", fmt.Sprintf("are %d, the cap is %d", len(m.Headers), limits.MessageHeaders)}
	case size > limits.MessageBytes:
		return &ArgumentError{"message size", fmt.Sprintf("is %d bytes, the cap is %d: store the payload elsewhere and send a reference", size, limits.MessageBytes)}
	case !m.Time.IsZero() && (m.Time.UnixMilli() < 0 || m.Time.UTC().Year() > 9999):
		return &ArgumentError{"message time", fmt.Sprintf("is in the year %d: give one from 1970 to 9999, or none", m.Time.UTC().Year())}
	case !m.Due.IsZero() && m.Due.Year() > 9999:
		return &ArgumentError{"message due time", "is after the year 9999"}
	}
	return nil
}

// entry returns the outbox entry of a message that is produced at the given time.
func (m *Message) entry(now time.Time) (entry.Entry, error) {
	en := entry.Entry{
		ID: m.ID, Created: now.UnixMilli(), Due: now.UnixMilli(), Topic: m.Topic, Partition: entry.NoPartition,
		Key: m.Key, Value: m.Value,
	}
	if en.ID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return entry.Entry{}, fmt.Errorf("hapax: making the id of a message: %w", err)
		}
		en.ID = id.String()
	}
	if m.Due.After(now) {
		en.Due = m.Due.UnixMilli()
	}
	en.Time = max(en.Created, en.Due)
	if !m.Time.IsZero() {
		en.Time, en.Stamped = m.Time.UnixMilli(), true
	}
	if m.Partition != nil {
		en.Partition = *m.Partition
	}
	if len(m.OrderingKey) > 0 {
		en.OrderingKey = m.OrderingKey
	}
	for _, h := range m.Headers {
		en.Headers = append(en.Headers, entry.Header(h))
	}
	return en, nil
}
