package kafkaadapter

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// maxLetterBytes is how many bytes of dead letters a batch may have before it ends.
const maxLetterBytes = 1 << 20

// maxStoredLetter is how many bytes a letter may have that is stored alone. The rest of a
// transaction is for the claim, the offset and the adapter's own keys.
const maxStoredLetter = engine.MaxTxBytes - 1<<20

// deadLetter makes a dead letter of a record: the letter, the claim that is marked dead-lettered,
// and the next offset commit in one batch. After that batch no other begins until the broker has
// acknowledged all its letters.
func (b *batch) deadLetter(r *Record, why deadletter.Reason, cause error, claimed bool) error {
	f := deadletter.Failure{Reason: why, Err: cause, Attempts: b.attemptsAt(r.Record), Event: r.identity()}
	if claimed {
		rec, err := b.tx.DeadLetter(r.Event)
		if err != nil {
			return err
		}
		f.Generation = rec.Generation
	} else if r.replay != nil {
		f.Generation = r.replay.Generation // its claim is as it was
	}
	o := b.p.route.DeadLetters
	letter := b.p.issuer.Letter(r.Record, r.replay, f, o.Headers)
	if o.OmitTooLarge {
		letter = deadletter.Shorten(letter, maxStoredLetter)
	}
	if n := deadletter.Size(letter); n > maxStoredLetter {
		return fmt.Errorf("%w: %d bytes at offset %d; a transaction of the store has room for %d", deadletter.ErrTooLarge, n, r.Offset, maxStoredLetter)
	}
	b.letters, b.letterAt = append(b.letters, letter), append(b.letterAt, r.Offset)
	b.letterBytes += deadletter.Size(letter)
	b.notes = append(b.notes, note{rec: r.Record, event: r.Event, verdict: r.Verdict, err: cause, policy: "dead_letter"})
	return nil
}

// keepLetters stores the batch's letters until they are published.
func (b *batch) keepLetters() (err error) {
	if len(b.letters) > 0 {
		b.pending, err = deadletter.Put(b.tx, letterKey(b.p.pos), b.letters)
	}
	return err
}

// publish publishes the partition's pending dead letters and deletes them from the store after the
// broker has acknowledged all of them: each is published at least once. If the broker refuses any,
// the partition is stopped and they are retried.
func (p *partition) publish() state {
	if p.pending == nil { // an earlier owner may have left some
		if err := p.readPending(); err != nil {
			return p.failed(err)
		}
	}
	switch {
	case p.pending == nil:
		return running
	case p.route.DeadLetters == nil:
		return p.stop("dead_letter", fmt.Errorf("%w: an earlier run left a dead letter, and Route.DeadLetters is nil now: set it", ErrDeadLetter))
	}
	topic, omit := p.route.DeadLetters.TopicOf(p.pos.Topic), p.route.DeadLetters.OmitTooLarge
	if err := p.c.publishers[topic].Publish(p.ending, p.pending, omit, p.published); err != nil {
		return p.stopForNow("dead_letter", fmt.Errorf("%w: topic %s: %w", ErrDeadLetter, topic, err), publishing)
	}
	err := p.engine().Update(p.ctx, func(tx *engine.Tx) error {
		if err := p.fence.check(tx); err != nil {
			return err
		}
		return p.pending.Delete(tx)
	}, engine.Retries(100))
	if err != nil {
		return p.failed(err)
	}
	p.pending = nil
	p.retries.Reset()
	return running
}

func (p *partition) readPending() error {
	var more deadletter.Headers
	if p.route.DeadLetters != nil {
		more = p.route.DeadLetters.Headers
	}
	return p.engine().Update(p.ctx, func(tx *engine.Tx) (err error) {
		p.pending, err = deadletter.Get(tx, letterKey(p.pos), more)
		return err
	}, engine.Retries(100))
}

// published counts a dead letter that the broker has.
func (p *partition) published(letter *kgo.Record) {
	p.c.m.letters.WithLabelValues(p.pos.Topic, string(deadletter.ReasonOf(letter))).Inc()
	if err := deadletter.Incomplete(letter); err != nil {
		p.log.Warn("a dead letter was too large and was published without its value", "error", err)
	}
}
