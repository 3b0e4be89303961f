package deadletter

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// A Sealed is the part of a dead letter that its seal authenticates: where it came from, and the data
// by which a replay finds the claim that it reopens.
type Sealed struct {
	Origin      engine.Origin // the record's original position
	Store       [16]byte      // the store that issued the letter
	Incarnation uint64
	Group       string
	Scope       string
	Event       identify.Identity // zero if there is none; BadTimes is not kept
	Claimed     bool              // the event has a claim, of this generation
	Generation  uint64
}

const sealLen = 16

// seal authenticates s with a secret that never leaves the store: HMAC-SHA256 (RFC 2104), the first
// sealLen bytes. It does not cover the record's key, value and other headers, so that an operator
// can correct a payload before the replay.
func (s *Sealed) seal(secret []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write(appendSealed([]byte("hapax dead letter 1\x00"), s))
	return mac.Sum(nil)[:sealLen]
}

func appendSealed(dst []byte, s *Sealed) []byte {
	dst = appendString(dst, s.Origin.Topic)
	dst = binary.AppendVarint(dst, int64(s.Origin.Partition))
	dst = binary.AppendVarint(dst, s.Origin.Offset)
	dst = append(dst, s.Store[:]...)
	dst = binary.AppendUvarint(dst, s.Incarnation)
	dst = appendString(dst, s.Group)
	dst = appendString(dst, s.Scope)
	if s.Claimed {
		dst = append(dst, 1)
	} else {
		dst = append(dst, 0)
	}
	dst = binary.AppendUvarint(dst, s.Generation)
	dst = appendString(dst, string(s.Event.ID))
	if len(s.Event.ID) == 0 {
		return dst
	}
	dst = binary.AppendVarint(dst, s.Event.Time.Unix())
	dst = binary.AppendUvarint(dst, uint64(s.Event.Time.Nanosecond()))
	return append(dst, byte(s.Event.IDRule), byte(s.Event.TimeRule))
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}
