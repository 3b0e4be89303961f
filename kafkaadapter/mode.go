package kafkaadapter

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
)

// A Mode is a handler together with what it is promised: OwnCommit or WithWork. There are no others.
type Mode interface {
	check(o *Options) error
	deadLetters() *DeadLetters
}

// OwnCommit handles each event at most once: its claim and the next offset commit first, then the handler runs. An event
// whose handler fails, panics or dies with the process is lost: that is counted (dedup_kafka_lost_total) and logged,
// except for what the process takes with it, which is at most one batch of each partition.
// For work that may be lost, such as push notifications.
type OwnCommit struct {
	// Handle handles a record. Its context ends when the partition is taken away or the consumer shuts down for longer
	// than it may wait. Calls for one partition come one after the other, in order.
	Handle func(ctx context.Context, rec *Record) error
	// DeadLetters is where records go that have no usable id or time, and those of a DeadLetter policy. nil: such a
	// record stops its partition.
	DeadLetters *DeadLetters
}

// WithWork handles each event so that its effect in the store happens once: the claim, what the handler writes through
// tx, and the next offset commit together, or none of them does. A failing handler is run again after a back-off, until
// MaxAttempts is reached; then the record goes to the dead letters. Effects outside the store happen as often as the
// handler runs.
type WithWork struct {
	// Handle handles a record inside the transaction of its batch. It is undone alone if it fails; it may run again
	// after a conflict, a failure or a crash. See OwnCommit.Handle for the context and the order.
	// Host keys that begin with KeyPrefix belong to the adapter.
	// What tx tells is final when it commits: see engine.DurableAtCommit.
	Handle func(ctx context.Context, tx *engine.Tx, rec *Record) error
	// DeadLetters is where records go that cannot be handled. Needed.
	DeadLetters *DeadLetters
	// MaxAttempts is how often a record is tried, 1 or more; a process that dies in a handler counts. Needed.
	MaxAttempts int
}

// DeadLetters says where records go that cannot be handled, and how. The zero value is the topic's name with "-dlt"
// and the adapter's own headers.
type DeadLetters struct {
	// Topic names the dead-letter topic for a topic. nil: the topic's name with "-dlt". It has to exist.
	Topic func(topic string) string
	// Headers adds the names of other tools to the adapter's own headers.
	Headers LetterHeaders
}

func (d *DeadLetters) topic(of string) string {
	if d.Topic == nil {
		return of + "-dlt"
	}
	return d.Topic(of)
}

// A Record is what a handler is given.
type Record struct {
	*kgo.Record
	// Event is what was claimed.
	Event engine.Event
	// Verdict is Claimed; or TooOld, TooNew or Failed, if the policy is to handle such records without a claim.
	Verdict engine.Verdict
	// Attempt counts from 1.
	Attempt int
	// Reopened says that this is the replay of a dead letter.
	Reopened bool

	idRule   IDRule // zero if the record has no event that can be told
	timeRule TimeRule
	given    bool    // to a handler
	replay   *replay // it is one, whose event this is
}

// identity is what the record is judged by, but for BadTimes; zero if it has none that can be used.
func (r *Record) identity() identity {
	return identity{ID: r.Event.ID, Time: r.Event.Time, LogTime: r.Event.LogTime, IDRule: r.idRule, TimeRule: r.timeRule}
}

func (m OwnCommit) deadLetters() *DeadLetters { return m.DeadLetters }
func (m WithWork) deadLetters() *DeadLetters  { return m.DeadLetters }

func (m OwnCommit) check(o *Options) error {
	if m.Handle == nil {
		return ErrNoHandler
	}
	if m.DeadLetters != nil {
		return m.DeadLetters.check(o)
	}
	if m.DeadLetters == nil && (o.TooOld == DeadLetter || o.TooNew == DeadLetter) {
		return fmt.Errorf("%w: a policy is DeadLetter, and OwnCommit.DeadLetters is nil", ErrOption)
	}
	return nil
}

func (m WithWork) check(o *Options) error {
	switch {
	case m.Handle == nil:
		return ErrNoHandler
	case m.DeadLetters == nil:
		return ErrNoDeadLetters
	case m.MaxAttempts < 1:
		return ErrNoAttemptLimit
	}
	return m.DeadLetters.check(o)
}

// check refuses dead-letter topics that the consumer reads itself: what cannot be told from others would go round in them.
func (d *DeadLetters) check(o *Options) error {
	for _, topic := range o.Topics {
		if to := d.topic(topic); to == "" || slices.Contains(o.Topics, to) {
			return fmt.Errorf("%w: the dead-letter topic of %q is %q, which is empty or consumed as well", ErrOption, topic, to)
		}
	}
	return nil
}

// withWork reports whether handlers run inside the transaction.
func (c *Consumer) withWork() bool {
	_, ok := c.mode.(WithWork)
	return ok
}
