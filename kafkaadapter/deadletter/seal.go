package deadletter

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"

	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// A sealed is the part of a dead letter that its seal authenticates: the data by which a replay finds
// the claim that it reopens.
type sealed struct {
	Group      string
	Scope      string
	Event      identify.Identity // zero if there is none; BadTimes is not kept
	Generation uint64
}

const sealLen = 16

// seal authenticates s with a secret that never leaves the store: HMAC-SHA256 (RFC 2104), the first
// sealLen bytes. It does not cover the record's key, value and other headers, so that an operator
// may correct a payload before replaying it.
func (s *sealed) seal(secret []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write(appendSealed([]byte("hapax dead letter 1\x00"), s))
	return mac.Sum(nil)[:sealLen]
}

func appendSealed(dst []byte, s *sealed) []byte {
	dst = appendString(dst, s.Group)
	dst = appendString(dst, s.Scope)
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
