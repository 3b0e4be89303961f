// Package deadletter makes the dead letter of a Kafka record that could not be handled, identifies
// the replay of one, and keeps dead letters in the store until the broker has acknowledged them.
//
// A dead letter is the record itself, byte for byte, with more headers (see HeaderPrefix). It is
// encoded once, as the finished record, in the store's batch that also moves the offset past the
// record; it is deleted from the store after the broker has acknowledged it. So it is published at
// least once.
package deadletter

import (
	"bytes"
	"crypto/hmac"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// Options say where the dead letters of a topic go, and which headers they get. The zero value is
// the topic's name with "-dlt", and the adapter's own headers.
type Options struct {
	// Topic returns the name of the dead-letter topic for a topic. It returns the same name each
	// time. The dead-letter topic must exist. nil means the topic's name with "-dlt".
	Topic func(topic string) string
	// Headers adds the headers of other tools to the adapter's own.
	Headers Headers
	// OmitTooLarge publishes a letter without its value if the broker refuses it because of its
	// size (max.message.bytes of the dead-letter topic, after compression), or if it is larger than
	// a transaction of the store (31 MiB before compression). Its headers contain the original
	// position, where the log still has the whole value, and hapax_dlt_omitted and
	// hapax_dlt_omitted_bytes say what is missing. Such a letter cannot be replayed before the
	// value is restored: see ErrIncomplete. If the key or the headers are too large, they are left
	// out as well. false: the partition stops with ErrTooLarge.
	OmitTooLarge bool
}

// TopicOf returns the name of the dead-letter topic for a topic.
func (o *Options) TopicOf(topic string) string {
	if o.Topic == nil {
		return topic + "-dlt"
	}
	return o.Topic(topic)
}

// A Failure is the reason for a dead letter and the verdict on its record.
type Failure struct {
	Reason     Reason
	Err        error // nil if the reason says everything
	Attempts   uint32
	Event      identify.Identity // zero if the record has no usable identity
	Generation uint64            // of the claim, 0 if there is none
}

// An Issuer makes the dead letters of one consumer and identifies their replays. It is safe for
// concurrent use.
type Issuer struct {
	Group       string   // the consumer group
	Scope       string   // of the claims
	Store       [16]byte // storage.Identity.UUID
	Incarnation uint64   // storage.Identity.Incarnation
	// Secret authenticates the letters; it never leaves the store. A replay of a letter that was
	// made without a secret reopens no claim.
	Secret []byte
}

// Letter returns the dead letter of r: a record to publish, without a topic. Its key, value and
// headers are those of r, with the new headers after them; it shares memory with r. Its timestamp
// is zero and left to the client: with the original one, retention could remove the letter before
// it is read.
//
// If r is a replay that Replay accepted, from is that replay, and the letter is about the same
// event at its original position; otherwise from is nil. An event without an id or a time, or with
// an id that the engine rejects, is left out: the replay of such a letter is judged like any
// record.
//
// In addition to the event id and the names of topic, group and scope, the new headers take up to 4
// KiB, with the headers of other tools up to 10 KiB.
func (i *Issuer) Letter(r *kgo.Record, from *Replay, f Failure, more Headers) *kgo.Record {
	return i.letter(r, from, f).record(more)
}

func (i *Issuer) letter(r *kgo.Record, from *Replay, f Failure) *letter {
	event, ok := usable(identify.Restore(f.Event.ID, f.Event.Time, f.Event.IDRule, f.Event.TimeRule))
	if !ok {
		event = identify.Identity{} // no claim can be made with it, so there is none to reopen
	}
	l := &letter{
		Origin: engine.Origin{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset},
		Stamp:  stampOf(r),
		Key:    r.Key, Value: r.Value, Headers: withoutOurs(r.Headers),
		Reason: f.Reason, Attempts: f.Attempts,
		sealed: sealed{Group: i.Group, Scope: i.Scope, Event: event, Generation: f.Generation},
		Store:  i.Store, Incarnation: i.Incarnation,
	}
	if f.Err != nil {
		l.ErrorType = capped(typeOf(f.Err), maxErrorType)
		l.Error = capped(f.Err.Error(), MaxText)
	}
	if from != nil {
		l.Origin, l.Stamp = from.origin, from.stamp
		l.Omitted = from.omitted
	}
	if len(i.Secret) > 0 && len(l.Event.ID) > 0 {
		l.Seal = l.seal(i.Secret)
	}
	return l
}

// Replay returns the replay that r contains, if it is of a dead letter of this issuer's group and
// scope; otherwise it returns false. own is the identity that identify.Rules.Of returns for r, zero
// if that is identify.ErrNoID.
//
// A record whose id differs from that of the letter is not its replay: a program that derived the
// record from the replay has copied the headers. A record without an id is accepted on the letter's
// own topic only, for the same reason.
func (i *Issuer) Replay(r *kgo.Record, own identify.Identity) (*Replay, bool) {
	if !isLetter(r) {
		return nil, false
	}
	p, ok := replayOf(r)
	if !ok || !i.accepts(&p, r, own) {
		return nil, false
	}
	return &p, true
}

func (i *Issuer) accepts(p *Replay, r *kgo.Record, own identify.Identity) bool {
	if p.Group != i.Group || p.Scope != i.Scope || len(i.Secret) == 0 || !hmac.Equal(p.seal, p.sealed.seal(i.Secret)) {
		return false
	}
	if own.IDRule == 0 || own.IDRule == identify.IDPosition {
		return p.Event.IDRule == identify.IDPosition && p.origin.Topic == r.Topic
	}
	return bytes.Equal(p.Event.ID, own.ID)
}
