package kafkaadapter

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
)

// MaxLetterText is the most bytes that the text of an error has in a dead letter. A longer one is cut between two
// characters and ends in an ellipsis.
const MaxLetterText = 2048

const maxErrorType = 256

// A letterReason says why a record became a dead letter, in snake case as in metrics.
type letterReason string

const (
	letterUndecodable letterReason = "undecodable" // it has no usable id or time
	letterTooOld      letterReason = "too_old"     // by policy
	letterTooNew      letterReason = "too_new"     // by policy
	letterAttempts    letterReason = "attempts"    // its handler failed for the last time
)

// A failure says why a record became a dead letter, and what it was judged as.
type failure struct {
	Reason      letterReason
	Err         error // nil if the reason says it all
	Attempts    uint32
	Group       string
	Scope       string
	Event       identity // zero if the record has none that can be used
	Generation  uint64   // of the claim, 0 if there is none
	Store       [16]byte // engine.Identity.UUID
	Incarnation uint64   // engine.Identity.Incarnation
}

// A letter is a record that could not be handled, and why: a dead letter. It lies in the store until the broker has it.
type letter struct {
	Origin engine.Origin // where the record was first, see newLetter
	Stamp  stamp         // when

	Key, Value []byte // nil and empty differ, as they do in Kafka
	Headers    []kgo.RecordHeader

	Reason    letterReason
	ErrorType string // the Go type of the innermost error
	Error     string // valid UTF-8, at most MaxLetterText bytes
	Attempts  uint32

	sealed
	Seal        []byte // nil or sealLen bytes, see sealed.seal
	Store       [16]byte
	Incarnation uint64
}

// A stamp is a record's timestamp as Kafka has it.
type stamp struct {
	Millis int64
	Type   stampType
}

// A stampType says who set a timestamp. Its values are Kafka's.
type stampType int8

const (
	noTimestamp   stampType = -1
	createTime    stampType = 0 // the producer's client
	logAppendTime stampType = 1 // the broker
)

var stampTypes = [...]stampType{noTimestamp, createTime, logAppendTime}

// String returns the type's name as Kafka's own tools print it.
func (t stampType) String() string {
	switch t {
	case createTime:
		return "CreateTime"
	case logAppendTime:
		return "LogAppendTime"
	}
	return "NoTimestampType"
}

func stampOf(r *kgo.Record) stamp {
	return stamp{r.Timestamp.UnixMilli(), stampType(r.Attrs.TimestampType())}
}

// Sealed is what a replay is believed for: the claim that it reopens.
type sealed struct {
	Group      string
	Scope      string
	Event      identity // zero if there is none; BadTimes is not kept
	Generation uint64
}

// newLetter makes the dead letter of r. An event without an id or a time, or with an id that no engine takes, is left out
// of it: the letter's replay is then judged like any record. If r is itself a replay that was judged as such, from is that replay: the letter
// is then about the same event at its original position. If not, from is nil. The letter shares its bytes with r.
//
// The secret is the store's (see sealed.seal); without one (nil) a replay of the letter reopens nothing.
func newLetter(r *kgo.Record, from *replay, f failure, secret []byte) *letter {
	event, ok := judged(f.Event.ID, f.Event.Time, f.Event.IDRule, f.Event.TimeRule)
	if !ok {
		event = identity{} // no claim can be made on it, so there is none to reopen
	}
	l := &letter{
		Origin: engine.Origin{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset},
		Stamp:  stampOf(r),
		Key:    r.Key, Value: r.Value, Headers: withoutOurs(r.Headers),
		Reason: f.Reason, Attempts: f.Attempts,
		sealed: sealed{Group: f.Group, Scope: f.Scope, Event: event, Generation: f.Generation},
		Store:  f.Store, Incarnation: f.Incarnation,
	}
	if f.Err != nil {
		l.ErrorType = capped(typeOf(f.Err), maxErrorType)
		l.Error = capped(f.Err.Error(), MaxLetterText)
	}
	if from != nil {
		l.Origin, l.Stamp = from.Origin, from.Stamp
	}
	if len(secret) > 0 && len(l.Event.ID) > 0 {
		l.Seal = l.seal(secret)
	}
	return l
}

// typeOf names the type of the innermost error: wrappers are all alike.
func typeOf(err error) string {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok || u.Unwrap() == nil {
			return fmt.Sprintf("%T", err)
		}
		err = u.Unwrap()
	}
}

// capped returns s as valid UTF-8 of at most most bytes.
func capped(s string, most int) string {
	const ellipsis = "…"
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= most {
		return s
	}
	cut := most - len(ellipsis)
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + ellipsis
}

const sealLen = 16

// seal authenticates s with a secret that never leaves the store: HMAC-SHA256, the first sealLen bytes. It covers what a
// replay is believed for and not the record beside it, so that an operator may mend a payload before sending it back.
func (s *sealed) seal(secret []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write(appendSealed([]byte("hapax dead letter 1\x00"), s))
	return mac.Sum(nil)[:sealLen]
}

func appendSealed(dst []byte, s *sealed) []byte {
	dst = appendBytes(dst, []byte(s.Group))
	dst = appendBytes(dst, []byte(s.Scope))
	dst = binary.AppendUvarint(dst, s.Generation)
	dst = appendBytes(dst, s.Event.ID)
	if len(s.Event.ID) == 0 {
		return dst
	}
	dst = binary.AppendVarint(dst, s.Event.Time.Unix())
	dst = binary.AppendUvarint(dst, uint64(s.Event.Time.Nanosecond()))
	return append(dst, byte(s.Event.IDRule), byte(s.Event.TimeRule))
}

// judged makes an identity from what is kept of it, or false if there can be no such identity.
func judged(id []byte, at time.Time, idRule IDRule, timeRule TimeRule) (identity, bool) {
	ok := len(id) > 0 && len(id) <= engine.LimitIDBytes && inYears(at) &&
		idRule >= IDHeader && idRule <= IDPosition && timeRule >= TimePayload && timeRule <= TimeRecord
	return identity{
		ID: id, Time: at.UTC(), IDRule: idRule, TimeRule: timeRule,
		LogTime: timeRule == TimeRecord && idRule != IDPosition,
	}, ok
}
