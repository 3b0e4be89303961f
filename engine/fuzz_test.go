package engine

import (
	"bytes"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/fuzztest"
)

// Each fuzz target checks one decoder for three promises: it does not panic, it allocates no more
// than its input justifies, and the bytes that it accepts are the encoding of the result. Every
// error is one of the stated ones.

// decodes checks a decoder for the promises; encode encodes the result.
func decodes(t *testing.T, input []byte, decode func() error, encode func() []byte) {
	t.Helper()
	fuzztest.Decodes(t, input, []error{storage.ErrDamaged, storage.ErrNewerFormat}, decode, encode)
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte{1, 0, 2, 5, 1, 0xd8, 4})
	f.Add([]byte{1, 0x80, 0, 2, 5, 1, 0})
	f.Add([]byte{2, 0, 2, 5, 1, 0})
	f.Add([]byte{0x73, 0, 2, 5, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 2, 1, 'f', 1, 'd'})
	f.Add([]byte{1, 0, 2, 5, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0})
	f.Add([]byte{0x85, 1, 0, 0, 0, 0, 1, 0xac, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		var r ClaimRecord
		var topic uint64
		decodes(t, b, func() (err error) { r, topic, err = parseRecord(b); return err },
			func() []byte { return appendRecord(nil, &r, topic) })
	})
}

func FuzzParsePosition(f *testing.F) {
	f.Add(OffsetKey{"g", "orders", 3}.stateKey())
	f.Add([]byte("o\xff\xff\xff\xff\x0fg"))
	f.Add([]byte("h\x01g\x01t\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, key []byte) {
		var p OffsetKey
		decodes(t, key, func() (err error) { p, err = parsePosition(key); return err },
			func() []byte { return p.stateKey() })
	})
}

func FuzzParseOffset(f *testing.F) {
	f.Add(Offset{Next: 8, LeaderEpoch: -1, TopicID: [16]byte{1, 2}}.encode())
	f.Add(append([]byte{0x80, 0, 0}, make([]byte, 16)...))
	f.Fuzz(func(t *testing.T, value []byte) {
		var o Offset
		decodes(t, value, func() (err error) { o, err = parseOffset(value); return err },
			func() []byte { return o.encode() })
	})
}

func FuzzParseHold(f *testing.F) {
	f.Add([]byte{0xd7, 4})
	f.Add([]byte{0xd7, 4, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, value []byte) {
		decodes(t, value, func() error {
			at, err := parseHold(value)
			if err == nil && !bytes.Equal(encodeHold(at), value) {
				t.Fatalf("%x is read as %v, which is written as %x", value, at, encodeHold(at))
			}
			return err
		}, nil)
	})
}

func FuzzParseBuckets(f *testing.F) {
	f.Add(encodeBuckets([]storage.Bucket{{Scope: "a", Week: aWeek}, {Scope: "a\x00", Week: aWeek + 1}}))
	f.Add([]byte{})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, value []byte) {
		var buckets []storage.Bucket
		decodes(t, value, func() (err error) { buckets, err = parseBuckets(value); return err },
			func() []byte { return encodeBuckets(buckets) })
	})
}
