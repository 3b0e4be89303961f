package kafkaadapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/hapax-dev/hapax/engine"
)

// AdoptOffset applies a recovery policy once to an assigned partition that is stopped by a
// PositionError, for example after the volume of its store was lost, without a change of
// Options.Recovery. The reason should say who decided and why; it is logged, and kept in the store
// with the offsets before and after (see Adoptions). The new offset and the ownership of the
// partition commit in one batch of the store.
//
// AdoptOffset returns nil when the partition is owned at its new offset. It returns
// ErrNotStopped if the partition is not stopped by a PositionError, and an error that wraps
// ErrOption and lists the valid policies if the policy does not apply. If the adopted offset cannot
// be read either, it returns the next *PositionError: a further call resolves that one, and both
// take effect together. If the assignment ends before the policy is applied, it returns an error that
// wraps ErrFenced: call it again if the partition stops again. A topic that was created again while
// Run was running needs such a second call, because the client must first find the new topic. If ctx
// ends first, its error is returned, and the policy may still be applied: until then a further call
// for the partition returns ErrNotStopped at once. OnStop must not wait
// for AdoptOffset: the partition waits for OnStop.
func (c *Consumer) AdoptOffset(ctx context.Context, topic string, partition int32, policy RecoveryPolicy, reason string) error {
	if reason == "" {
		return fmt.Errorf("%w: AdoptOffset needs a reason: state who decided and why", ErrOption)
	}
	if _, away := c.shared.links.get(); away != nil {
		return fmt.Errorf("%w: call AdoptOffset after that", ErrUnprotected)
	}
	p := c.parts.get(topicPartition{topic, partition})
	if p == nil {
		return fmt.Errorf("%w: %s/%d is not assigned to this consumer", ErrNotStopped, topic, partition)
	}
	a := &adoption{policy: policy, reason: reason, done: make(chan error, 1)}
	if err := p.submit(a); err != nil {
		return err
	}
	select {
	case err := <-a.done:
		return err
	case <-p.done: // the assignment's goroutine has ended
		select {
		case err := <-a.done:
			return err
		default:
			return errAdoptAgain
		}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// submit gives an adoption to the stopped goroutine, if it fits the stop. There is one at a time.
func (p *partition) submit(a *adoption) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var at *PositionError
	s := &p.stat
	switch {
	case p.isEnding():
		return errAdoptAgain
	case s.adopting != nil:
		return fmt.Errorf("%w now: AdoptOffset with the policy %v is being applied to %s", ErrNotStopped, s.adopting.policy, p.tp())
	case s.stop == nil || !s.nextTry.IsZero() || !errors.As(s.stop, &at):
		return fmt.Errorf("%w: %s is %v", ErrNotStopped, p.tp(), s.state)
	}
	a.kind = at.Kind
	if i := slices.IndexFunc(s.adopted, func(b *adoption) bool { return fits(b.kind, a.policy) }); i >= 0 && !fits(a.kind, a.policy) {
		a.kind = s.adopted[i].kind // it replaces an earlier adoption
	}
	if !fits(a.kind, a.policy) {
		return fmt.Errorf("%w: the policy %v does not apply to this stop: use %s", ErrOption, a.policy, waysOf(at.Kind))
	}
	s.adopting = a
	p.adoptions <- a // it has room
	return nil
}

// Adoptions returns the offsets of the group that were adopted, ordered by topic, partition and
// time.
func (c *Consumer) Adoptions(ctx context.Context) (all []Adoption, err error) {
	prefix := appendText(append([]byte(KeyPrefix), keyAdoption), c.shared.opt.Group)
	eng := c.shared.engine()
	if eng == nil {
		return nil, ErrUnprotected
	}
	for kv, scanErr := range eng.Scan(ctx, engine.Range{Prefix: prefix}) {
		if scanErr != nil {
			return nil, scanErr
		}
		var a Adoption
		if len(kv.Value) == 0 || kv.Value[0] != 1 {
			return nil, unknownForm("an adoption", kv.Value)
		}
		if err := json.Unmarshal(kv.Value[1:], &a); err != nil {
			return nil, fmt.Errorf("hapax: reading an adoption: %w", err)
		}
		all = append(all, a)
	}
	return all, nil
}

// Pause stops the handling of partitions of a topic, or of the whole topic if no partition is
// named, until Resume. It returns at once: a running batch commits, and no other begins. A pause
// also applies to partitions that are assigned later. A paused partition stays assigned and keeps
// its fetched records, within MaxBufferedBytes. Its lag is still measured, and its hold
// still keeps the weeks that its unread records need.
//
// Pause fails for a topic that no route consumes. It is safe for concurrent use, also before Run.
func (c *Consumer) Pause(topic string, partitions ...int32) error {
	return c.setPaused(true, topic, partitions)
}

// Resume ends the pause of partitions, or that of a topic and of all its partitions if no partition
// is named. A partition of a topic that is paused as a whole stays paused. Resume is safe for
// concurrent use.
func (c *Consumer) Resume(topic string, partitions ...int32) error {
	return c.setPaused(false, topic, partitions)
}

func (c *Consumer) setPaused(paused bool, topic string, partitions []int32) error {
	if c.shared.opt.route(topic) == nil {
		return fmt.Errorf("%w: topic %q cannot be paused or resumed: no route of Options.Routes consumes it", ErrOption, topic)
	}
	c.shared.pauses.set(paused, topic, partitions)
	for _, p := range c.parts.all() {
		if p.pos.Topic == topic && (len(partitions) == 0 || slices.Contains(partitions, p.pos.Partition)) {
			p.queue.Wake()
		}
	}
	return nil
}

// Stopped lists the assigned partitions that are stopped, with the reasons.
func (c *Consumer) Stopped() (all []*StopError) {
	for _, p := range c.parts.all() {
		if e := p.status().stop; e != nil {
			all = append(all, e.copy())
		}
	}
	return all
}

// Engine returns the engine of a partition that this consumer owns, or an error that wraps ErrNotOwned.
// With Options.Changelog it is valid as long as the member owns the partition: then its calls fail with
// engine.ErrStopped or engine.ErrClosed, and Engine returns the next one when there is one. What an
// Update has written is never that of a member which has lost the partition; a read alone may be stale.
// Without Options.Changelog it is the engine of all partitions.
func (c *Consumer) Engine(position engine.OffsetKey) (*engine.Engine, error) {
	p := c.parts.get(topicPartition{position.Topic, position.Partition})
	if p == nil || position.Group != c.shared.opt.Group {
		return nil, fmt.Errorf("%w: group %s, %s/%d", ErrNotOwned, position.Group, position.Topic, position.Partition)
	}
	if l, _ := p.links.get(); l != nil && l.eng.Err() == nil {
		return l.eng, nil
	}
	return nil, fmt.Errorf("%w: %s is %v", ErrNotOwned, p.tp(), p.status().state)
}
