// Package redact says how ids that producers and callers choose are shown.
//
// Ids of events and messages, correlation ids, and idempotency keys with their tenants come from
// strangers. They are needed to find an event, and they can be personal data. The field IDs
// of telemetry.Options says how ids appear in the logs, spans and texts of errors of all
// packages. They show ids in no other way. Names that the application configures, such as scopes,
// queues and topics, are shown as they are: do not make them from personal data. A dead letter
// contains its record, and so its id, in any case.
//
// A handler's own errors are shown as they are, cut and escaped: what they say about ids is up to the
// application.
package redact

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strconv"
	"unicode/utf8"
)

// MaxBytes is the maximum length of an id that is shown as it is, before it is escaped. Of a longer one,
// the beginning is shown, with an ellipsis.
const MaxBytes = 256

// MinSecretBytes is the minimum length of the secret of Hashed.
const MinSecretBytes = 32

// IDs says how ids are shown. The zero value shows them as they are. It is safe for concurrent use.
type IDs struct {
	mode   mode
	secret string
}

type mode uint8

const (
	plain mode = iota
	hashed
	omitted
)

// Plain shows ids as they are, up to MaxBytes. An id that has anything but printable characters, or
// a quote or a backslash, is quoted and escaped as in a Go string. It is the default.
func Plain() IDs { return IDs{} }

// Hashed shows the first 32 hexadecimal digits of the id's HMAC-SHA256 with secret, which has at
// least MinSecretBytes random bytes. With the same secret in all services and after each restart,
// an id has the same hash everywhere. Anyone who has the secret can find the log lines of an id
// with
//
//	printf %s "$ID" | openssl dgst -sha256 -mac HMAC -macopt hexkey:"$SECRET" | grep -o '[0-9a-f]\{64\}' | cut -c1-32
//
// or with Text. Anyone who has only the log cannot verify a guess of an id.
func Hashed(secret []byte) IDs { return IDs{hashed, string(secret)} }

// Omitted shows no ids.
func Omitted() IDs { return IDs{mode: omitted} }

// Check returns an error if the secret of Hashed is too short. telemetry.Options.Complete
// calls it.
func (i IDs) Check() error {
	if i.mode == hashed && len(i.secret) < MinSecretBytes {
		return fmt.Errorf("hapax: redact: the secret of Hashed has %d bytes: use at least %d random ones", len(i.secret), MinSecretBytes)
	}
	return nil
}

// Omits reports whether ids are not shown.
func (i IDs) Omits() bool { return i.mode == omitted }

// Text returns the text that is shown for an id, and "(id omitted)" if ids are not shown.
func (i IDs) Text(id string) string {
	switch i.mode {
	case hashed:
		mac := hmac.New(sha256.New, []byte(i.secret))
		mac.Write([]byte(id))
		return hex.EncodeToString(mac.Sum(nil)[:16])
	case omitted:
		return "(id omitted)"
	}
	return quoted(id)
}

// Attr returns the attribute of a log line for an id. It is empty, so that it does not appear, if ids
// are not shown.
func (i IDs) Attr(name, id string) slog.Attr {
	if i.mode == omitted {
		return slog.Attr{}
	}
	return slog.String(name, i.Text(id))
}

func quoted(id string) string {
	if len(id) > MaxBytes {
		return strconv.Quote(begin(id, MaxBytes)) + "…"
	}
	q := strconv.Quote(id)
	if q[1:len(q)-1] == id {
		return id
	}
	return q
}

// begin returns up to n bytes of a longer s, and cuts no character.
func begin(s string, n int) string {
	for range utf8.UTFMax - 1 {
		if utf8.RuneStart(s[n]) {
			break
		}
		n--
	}
	return s[:n]
}
