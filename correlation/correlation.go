// Package correlation makes the id by which the copies of one message are recognised.
//
// A producer that sends a message again, because the answer to its first attempt was lost, sends a
// copy that no queue can recognise by itself. The producer therefore gives the message an id once
// for each logical send, before the first attempt:
//
//	headers := map[string]string{}
//	id := correlation.Ensure(headers) // once; further calls keep it
//	err := send(headers, body)        // and again with the same headers, if it fails
//
// For records of franz-go the same is [github.com/hapax-dev/hapax/kafkaadapter/identify.EnsureID].
package correlation

import "github.com/google/uuid"

// Header is the name of the header that carries the id. It names one message and not a
// conversation: do not copy it to messages that are made from this one, which would be duplicates
// of one another. A message that is only forwarded keeps it.
const Header = "hapax_correlation_id"

// NewID returns a new UUIDv7 (RFC 9562) in its form with hyphens, 36 characters. Its first 48 bits
// are the current time in milliseconds. It is safe for concurrent use.
func NewID() string {
	return uuid.Must(uuid.NewV7()).String() // an error would be one of crypto/rand, which ends the process instead
}

// Ensure returns the id in headers. Without one, or with an empty one, it sets a new id first. An
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
