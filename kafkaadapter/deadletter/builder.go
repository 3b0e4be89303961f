// Package deadletter makes the dead letter of a Kafka record that could not be handled, identifies
// the replay of one, and keeps dead letters in the store until the broker has acknowledged them.
//
// A dead letter is the record itself, byte for byte, with more headers (see HeaderPrefix). The
// batch of the store that moves the offset past the record also contains the complete letter. The
// letter is deleted from the store after the broker has acknowledged it. So it is published at
// least once.
package deadletter

import (
	"bytes"
	"slices"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/untrusted"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// Options say where the dead letters of a topic go, and which headers they get. The zero value is
// the topic's name with "-dlt", and the adapter's own headers.
type Options struct {
	// Topic returns the name of the dead-letter topic for a topic, always the same name. The
	// dead-letter topic must exist. nil means the topic's name with "-dlt".
	Topic func(topic string) string
	// Headers adds the headers of other tools to the adapter's own.
	Headers Headers
	// RetryTopics are topics of the route on which the letters of its other topics are accepted as
	// replays. nil: a letter is accepted on the topic of its record only.
	RetryTopics []string
	// RestoredStore accepts letters that were issued before the store was restored from a backup.
	// Set it if the restored store replaces the original, and not if it is used beside the
	// original. Claims that the original made after the backup are missing: those events are
	// claimed again.
	RestoredStore bool
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
	Claimed    bool              // there is a claim, which is dead-lettered
	Generation uint64            // of the claim
}

// A Builder makes the dead letters of one consumer and identifies their replays. It is safe for
// concurrent use.
type Builder struct {
	Group       string   // the consumer group
	Scope       string   // of the claims
	Store       [16]byte // storage.Identity.UUID
	Incarnation uint64   // storage.Identity.Incarnation
	// Secrets authenticate the letters; they never leave the store. A replay of a letter that was
	// made without a secret reopens no claim.
	Secrets Secrets
	// Present returns the secrets that the store has now, which are used instead of Secrets. nil:
	// Secrets.
	Present func() Secrets
	// Topics are those of the route: a retry topic accepts their letters.
	Topics []string
	// Options are those of the route; Topic and Headers are not used.
	Options Options
}

// Letter returns the dead letter of r: a record to publish, without a topic. Its key, value and
// headers are those of r, with the new headers after them; it shares memory with r. Its timestamp
// is zero, so that the client sets it: with the original timestamp, retention could remove the
// letter before it is read.
//
// If r is a replay that Replay accepted, from is that replay, and the letter is about the same
// event at its original position; otherwise from is nil. An event without an id or a time, or with
// an id that the engine rejects, is left out: the replay of such a letter is judged like any
// record.
//
// The new headers take up to 4 KiB, or up to 10 KiB with the headers of other tools, in addition to
// the event id and the names of topic, group and scope.
func (i *Builder) Letter(r *kgo.Record, from *Replay, f Failure, more Headers) *kgo.Record {
	return i.letter(r, from, f).record(more)
}

func (i *Builder) letter(r *kgo.Record, from *Replay, f Failure) *letter {
	event, ok := usable(identify.Restore(f.Event.ID, f.Event.Time, f.Event.IDRule, f.Event.TimeRule))
	if !ok {
		event = identify.Identity{} // no claim can have this id, so there is none to reopen
	}
	l := &letter{
		Stamp: stampOf(r),
		Key:   r.Key, Value: r.Value, Headers: withoutOurs(r.Headers),
		Reason: f.Reason, Attempts: f.Attempts,
		Sealed: Sealed{
			Origin: engine.Origin{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset},
			Store:  i.Store, Incarnation: i.Incarnation, Group: i.Group, Scope: i.Scope,
			Event: event, Claimed: f.Claimed, Generation: f.Generation,
		},
	}
	if f.Err != nil {
		err := untrusted.Error(f.Err)
		l.ErrorType, l.Error = untrusted.Capped(untrusted.TypeOf(err), maxErrorType), err.Error()
	}
	switch {
	case from != nil:
		l.Sealed.Origin, l.Stamp = from.Sealed.Origin, from.stamp
		l.Omitted = from.omitted
		if !f.Claimed && from.Sealed.Claimed { // its claim is unchanged
			l.Sealed.Claimed, l.Sealed.Generation = true, from.Sealed.Generation
		}
	case len(r.Value) == 0: // a letter that was not accepted is also incomplete
		l.Omitted = omittedOf(r)
	}
	if len(l.Sealed.Event.ID) > 0 {
		l.Seal = i.secrets().seal(&l.Sealed)
	}
	return l
}

// Replay returns the replay that r contains, if it is the replay of a dead letter of this builder's
// group, scope and store, and was sent to the topic of the letter's record or to a retry topic.
// Otherwise it returns nil, with the reason if r was probably meant as a replay. own is the
// identity that identify.Rules.Identify returns for r, or zero if that is an error.
//
// A record whose id differs from that of the letter is not its replay: a program has derived the
// record from the replay and has copied the headers. Bytes of the id that a text tool has replaced
// are not compared.
func (i *Builder) Replay(r *kgo.Record, own identify.Identity) (*Replay, Refusal) {
	if !isLetter(r) || identify.LastHeader(r.Headers, dltEventID) == nil && identify.LastHeader(r.Headers, dltSeal) == nil {
		return nil, ""
	}
	if group, scope := issuerOf(r); group != i.Group && group != "" || scope != i.Scope && scope != "" {
		return nil, ""
	}
	p, ok := replayOf(r)
	if !ok {
		return nil, RefusedHeaders
	}
	switch why := i.refuses(&p, r, own); {
	case why == RefusedEvent && !p.Sealed.Claimed: // its id was corrected, or it is a derived record: nothing is reopened
		return nil, ""
	case why != "":
		return nil, why
	}
	return &p, ""
}

// TopicOf returns the topic under which r is identified: its own topic, or that of the letter if r
// is a letter of another topic that is accepted on a retry topic. It matters with Rules.PerTopic.
func (i *Builder) TopicOf(r *kgo.Record) string {
	if slices.Contains(i.Options.RetryTopics, r.Topic) {
		if p, _ := i.Replay(r, identify.Identity{}); p != nil {
			return p.Sealed.Origin.Topic
		}
	}
	return r.Topic
}

func (i *Builder) secrets() Secrets {
	if i.Present != nil {
		return i.Present()
	}
	return i.Secrets
}

func (i *Builder) refuses(p *Replay, r *kgo.Record, own identify.Identity) Refusal {
	isOwn := p.Sealed.Incarnation == i.Incarnation || i.Options.RestoredStore && p.Sealed.Incarnation < i.Incarnation
	isHere := r.Topic == p.Sealed.Origin.Topic || slices.Contains(i.Options.RetryTopics, r.Topic) && slices.Contains(i.Topics, p.Sealed.Origin.Topic)
	switch {
	case p.Sealed.Store != i.Store || !isOwn:
		return RefusedStore
	case !i.secrets().accept(&p.Sealed, p.seal):
		return RefusedSeal
	case !isHere:
		return RefusedTopic
	case own.IDRule != 0 && own.IDRule != identify.IDPosition && !isTextOf(own.ID, p.Sealed.Event.ID):
		return RefusedEvent
	}
	return ""
}

// isTextOf reports whether got is the id as it is, or the id after a tool has handled it as text:
// bytes that are not UTF-8 are then replaced, one by one or a few at a time, and a zero byte may
// end the text.
func isTextOf(got, id []byte) bool {
	if bytes.Equal(got, id) {
		return true
	}
	topic, got := identify.SplitTopic(got)
	of, id := identify.SplitTopic(id)
	if !bytes.Equal(topic, of) {
		return false
	}
	source, got := identify.SplitSource(got)
	from, id := identify.SplitSource(id)
	return isTextOfPart(source, from) && isTextOfPart(got, id)
}

func isTextOfPart(got, id []byte) bool {
	if bytes.Equal(got, id) {
		return true
	}
	if !utf8.Valid(got) {
		return false
	}
	text, _, _ := bytes.Cut(id, []byte{0})
	return bytes.Equal(replaced(got), replaced(id)) || len(text) > 0 && bytes.Equal(replaced(got), replaced(text))
}

// replaced returns b with one replacement character for each run of bytes that are not UTF-8 or are
// such characters already.
func replaced(b []byte) []byte {
	const mark = "\uFFFD"
	b = bytes.ToValidUTF8(b, []byte(mark))
	for bytes.Contains(b, []byte(mark+mark)) {
		b = bytes.ReplaceAll(b, []byte(mark+mark), []byte(mark))
	}
	return b
}
