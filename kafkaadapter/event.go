package kafkaadapter

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/internal/untrusted"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// With Route.Window, the time of an event decides nothing: copies may have different times, or none.
// An event has the time of its arrival, and a copy is a duplicate if it arrives, or its record was
// sent, within the window (engine.Event.Sent). A replay has the time at which its claim was made,
// which leads to that claim.

// judged returns an event as the engine judges it.
func judged(ev engine.Event, isClaimed bool) engine.Event {
	if ev.Window > 0 {
		ev.ApproximateTime = false
		if !isClaimed {
			ev.Time = time.Time{}
		}
	}
	return ev
}

// isClaimed reports whether a record is the replay of a dead letter that has a claim.
func isClaimed(r *deadletter.Replay) bool { return r != nil && r.Sealed.Claimed }

// longestWindow returns the longest window, in weeks, of an event that has the time of its arrival.
func longestWindow(eng *engine.Engine, r *Route) time.Duration {
	const week = 7 * 24 * time.Hour
	ev := engine.Event{Scope: r.Scope, ID: []byte("w"), Window: limits.ArrivalWindow.Truncate(week), Origin: engine.Origin{Topic: r.Topics[0]}}
	for ev.Window > week && eng.CheckEvent(ev) != nil {
		ev.Window -= week
	}
	return ev.Window
}

// lettered returns the identity of a dead letter whose claim has the given record.
func lettered(id identify.Identity, claim *engine.ClaimRecord) identify.Identity {
	if claim.Window > 0 {
		id.Time, id.TimeRule, id.ApproximateTime = claim.FirstSeen, identify.TimeRecord, id.IDRule != identify.IDPosition
	}
	return id
}

// unread returns the time from which the claims are needed for the records after that of the event,
// apart from the lateness of the hold; it returns false if there is no such time.
func unread(ev *engine.Event) (time.Time, bool) {
	if ev.Window > 0 {
		return ev.Sent, !ev.Sent.IsZero()
	}
	return ev.Time, true
}

// ErrMismatch means that a record has the id of an event that was claimed with another
// Route.Fingerprint. See Mismatch.
var ErrMismatch = errors.New("hapax: the event's id was claimed with another fingerprint: have producers give each event its own id, or set Route.Policies[Mismatch]")

// fingerprintBytes is the number of stored bytes of a hash.
const fingerprintBytes = 16

// fingerprint returns the hash of the result of the application's function, empty if the result is
// empty. It returns a panic as an error, because otherwise the same record would end the process
// again after each restart.
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
