package kafkaadapter

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

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
	topic, omit := r.partition.route.DeadLetters.TopicOf(r.partition.pos.Topic), !r.partition.route.DeadLetters.StopTooLarge
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
