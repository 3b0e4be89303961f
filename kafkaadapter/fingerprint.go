package kafkaadapter

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/untrusted"
)

// ErrMismatch means that a record has the id of an event that was claimed with another
// Route.Fingerprint. See Route.Mismatched.
var ErrMismatch = errors.New("hapax: the event's id was claimed with another fingerprint: have producers give each event its own id, or set Route.Mismatched")

// fingerprintBytes is the number of bytes of a hash that are stored.
const fingerprintBytes = 16

// fingerprint returns the hash of what the application's function returns, and empty for nothing. A
// panic is an error, because the same record would otherwise end the process again after each
// restart.
func (r *Route) fingerprint(rec *kgo.Record) (hash string, err error) {
	if r.Fingerprint == nil {
		return "", nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = errors.New(untrusted.Text(fmt.Sprintf("hapax: panic in Route.Fingerprint: %v", v)))
		}
	}()
	b := r.Fingerprint(rec)
	if len(b) == 0 {
		return "", nil
	}
	sum := sha256.Sum256(b)
	return string(sum[:fingerprintBytes]), nil
}
