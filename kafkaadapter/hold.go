package kafkaadapter

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/weekbucket"
)

// HoldNames returns the names of the holds that the partitions of a consumer group have left in the
// store, for engine.PlanScopeDrop or ReleaseHold when the group is gone. No consumer of the group
// may run meanwhile. The group's offsets stay: consumers of it that come back begin after the last
// record that was handled.
func HoldNames(ctx context.Context, eng *engine.Engine, group string) (names []string, err error) {
	there := map[string]bool{}
	for _, hold := range eng.Holds() {
		there[hold.Name] = true
	}
	for o, err := range eng.Offsets(ctx, group) {
		if err != nil {
			return nil, err
		}
		if name := holdName(o.Position); there[name] {
			names = append(names, name)
		}
	}
	return names, nil
}

// holdName is the name of the hold that keeps the weeks a partition still needs:
// kafka/<group>/<topic>/<partition>, with a hash in the group's place if that is too long.
func holdName(p engine.Position) string {
	name := fmt.Sprintf("kafka/%s/%s/%d", p.Group, p.Topic, p.Partition)
	if len(name) > engine.MaxHoldNameBytes {
		sum := sha256.Sum256([]byte(name))
		name = fmt.Sprintf("kafka/%x/%.100s/%d", sum[:16], p.Topic, p.Partition)
	}
	return name
}

func (p *partition) holdName() string { return holdName(p.pos) }

// holdAtStart keeps every week until the first batch has shown how late the partition's events are,
// unless an earlier assignment has left its hold and this one continues from there.
func (p *partition) holdAtStart(tx *engine.Tx, goesOn bool) error {
	for _, h := range p.engine().Holds() {
		if goesOn && h.Name == p.holdName() {
			p.setHold(h.At)
			return nil
		}
	}
	at := holdable(p.engine().OldestWeek().Start())
	p.setHold(at)
	return tx.SetHold(p.holdName(), at)
}

// hold moves the hold with a batch: to the partition's low mark, the lowest event time of the
// batch, less the allowed lateness; if the partition is caught up, to now less the allowed
// lateness, which keeps nothing that would expire. The hold stays when the consumer ends, so that
// no week goes that its unread records need.
func (p *partition) hold(tx *engine.Tx, o *batch) (err error) {
	mark := time.UnixMilli(o.low)
	switch {
	case p.ends.caughtUp(o.next):
		mark = time.Now()
	case o.low == math.MaxInt64: // nothing in the batch had a time that counts
		return nil
	}
	o.holdAt, err = p.moveHold(tx, mark)
	return err
}

// moveHold writes the hold if that moves it into another week, and returns where to; the zero time
// if it stays.
func (p *partition) moveHold(tx *engine.Tx, mark time.Time) (time.Time, error) {
	at := holdable(mark.Add(-p.route.AllowedLateness))
	if sameWeek(at, p.heldAt()) {
		return time.Time{}, nil
	}
	return at, tx.SetHold(p.holdName(), at)
}

// moveIdleHold moves the hold of a partition that is caught up and has nothing to do.
func (p *partition) moveIdleHold() error {
	if sameWeek(time.Now().Add(-p.route.AllowedLateness), p.heldAt()) {
		return nil
	}
	if !p.ends.caughtUp(p.next) {
		return nil
	}
	var at time.Time
	err := p.engine().Update(p.ctx, func(tx *engine.Tx) (err error) {
		if err = p.fence.check(tx); err == nil {
			at, err = p.moveHold(tx, time.Now())
		}
		return err
	}, engine.Retries(10))
	if err == nil && !at.IsZero() {
		p.setHold(at)
	}
	return err
}

// firstHoldable is the start of the second week there is: a hold cannot be at the zero time, which
// is in the first.
var firstHoldable = time.Date(1, 1, 8, 0, 0, 0, 0, time.UTC)

// holdable returns at, or the first time that a hold can have.
func holdable(at time.Time) time.Time {
	if at.Before(firstHoldable) {
		return firstHoldable
	}
	return at
}

func sameWeek(a, b time.Time) bool {
	wa, errA := weekbucket.Of(a)
	wb, errB := weekbucket.Of(b)
	return errA == nil && errB == nil && wa == wb
}

func (p *partition) heldAt() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.holdAt
}

func (p *partition) setHold(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holdAt = at
}
