package idempotency

import (
	"encoding/json"
	"net/http"
)

// ProblemTypes is the prefix of the type of the middleware's own answers. The name of a problem
// follows; docs/idempotency.md lists the names.
const ProblemTypes = "https://github.com/hapax-dev/hapax/blob/main/docs/idempotency.md#"

// Names of problems, which follow ProblemTypes.
const (
	problemNoKey    = "key-missing"
	problemKey      = "key-malformed"
	problemMismatch = "key-used-for-another-request"
	problemBusy     = "in-progress"
	problemTooMany  = "too-many-keys"
	problemDropped  = "response-not-kept"
	problemCoding   = "coding-not-acceptable"

	problemTooLarge    = "body-too-large"
	problemBody        = "body-unreadable"
	problemTenant      = "tenant-unknown"
	problemUnjudged    = "key-not-judged"
	problemUnavailable = "store-unavailable"
	problemFailed      = "no-response"
	problemCanceled    = "canceled"
)

// refuse writes a problem document (RFC 9457).
func refuse(w http.ResponseWriter, status int, name, detail string) {
	b, _ := json.Marshal(map[string]any{"type": ProblemTypes + name, "title": http.StatusText(status), "status": status, "detail": detail}) // cannot fail
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // an error means that the client has disconnected
}
