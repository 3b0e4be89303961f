package kafkaadapter

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// maxLetterBytes is the number of bytes of dead letters at which a batch ends.
const maxLetterBytes = 1 << 20

// deadLetter turns a record into a dead letter. The dead letter, the claim marked as dead-lettered,
// and the next offset commit in one batch. The next batch begins when the broker has acknowledged
// all dead letters of this one.
func (b *batch) deadLetter(r *delivery, why deadletter.Reason, cause error, claimed bool) error {
	f := deadletter.Failure{Reason: why, Err: cause, Attempts: b.attemptsAt(r.Record), Event: r.identity(), Claimed: claimed}
	if claimed {
		rec, err := as(b.tx).DeadLetter(judged(r.Event, isClaimed(r.replay)))
		if err != nil {
			return err
		}
		f.Generation, f.Event = rec.Generation, lettered(f.Event, &rec)
	}
	o := b.p.partition.route.DeadLetters
	letter := b.p.issuer.Letter(r.Record, r.replay, f, o.Headers)
	if b.p.large.is(r.Record) {
		letter = deadletter.WithoutRecord(b.p.issuer.Letter(b.p.large.first, nil, f, o.Headers))
	}
	letter, err := deadletter.Fit(letter, b.p.partition.route.Policies[LargeLetter] == DeadLetter)
	if err != nil {
		return fmt.Errorf("%w: at offset %d", err, r.Record.Offset)
	}
	new(buffer).keep(letter) // it outlasts the records of the batch
	b.result.letters, b.result.letterAt = append(b.result.letters, letter), append(b.result.letterAt, r.Record.Offset)
	b.result.letterBytes += deadletter.Size(letter)
	b.notes = append(b.notes, note{rec: r.Record, event: r.Event, verdict: r.Verdict, err: cause, policy: "dead_letter"})
	return nil
}

// publish publishes the partition's pending dead letters and deletes them from the store after the
// broker has acknowledged all of them: each is published at least once. If the broker refuses any,
// the partition is stopped and they are retried.
func (r *partitionState) publish() state {
	if r.pending == nil { // an earlier owner may have left some
		if err := r.readPending(); err != nil {
			return r.failed(err)
		}
	}
	switch {
	case r.pending == nil:
		return running
	case r.partition.route.DeadLetters == nil:
		return r.stop("dead_letter", fmt.Errorf("%w: an earlier run left a dead letter, and Route.DeadLetters is nil now: set it", ErrDeadLetter))
	}
	topic, omit := r.partition.route.DeadLetters.TopicOf(r.partition.pos.Topic), r.partition.route.Policies[LargeLetter] == DeadLetter
	if err := r.partition.c.publishers[topic].Publish(r.partition.ending, r.pending, omit, r.published); err != nil {
		return r.stopForNow("dead_letter", fmt.Errorf("%w: topic %s: %w", ErrDeadLetter, topic, err), publishing)
	}
	err := r.partition.engine().Update(r.partition.ctx, func(tx *engine.Tx) error {
		if err := r.partition.fence.Check(ownerTx{tx, r.partition.pos}); err != nil {
			return err
		}
		return r.pending.Delete(tx)
	}, engine.Retries(100))
	if err != nil {
		return r.failed(err)
	}
	r.pending = nil
	r.retries.Reset()
	return running
}

func (r *partitionState) readPending() error {
	return r.partition.engine().Update(r.partition.ctx, func(tx *engine.Tx) (err error) {
		r.pending, err = deadletter.Get(tx, letterKey(r.partition.pos))
		return err
	}, engine.Retries(100))
}

// published counts a dead letter that the broker has acknowledged.
func (r *partitionState) published(letter *kgo.Record) {
	r.partition.c.m.letters.WithLabelValues(r.partition.pos.Topic, string(deadletter.ReasonOf(letter))).Inc()
	if err := deadletter.Incomplete(letter); err != nil {
		r.partition.log.Warn("a dead letter was too large and was published without its value", "error", err)
	}
}
