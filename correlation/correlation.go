// Package correlation makes the id by which the copies of one message are identified.
//
// A producer that sends a message again, because the answer to its first attempt was lost, sends a
// copy that a queue cannot detect by itself. The producer therefore gives the message an id once
// for each logical send, before the first attempt:
//
//	headers := map[string]string{}
//	id := correlation.Ensure(headers) // once; further calls keep it
//	err := send(headers, body)        // and again with the same headers, if it fails
//
// For records of franz-go, [github.com/hapax-dev/hapax/kafkaadapter/identify.EnsureID] does the
// same.
package correlation

import "github.com/google/uuid"

// Header is the name of the header that carries the id. It identifies one message and not a
// conversation: do not copy it to messages that are derived from this one, because they would be
// duplicates of one another. A message that is only forwarded keeps it.
const Header = "hapax_correlation_id"

// The headers by which a relay names a message that it publishes: package outbox writes them, and
// package kafkaadapter/identify reads them before any other. They are the relay's own: a program
// that derives a message from another does not copy them.
const (
	// MessageID is the id of one message of the outbox, the same on every attempt to publish it.
	MessageID = "hapax_message_id"
	// MessageTime is the event time of that message, in RFC 3339, the same on every attempt.
	MessageTime = "hapax_message_time"
)

// NewID returns a new UUIDv7 (RFC 9562) in its form with hyphens, 36 characters. Its first 48 bits
// are the current time in milliseconds. It is safe for concurrent use.
func NewID() string {
	// an error would be one of crypto/rand, which ends the process instead
	return uuid.Must(uuid.NewV7()).String()
}

// Ensure returns the id in headers. If there is none, or an empty one, it sets a new id first. An
// id that is present is never replaced, so that all attempts to send the message carry the same
// one. headers must not be nil.
func Ensure(headers map[string]string) string {
	if id := headers[Header]; id != "" {
		return id
	}
	id := NewID()
	headers[Header] = id
	return id
}
