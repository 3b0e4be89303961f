package engine

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/decode"
	"github.com/hapax-dev/hapax/weekbucket"
)

// The first byte of a state key is its kind. The values are stored and must not change.
const (
	stateHost   = 'h' // + the application's key: the application's value
	stateSpace  = 'x' // + the name of a key space + 00 + a key of its owner: its owner's value (keys.go)
	stateOffset = 'o' // + an OffsetKey: an Offset
	stateHold   = 'd' // + the hold's name: its time
	stateMeta   = 'm' // + a name below
	stateFloor  = 'f' // + a scope: its oldest retained week (floors.go)
	// 'n' and 'u' are the numbers of scopes and topics (internal/names); 'r' is the position of a copy in its
	// log (engine/replica), which the engine never sees.

	stateProduced = 'e' // never stored: an entry of the outbox that has no number yet (outbox.go)
)

var (
	keyOldest  = []byte("moldest")  // the oldest retained week, encoded as in a key
	keyStart   = []byte("mstart")   // the oldest retained week as last set without a drop (oldest.go)
	keyNightly = []byte("mnightly") // the last nightly run (nightly.go)
	keyDrop    = []byte("mdrop")    // dropped buckets whose space may not be free yet
)

// claimRead returns the key under which reads and changes of a claim are recorded for conflict
// detection. No state key begins with c.
func claimRead(key []byte) string { return "c" + string(key) }

// An OffsetKey identifies a partition of a topic in a consumer group.
type OffsetKey struct {
	Group     string
	Topic     string
	Partition int32
}

// An Offset is a group's position in a partition: the next offset to read, with its leader epoch
// and topic id. Unknown fields are zero.
type Offset struct {
	Next        int64
	LeaderEpoch int32
	TopicID     [16]byte
}

func (p OffsetKey) check() error {
	switch {
	case p.Group == "" || len(p.Group) > limits.ScopeBytes:
		return &ArgumentError{"offset's group", fmt.Sprintf("has %d bytes: give 1 to %d", len(p.Group), limits.ScopeBytes)}
	case p.Topic == "" || len(p.Topic) > limits.TopicBytes:
		return &ArgumentError{"offset's topic", fmt.Sprintf("has %d bytes: give 1 to %d", len(p.Topic), limits.TopicBytes)}
	case p.Partition < 0:
		return &ArgumentError{"offset's partition", "is negative"}
	}
	return nil
}

// The stored form of an OffsetKey: group and topic, each after its length, and the partition in 4
// bytes, big endian.
func (p OffsetKey) stateKey() []byte {
	b := appendBytes([]byte{stateOffset}, []byte(p.Group))
	b = appendBytes(b, []byte(p.Topic))
	return binary.BigEndian.AppendUint32(b, uint32(p.Partition))
}

func parsePosition(key []byte) (OffsetKey, error) {
	d := decode.Decoder{Rest: key}
	kind := d.Byte()
	p := OffsetKey{Group: string(d.Bytes()), Topic: string(d.Bytes()), Partition: int32(d.Uint32())}
	if d.Bad || kind != stateOffset || len(d.Rest) != 0 || p.check() != nil {
		return OffsetKey{}, fmt.Errorf("%w: offset key %x", storage.ErrDamaged, key)
	}
	return p, nil
}

// The stored form of an Offset: next and leader epoch as varints, the topic id in 16 bytes.
func (o Offset) encode() []byte {
	b := binary.AppendVarint(nil, o.Next)
	b = binary.AppendVarint(b, int64(o.LeaderEpoch))
	return append(b, o.TopicID[:]...)
}

func parseOffset(value []byte) (Offset, error) {
	d := decode.Decoder{Rest: value}
	o := Offset{Next: d.Varint()}
	epoch := d.Varint()
	o.LeaderEpoch = int32(epoch)
	copy(o.TopicID[:], d.Take(16))
	if d.Bad || len(d.Rest) != 0 || int64(o.LeaderEpoch) != epoch {
		return Offset{}, fmt.Errorf("%w: offset %x", storage.ErrDamaged, value)
	}
	return o, nil
}

// The stored form of a hold: Unix milliseconds as a varint.
func encodeHold(t time.Time) []byte { return binary.AppendVarint(nil, t.UnixMilli()) }

func parseHold(value []byte) (time.Time, error) {
	d := decode.Decoder{Rest: value}
	t := time.UnixMilli(d.Varint()).UTC()
	_, err := weekbucket.Of(t)
	if d.Bad || len(d.Rest) != 0 || err != nil {
		return time.Time{}, fmt.Errorf("%w: hold %x", storage.ErrDamaged, value)
	}
	return t, nil
}

// The stored form of dropped buckets: their prefixes, each after its length.
func encodeBuckets(buckets []storage.Bucket) []byte {
	b := []byte{}
	for _, bucket := range buckets {
		b = appendBytes(b, bucket.AppendPrefix(nil))
	}
	return b
}

func parseBuckets(value []byte) ([]storage.Bucket, error) {
	var buckets []storage.Bucket
	d := decode.Decoder{Rest: value}
	for len(d.Rest) > 0 && !d.Bad {
		b, tail, err := storage.SplitKey(d.Bytes())
		if err != nil {
			return nil, err
		}
		if len(tail) != 0 {
			return nil, fmt.Errorf("%w: list of dropped buckets %x", storage.ErrDamaged, value)
		}
		buckets = append(buckets, b)
	}
	if d.Bad {
		return nil, fmt.Errorf("%w: list of dropped buckets %x", storage.ErrDamaged, value)
	}
	return buckets, nil
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}
