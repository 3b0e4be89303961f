package kafkaadapter

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/hapax-dev/hapax/engine"
)

// letterPart is the most bytes of a pending dead letter under one key of the store.
const letterPart = 1 << 20

// bury puts a record among the dead letters: the letter, the claim that is marked dead-lettered, and the next offset
// commit in one batch. It is the last record of its batch, and the partition is not read on until the broker has it.
func (o *outcome) bury(r *Record, why letterReason, cause error, claimed bool) error {
	c := o.p.c
	to := c.mode.deadLetters()
	if to == nil {
		return fmt.Errorf("%w: offset %d: %w", ErrUndecodable, r.Offset, cause)
	}
	id := c.eng.Identity()
	f := failure{
		Reason: why, Err: cause, Attempts: o.attemptsAt(r.Record), Group: c.opt.Group, Scope: r.Event.Scope,
		Event: r.identity(), Store: id.UUID, Incarnation: id.Incarnation,
	}
	if claimed {
		rec, err := o.tx.DeadLetter(r.Event)
		if err != nil {
			return err
		}
		f.Generation = rec.Generation
	}
	l := newLetter(r.Record, r.replay, f, c.secret)
	if err := o.p.putLetter(o.tx, appendLetter(nil, l)); err != nil {
		return err
	}
	o.letter = true
	o.notes = append(o.notes, note{rec: r.Record, event: r.Event, verdict: r.Verdict, err: cause, policy: "dead_letter"})
	return nil
}

// putLetter stores a letter under keys of its partition, in parts. The first begins with the number of parts.
func (p *partition) putLetter(tx *engine.Tx, b []byte) error {
	parts := max(1, (len(b)+letterPart-1)/letterPart)
	for i := range parts {
		part := b[i*letterPart : min(len(b), (i+1)*letterPart)]
		if i == 0 {
			part = append(binary.BigEndian.AppendUint16(nil, uint16(parts)), part...)
		}
		if err := tx.Put(letterKey(p.pos, i), part); err != nil {
			return err
		}
	}
	return nil
}

// pendingLetter returns the partition's letter that the broker does not have yet, nil if there is none.
func (p *partition) pendingLetter(tx *engine.Tx) (l *letter, parts int, err error) {
	first, found, err := tx.Get(letterKey(p.pos, 0))
	if err != nil || !found {
		return nil, 0, err
	}
	if len(first) < 2 {
		return nil, 0, errLetter
	}
	parts = int(binary.BigEndian.Uint16(first))
	whole := bytes.NewBuffer(first[2:])
	for i := 1; i < parts; i++ {
		b, found, err := tx.Get(letterKey(p.pos, i))
		if err != nil {
			return nil, 0, err
		}
		if !found {
			return nil, 0, fmt.Errorf("%w: part %d of %d is missing", errLetter, i, parts)
		}
		whole.Write(b)
	}
	l, err = parseLetter(whole.Bytes())
	return l, parts, err
}

// publish hands the partition's pending dead letter to the broker and forgets it once the broker has it; it is published
// at least once. While the broker does not take it, the partition is stopped and it is tried again. publish reports
// whether the worker goes on.
func (p *partition) publish() (goOn bool) {
	var l *letter
	var parts int
	err := p.c.eng.Update(p.ctx, func(tx *engine.Tx) (err error) {
		l, parts, err = p.pendingLetter(tx)
		return err
	}, engine.Retries(100))
	if err != nil {
		return p.failed(err)
	}
	if l == nil {
		return true
	}
	if !p.deliver(l) {
		return false
	}
	err = p.c.eng.Update(p.ctx, func(tx *engine.Tx) error {
		if err := p.own(tx); err != nil {
			return err
		}
		for i := range parts {
			if err := tx.Delete(letterKey(p.pos, i)); err != nil {
				return err
			}
		}
		return nil
	}, engine.Retries(100))
	if err != nil {
		return p.failed(err)
	}
	p.c.m.letters.WithLabelValues(p.pos.Topic, string(l.Reason)).Inc()
	return true
}

// deliver publishes a letter, however long that takes. It reports false if the assignment ended first.
func (p *partition) deliver(l *letter) bool {
	to := p.c.mode.deadLetters()
	if to == nil {
		p.c.halt(p.tp(), "dead_letter", fmt.Errorf("%w: an earlier run left a dead letter, and no dead letters are configured now", ErrDeadLetter))
		return false
	}
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = p.c.opt.FirstBackoff, p.c.opt.LongestBackoff
	stopped := false
	for {
		topic := to.topic(l.Origin.Topic)
		ctx, cancel := context.WithTimeout(p.ending, 10*time.Second)
		err := p.c.client.ProduceSync(ctx, l.record(topic, to.Headers)).FirstErr()
		cancel()
		switch {
		case err == nil:
			if stopped && p.c.isAssigned(p) {
				p.c.resumed(p.tp())
			}
			return true
		case p.isEnding() || p.ctx.Err() != nil:
			return false
		}
		err = fmt.Errorf("%w: topic %s: %w", ErrDeadLetter, topic, err)
		if stopped {
			p.log.Error("a dead letter still cannot be published", "error", err)
		} else {
			if stopped = p.c.isAssigned(p); stopped {
				p.c.stop(p.tp(), "dead_letter", err)
			}
		}
		if !p.wait(pauses.NextBackOff()) {
			return false
		}
	}
}
