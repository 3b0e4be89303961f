package engine

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/weekbucket"
)

// An Event is what the engine judges. Two deliveries are the same event if they agree in scope, id
// and the week of the time (but see ApproximateTime).
type Event struct {
	// Scope is the logical consumer. Empty means Options.DefaultScope.
	Scope string
	// ID is the producer's identifier: any bytes, but not empty. The engine keeps no reference to
	// it.
	ID []byte
	// Time is when the event happened, set by the producer and the same on every delivery; never
	// the consumer's clock.
	Time time.Time
	// ApproximateTime says that Time is not the producer's but was assigned later, for example by a
	// broker, so that the same event may come again with another time. A claim on scope and id in
	// the week before or after then also makes it a Duplicate. This covers only retained, adjacent
	// weeks and costs a little: it does not replace the producer's time. If several of these weeks
	// have a claim, the Duplicate shows one of them.
	ApproximateTime bool
	// Window is how long a claim on the event lasts, counted from its first sighting by the
	// engine's clock. After that, the event can be claimed again. 0 means as long as its week is
	// retained. A window is at least a millisecond, at most the retention, and stored in
	// milliseconds.
	//
	// With a window Time may be zero. The event then has the time of its arrival. A claim that
	// still lasts also counts if it is in the next week or in a retained week before: the last
	// eight, and further ones with claims, 54 in all. So deliveries on both sides of Monday 00:00
	// are one event. How long a claim lasts depends on its own window or lease, not on those of a
	// later delivery. Such a window is at most limits.ArrivalWindow.
	Window time.Duration
	// Sent is when this delivery was sent, for example when a broker received it; zero if that is
	// unknown. It affects only whether the window of a claim has ended: a delivery is also a
	// Duplicate if it was sent less than the claim's window before or after the delivery that made
	// the claim, whenever it arrives. Without Sent, a consumer that was down for longer than the
	// window would handle both of two copies that were sent together. It is stored in milliseconds.
	Sent time.Time
	// Lease makes the claim pending for that long by the engine's clock: the caller that gets
	// Claimed may finish it with a result through Result.Lease, and all others get Pending. When
	// the lease has expired, one other caller can take over the claim. 0 means that the claim is
	// Done at once. A lease is at least a millisecond and at most limits.Lease.
	Lease time.Duration
	// Fingerprint identifies the request of the event, such as a hash of its payload. It may be
	// empty and has at most limits.FingerprintBytes bytes. It is stored with the claim, and an
	// event with a different one is a Mismatch.
	Fingerprint string
	// Origin is where this delivery came from. It is stored with the claim and does not affect the
	// verdict, but its Topic must be set.
	Origin Origin
}

// An Origin is a position in a log.
type Origin struct {
	Topic     string // not empty
	Partition int32
	Offset    int64
}

func (o Origin) String() string { return fmt.Sprintf("%s/%d@%d", o.Topic, o.Partition, o.Offset) }

// arrives reports whether the event has the time of its arrival.
func (ev *Event) arrives() bool { return ev.Time.IsZero() && ev.Window > 0 }

// timed reports whether the verdict depends not only on the existence of a claim, but also on the
// clock or a fingerprint.
func (ev *Event) timed() bool { return ev.Window != 0 || ev.Lease != 0 || ev.Fingerprint != "" }

// sent returns Sent in Unix milliseconds, 0 if it is unknown.
func (ev *Event) sent() int64 {
	if ev.Sent.IsZero() {
		return 0
	}
	return ev.Sent.UnixMilli()
}

// when returns the event's time if it arrives now.
func (ev *Event) when(now time.Time) time.Time {
	if ev.arrives() {
		return now
	}
	return ev.Time
}

// check returns the week of an event that arrives now, or an error if the event cannot be judged.
func (ev *Event) check(maxID int, now time.Time) (weekbucket.Week, error) {
	switch {
	case strings.TrimSpace(ev.Scope) == "":
		return 0, &EventError{"scope", "is blank: name the logical consumer, or set Options.DefaultScope"}
	case len(ev.Scope) > limits.ScopeBytes:
		return 0, &EventError{"scope", fmt.Sprintf("has %d bytes, the cap is %d", len(ev.Scope), limits.ScopeBytes)}
	case len(ev.ID) == 0:
		return 0, &EventError{"id", "is empty: give the producer's identifier"}
	case len(ev.ID) > maxID:
		return 0, &EventError{"id", fmt.Sprintf("has %d bytes, the cap is %d (Options.MaxIDBytes)", len(ev.ID), maxID)}
	case ev.Time.IsZero() && !ev.arrives():
		return 0, &EventError{"time", "is zero: give the time the producer set, or set Event.Window"}
	case ev.Origin.Topic == "":
		return 0, &EventError{"topic", "is empty: give the origin's topic"}
	case len(ev.Fingerprint) > limits.FingerprintBytes:
		return 0, &EventError{"fingerprint", fmt.Sprintf("has %d bytes, the cap is %d: give a hash", len(ev.Fingerprint), limits.FingerprintBytes)}
	case ev.Lease != 0 && (ev.Lease < time.Millisecond || ev.Lease > limits.Lease):
		return 0, &EventError{"lease", fmt.Sprintf("is %v: give 1ms to %v, or 0", ev.Lease, limits.Lease)}
	case len(ev.Origin.Topic) > limits.TopicBytes:
		return 0, &EventError{"topic", fmt.Sprintf("has %d bytes, the cap is %d", len(ev.Origin.Topic), limits.TopicBytes)}
	}
	week, err := weekbucket.Of(ev.when(now))
	if err != nil {
		return 0, &EventError{"time", "is outside the years 1 to 9999"}
	}
	return week, nil
}

// checkWindow returns an error if the event's window is invalid in an engine that retains the given
// number of weeks.
func (ev *Event) checkWindow(retentionWeeks int) error {
	longest := time.Duration(math.MaxInt64)
	if retentionWeeks != KeepAll && retentionWeeks < int(longest/weekDuration) {
		longest = time.Duration(retentionWeeks) * weekDuration
	}
	switch {
	case ev.Window == 0:
		return nil
	case ev.Window < time.Millisecond:
		return &EventError{"window", fmt.Sprintf("is %v: give at least a millisecond, or 0", ev.Window)}
	case ev.Window > longest:
		return &EventError{"window", fmt.Sprintf("is %v, longer than the retention of %v (Options.RetentionWeeks)", ev.Window, longest)}
	case ev.arrives() && ev.Window > limits.ArrivalWindow:
		return &EventError{"window", fmt.Sprintf("is %v, the cap for an event without a time is %v: give the time the producer set", ev.Window, limits.ArrivalWindow)}
	}
	return nil
}
