package kafkaadapter

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// What follows is the life of a partition while the store is away and Options.FailOpen is set. Its
// offset is in Kafka then, with a mark (see author.openMark). When the store is open again, the
// later one of the two offsets is where reading continues: what is below Kafka's was handled
// without claims, and what is below the store's with them. See errRanOpen.

// failOpen finds out without the store where to read: where this assignment was, or at Kafka's
// commit. The offset is committed to Kafka with the mark before anything is handled.
func (p *partition) failOpen() state {
	p.all.whileAssigned(p, func() { p.c.client.PauseFetchPartitions(p.only()) })
	p.queue.close()
	p.taken, p.pending = nil, nil
	p.before.Store(nil) // the fence of an assignment before this one is in a store that takes nothing more
	p.endAdoption(ErrUnprotected)
	if err := p.settle(); err != nil {
		return p.failed(err)
	}
	if p.mayClaim() {
		return lookingUp
	}
	v, err := p.lookAt(nil)
	switch {
	case p.isEnding():
		return ended
	case err != nil:
		return p.stopForNow(reasonOf(err), err, lookingUp)
	case p.readsAnotherTopic(v):
		p.ask.forget(p)
		if !p.wait(p.retries.NextBackOff()) {
			return ended
		}
		return lookingUp
	}
	if p.uncertain = min(p.uncertain, v.end); p.mayClaim() { // the log was cut
		return lookingUp
	}
	b, err := v.beginOpen(p.recovery(), p.route.Start)
	if err != nil {
		return p.stopForNow("position", err, lookingUp) // the store may know more
	}
	p.topicID, p.next, p.epoch, p.cause = v.topicID, b.offset, b.epoch, nil
	p.fence.width = uint32(p.c.opt.Batching.MaxBatch) // it is stored anew before the next claim
	p.open.Store(true)
	p.offsets.begin(b, p.epoch, authorOf(v.id).openMark(p.uncertain))
	p.opened = true
	p.ask.openings.ask(p, opening{b.offset, v.topicID})
	if next := p.sign(); next != publishing {
		return next
	}
	return unprotected
}

// doubt has Kafka's commit say that records below until may be claimed and are not handled. It is
// made when the assignment ends, if not before: the next owner handles them without claims.
func (p *partition) doubt(until int64) {
	if p.c.opt.FailOpen != nil {
		p.offsets.doubt(authorOf(p.link.Load().id).openMark(until))
	}
}

// settle finds out the outcome of a batch of unknown outcome, once the store is there: its offset
// is in it with its claims.
func (p *partition) settle() error {
	if p.c.isAway() {
		return nil
	}
	l, _ := p.c.links.get()
	p.attach(l)
	o, found, err := l.eng.Offset(p.ending, p.pos)
	switch {
	case err != nil:
		return err
	case !found || o.Next < p.uncertain:
		p.uncertain, p.inStore = 0, 0
	default:
		p.inStore = p.uncertain
	}
	return nil
}

// mayClaim reports whether the store is there, and everything is handled that may have been claimed
// by a batch of unknown outcome: with claims it would be skipped.
func (p *partition) mayClaim() bool {
	at, known := p.offsets.position()
	return !p.c.isAway() && (!known || at.Offset >= p.uncertain)
}

// isOutdated reports whether there is a store that the partition does not use.
func (p *partition) isOutdated() bool {
	if p.c.opt.FailOpen == nil {
		return false
	}
	l, _ := p.c.links.get()
	return (p.open.Load() || p.link.Load() != l) && p.mayClaim()
}

// runOpen handles records without claims until the store is open again.
func (p *partition) runOpen() state {
	for {
		if len(p.taken) == 0 {
			if next := p.take(); next != unprotected {
				return next
			}
		}
		switch {
		case p.isEnding():
			return ended
		case p.isPaused():
			return paused
		case p.isOutdated():
			return lookingUp
		}
		if next := p.workOpen(); next != unprotected {
			return next
		}
	}
}

// workOpen handles some of the records that were taken. Kafka's offset follows the handlers.
func (p *partition) workOpen() state {
	n := min(len(p.taken), p.size.n)
	b, err := p.unclaimed(n)
	p.taken = p.taken[b.done:]
	if b.done > 0 {
		p.retries.Reset()
	}
	if len(b.claimed) > 0 && !p.handleClaimed(b) {
		return ended
	}
	p.size.took(n, b.handling)
	switch {
	case err == nil:
		return unprotected
	case b.done > 0:
		return unprotected // it is met again as the first of the next ones
	case errors.Is(err, identify.ErrNoTopicID):
		return p.stopBefore("undecodable", err)
	case isTransient(err):
		return p.stopForNow("transient", err, lookingUp)
	}
	return p.stopForNow("store", fmt.Errorf("%w: a dead letter has to wait for it: %w", ErrUnprotected, err), lookingUp)
}

// unclaimed makes a batch of the first n records that were taken, to be handled without claims. It
// ends before a record that cannot be passed without the store.
func (p *partition) unclaimed(n int) (*batch, error) {
	b := &batch{p: p, next: p.next, epoch: p.epoch, began: time.Now(), low: math.MaxInt64}
	var stop error
	for _, rec := range p.taken[:n] {
		if rec.Offset >= b.next && !isControl(rec) {
			s := p.sight(rec)
			cannotPass := errors.Is(s.err, identify.ErrNoTopicID) || isTransient(s.err)
			switch {
			case !cannotPass && s.err != nil && p.route.Undecodable != Reject && rec.Offset < p.inStore: // its dead letter is there
			case cannotPass, s.err != nil && p.route.Undecodable != Reject:
				stop = s.err
			case s.err != nil:
				b.reject(s.Record, deadletter.Undecodable, s.err)
			default:
				s.Verdict, s.given = engine.Failed, true
				b.claimed = append(b.claimed, claimed{Record: s.Record, before: b.tally})
				b.tally.handled(s.Record)
				b.tally.unclaimed++
				b.tally.unprotected++
			}
			if stop != nil {
				break
			}
			b.tally.identified(&s)
		}
		b.done++
		b.next, b.epoch = max(b.next, rec.Offset+1), rec.LeaderEpoch
	}
	p.next, p.epoch = b.next, b.epoch
	p.offsets.moved(b.unbegun(0))
	if len(b.claimed) == 0 {
		p.c.m.tally(p.pos.Topic, &b.tally)
	}
	p.tell(b)
	return b, stop
}

// withoutStore completes a view without the store: by what this assignment knows of it, and by the
// identity that the consumer has had last, or that the group's commit bears.
func (p *partition) withoutStore(v *view) (o engine.Offset, found bool) {
	if l, _ := p.c.links.get(); l != nil {
		v.id = l.id
	} else {
		by, ours := parseMetadata(v.metadata())
		if !ours {
			by = parseOpenMark(v.metadata()).by
		}
		v.id = storage.Identity{UUID: by.uuid, Incarnation: by.incarnation}
	}
	if at, owned := p.offsets.inMemory(); owned {
		o, found = engine.Offset{Next: at.Offset, LeaderEpoch: at.Epoch, TopicID: p.topicID}, true
		v.store = &o
	}
	return o, found
}
