package engine

import (
	"fmt"
	"strings"
	"time"

	"github.com/hapax-dev/hapax/weekbucket"
)

// Caps on what an event may carry. They bound keys, memory and the size of a batch.
const (
	DefaultMaxIDBytes = 1024 // Options.MaxIDBytes = 0
	LimitIDBytes      = 16 << 10
	MaxScopeBytes     = 255
	MaxTopicBytes     = 255
)

// An Event is what the engine judges. Two deliveries are the same event if scope, id and the week of the time agree
// (but see LogTime).
type Event struct {
	// Scope is the logical consumer. Empty in the ...Default forms only.
	Scope string
	// ID is the producer's identifier, any bytes, not empty. The engine keeps no reference to it.
	ID []byte
	// Time is when the event happened, set by the producer and the same on every delivery; never the consumer's clock.
	Time time.Time
	// LogTime says that Time is not the producer's own but was given to the record on its way, so that the same event
	// may come again with another one: a claim on scope and id in the week before or after is then a Duplicate too. It
	// finds claims of kept weeks only, costs a little, and reaches a week far: it is no substitute for the producer's
	// time. Where several of these weeks have a claim, the Duplicate shows one of them.
	LogTime bool
	// Origin is where this delivery came from. It is kept with the claim and decides nothing.
	Origin Origin
}

// An Origin is a position in a log.
type Origin struct {
	Topic     string // not empty
	Partition int32
	Offset    int64
}

func (o Origin) String() string { return fmt.Sprintf("%s/%d@%d", o.Topic, o.Partition, o.Offset) }

// check says what is wrong with an event, nil if it can be judged, and its week.
func (ev *Event) check(maxID int) (weekbucket.Week, error) {
	switch {
	case strings.TrimSpace(ev.Scope) == "":
		return 0, &EventError{"scope", "is blank: name the logical consumer"}
	case len(ev.Scope) > MaxScopeBytes:
		return 0, &EventError{"scope", fmt.Sprintf("has %d bytes, the cap is %d", len(ev.Scope), MaxScopeBytes)}
	case len(ev.ID) == 0:
		return 0, &EventError{"id", "is empty: give the producer's identifier"}
	case len(ev.ID) > maxID:
		return 0, &EventError{"id", fmt.Sprintf("has %d bytes, the cap is %d (Options.MaxIDBytes)", len(ev.ID), maxID)}
	case ev.Time.IsZero():
		return 0, &EventError{"time", "is zero: give the time the producer set"}
	case ev.Origin.Topic == "":
		return 0, &EventError{"topic", "is empty: give the origin's topic"}
	case len(ev.Origin.Topic) > MaxTopicBytes:
		return 0, &EventError{"topic", fmt.Sprintf("has %d bytes, the cap is %d", len(ev.Origin.Topic), MaxTopicBytes)}
	}
	week, err := weekbucket.Of(ev.Time)
	if err != nil {
		return 0, &EventError{"time", "is outside the years 1 to 9999"}
	}
	return week, nil
}
