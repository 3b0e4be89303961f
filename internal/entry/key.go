package entry

import (
	"encoding/binary"
	"fmt"

	"github.com/hapax-dev/hapax/internal/decode"
	"github.com/hapax-dev/hapax/internal/keyspace"
)

// Space is the key space of the outbox.
var Space = keyspace.New("outbox")

// The keys in Space. Numbers are big endian, so that keys sort by them:
//
//	r | number u64                 an entry that is ready, in the order of commits
//	d | due u64 | number u64       an entry that is due later
//	h | group 16 bytes | place u64 an entry that failed, and those of its group after it, in their order
//	p | id bytes | place u64       an entry that is parked
//	n                              Produced
//	g                              Gone
//	l                              the lease of the relay
//	t                              the exactly-once relay: the offset in the progress topic to read from
//	s                              the exactly-once relay: the secret of the store, by which it knows its records of progress
//
// Entries are numbered 1, 2, 3, ... in the order in which they commit.
const (
	kindReady   = 'r'
	kindDelayed = 'd'
	kindHeld    = 'h'
	kindParked  = 'p'
)

// Keys that occur once, and the prefixes of the others.
var (
	ProducedKey = []byte("n")
	GoneKey     = []byte("g")
	LeaseKey    = []byte("l")
	ProgressKey = []byte("t")
	SecretKey   = []byte("s")

	ReadyPrefix   = []byte{kindReady}
	DelayedPrefix = []byte{kindDelayed}
	HeldPrefix    = []byte{kindHeld}
	ParkedPrefix  = []byte{kindParked}
)

// ReadyKey returns the key of an entry that may be published at once.
func ReadyKey(number uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{kindReady}, number)
}

// DelayedKey returns the key of an entry that is due later, at a time not before 1970.
func DelayedKey(due int64, number uint64) []byte {
	b := binary.BigEndian.AppendUint64([]byte{kindDelayed}, uint64(due))
	return binary.BigEndian.AppendUint64(b, number)
}

// DelayedDue returns the due time in a key that DelayedKey made.
func DelayedDue(key []byte) (int64, error) {
	if len(key) != 17 || key[0] != kindDelayed {
		return 0, fmt.Errorf("malformed key %x of an outbox entry", key)
	}
	return int64(binary.BigEndian.Uint64(key[1:])), nil
}

// GroupPrefix returns the prefix of the keys of a group's held entries.
func GroupPrefix(g Group) []byte { return append([]byte{kindHeld}, g[:]...) }

// HeldKey returns the key of a held entry.
func HeldKey(g Group, place uint64) []byte {
	return binary.BigEndian.AppendUint64(GroupPrefix(g), place)
}

// ParseHeldKey returns the group and the place in a key that HeldKey made.
func ParseHeldKey(key []byte) (g Group, place uint64, err error) {
	if len(key) != 25 || key[0] != kindHeld {
		return g, 0, fmt.Errorf("malformed key %x of an outbox entry", key)
	}
	copy(g[:], key[1:])
	return g, binary.BigEndian.Uint64(key[17:]), nil
}

// ParkedIDPrefix returns the prefix of the keys of parked entries with the given id.
func ParkedIDPrefix(id string) []byte { return appendString([]byte{kindParked}, id) }

// ParkedKey returns the key of a parked entry.
func ParkedKey(id string, place uint64) []byte {
	return binary.BigEndian.AppendUint64(ParkedIDPrefix(id), place)
}

// Produced counts the entries that were written since the store was created. The engine updates it.
type Produced struct {
	Entries uint64 // this is also the number of the newest entry
	Delayed uint64 // entries that were due later
	Bytes   uint64 // the sum of Entry.Bytes over all of them
}

// Append appends the encoded counts.
func (p Produced) Append(b []byte) []byte {
	return appendCounts(b, p.Entries, p.Delayed, p.Bytes)
}

func appendCounts(b []byte, counts ...uint64) []byte {
	for _, n := range counts {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

// ParseProduced decodes what Append has written.
func ParseProduced(b []byte) (Produced, error) {
	d := decode.Decoder{Rest: b}
	p := Produced{Entries: d.Uvarint(), Delayed: d.Uvarint(), Bytes: d.Uvarint()}
	if d.Bad || len(d.Rest) > 0 || p.Delayed > p.Entries {
		return Produced{}, fmt.Errorf("malformed counts %x of an outbox", b)
	}
	return p, nil
}

// Gone counts the entries that the relay and its callers have processed since the store was
// created.
type Gone struct {
	Entries  uint64 // published or parked
	Delayed  uint64 // taken from the delayed ones
	Parked   uint64 // parked; this is also the place of the newest one
	Redriven uint64 // parked and redriven
	Dropped  uint64 // parked and removed
	Bytes    uint64 // the sum of Entry.Bytes over those that were published or dropped
}

// Append appends the encoded counts.
func (g Gone) Append(b []byte) []byte {
	return appendCounts(b, g.Entries, g.Delayed, g.Parked, g.Redriven, g.Dropped, g.Bytes)
}

// ParseGone decodes what Append has written.
func ParseGone(b []byte) (Gone, error) {
	d := decode.Decoder{Rest: b}
	g := Gone{Entries: d.Uvarint(), Delayed: d.Uvarint(), Parked: d.Uvarint(), Redriven: d.Uvarint(), Dropped: d.Uvarint(), Bytes: d.Uvarint()}
	if d.Bad || len(d.Rest) > 0 {
		return Gone{}, fmt.Errorf("malformed counts %x of an outbox", b)
	}
	return g, nil
}
