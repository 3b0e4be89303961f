package kafkaadapter

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A hold keeps the weeks that a partition's unread records need from being dropped. It remains when
// the consumer ends.
type hold struct {
	name     string
	lateness time.Duration // allowedLateness and Route.Window

	mu sync.Mutex
	at time.Time // as the store has it
}

// HoldNames returns the names of the holds of a consumer group's partitions, for
// engine.Retention.PlanScopeDrop or ReleaseHold when the group is no longer used. No consumer of the group
// may run meanwhile. The group's offsets remain: if it is used again, its consumers continue after
// the last handled record.
func HoldNames(ctx context.Context, eng *engine.Engine, group string) (names []string, err error) {
	if eng == nil {
		return nil, errNilEngine
	}
	there := map[string]bool{}
	for _, hold := range eng.Holds() {
		there[hold.Name] = true
	}
	offsets, err := eng.Admin().Offsets(ctx, group)
	for p := range offsets {
		if name := holdName(p); there[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, err
}

// holdName is the name of a partition's hold: kafka/<group>/<topic>/<partition>, with a hash in the
// group's place if that is too long.
func holdName(pos engine.OffsetKey) string {
	name := fmt.Sprintf("kafka/%s/%s/%d", pos.Group, pos.Topic, pos.Partition)
	if len(name) > limits.HoldNameBytes {
		sum := sha256.Sum256([]byte(name))
		name = fmt.Sprintf("kafka/%x/%.100s/%d", sum[:16], pos.Topic, pos.Partition)
	}
	return name
}

// begin holds every week until the first batch has shown how late the partition's events are,
// unless this assignment continues with the hold of an earlier one.
func (h *hold) begin(tx *engine.Tx, eng *engine.Engine, goesOn bool) error {
	if held := eng.HoldsOf(h.name); goesOn && len(held) == 1 {
		h.set(held[0].At)
		return nil
	}
	at := holdable(eng.Retention().OldestWeek().Start())
	h.set(at)
	return as(tx).SetHold(h.name, at)
}

// move writes the hold for events from mark on if that moves it into another week. It returns the
// new time, or the zero time if the hold is unchanged. Call set when the transaction has committed.
func (h *hold) move(tx *engine.Tx, mark time.Time) (time.Time, error) {
	at := holdable(mark.Add(-h.lateness))
	if sameWeek(at, h.get()) {
		return time.Time{}, nil
	}
	return at, as(tx).SetHold(h.name, at)
}

// isCurrent reports whether the hold is up to date for a partition that has caught up.
func (h *hold) isCurrent() bool { return sameWeek(time.Now().Add(-h.lateness), h.get()) }

func (h *hold) get() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at
}

func (h *hold) set(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at = at
}

// firstHoldable is the start of the second possible week. The first contains the zero time, which a
// hold cannot have.
var firstHoldable = time.Date(1, 1, 8, 0, 0, 0, 0, time.UTC)

// holdable returns at, or the first time that a hold can have.
func holdable(at time.Time) time.Time {
	if at.Before(firstHoldable) {
		return firstHoldable
	}
	return at
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func sameWeek(a, b time.Time) bool {
	wa, errA := weekbucket.Of(a)
	wb, errB := weekbucket.Of(b)
	return errA == nil && errB == nil && wa == wb
}
