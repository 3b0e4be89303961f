package kafkaadapter

import (
	"encoding/binary"
	"fmt"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/internal/keyspace"
)

// KeyPrefix begins the adapter's own keys among the application keys of the store. Handlers and other
// transactions may read them; a write is refused with an engine.ArgumentError.
const KeyPrefix = keyspace.KafkaKeys

// own writes the adapter's keys.
func own(tx *engine.Tx) driver.TxKeys { return driver.TxIn(tx, keyspace.Kafka) }

// as is a transaction in which the adapter changes what applications may not: its offsets, holds and claims.
func as(tx *engine.Tx) driver.OwnerTx { return driver.As(tx, keyspace.Kafka) }

// The kinds of the adapter's keys. The partition follows each of them, except for keyScope, which
// only
//
//	kind | len(group) u16 | group | len(topic) u16 | topic | partition u32 | rest
//
// the scope follows, and keySecret, which nothing follows. Integers are big endian.
const (
	keyOwner    = 'o' // who may commit for the partition, see owner
	keyAttempts = 'a' // attempts at the record that is next, see attempts
	keyLetter   = 'l' // pending dead letters: rest = part u16
	keyScope    = 's' // scope -> the group that claims in it
	keyFirst    = 'f' // a topic as it was when the group first consumed it, see firstSeen
	keyAdoption = 'r' // offsets that were adopted: rest = Unix nanoseconds u64, see Adoption
	keyPinned   = 'p' // a group's part of the partitions, see Pinned
	keyShape    = 'n' // a pinned topic as it was last seen, see shape
	keySecret   = 'k' // authenticates dead letters, see deadletter.Secrets
)

func appendText(dst []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(dst, uint16(len(s))), s...)
}

func partitionKey(kind byte, p engine.OffsetKey) []byte {
	key := append([]byte(KeyPrefix), kind)
	key = appendText(appendText(key, p.Group), p.Topic)
	return binary.BigEndian.AppendUint32(key, uint32(p.Partition))
}

// letterKey begins the keys of a partition's pending dead letters, see deadletter.Pending.
func letterKey(p engine.OffsetKey) []byte { return partitionKey(keyLetter, p) }

func secretKey() []byte { return append([]byte(KeyPrefix), keySecret) }

func scopeKey(scope string) []byte { return append(append([]byte(KeyPrefix), keyScope), scope...) }

// An owner is the assignment that may commit for a partition. Every batch reads it, and each
// takeover or release changes it, so a batch of an old assignment conflicts and is not applied. The
// zero token means no owner: an assignment that ends cleanly writes it.
type owner struct {
	token [16]byte
	width uint32 // the maximum number of records of its batches, which may have been in progress when it died
}

// encode: version 1 | token 16 | width u32.
func (o owner) encode() []byte {
	return binary.BigEndian.AppendUint32(append([]byte{1}, o.token[:]...), o.width)
}

func parseOwner(b []byte) (o owner, err error) {
	if len(b) != 21 || b[0] != 1 {
		return o, unknownForm("the owner of a partition", b)
	}
	copy(o.token[:], b[1:])
	o.width = binary.BigEndian.Uint32(b[17:])
	return o, nil
}

// attempts counts the attempts at the next record of a partition.
type attempts struct {
	offset int64
	n      uint32
}

// encode: version 1 | offset u64 | n u32.
func (a attempts) encode() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64([]byte{1}, uint64(a.offset)), a.n)
}

func parseAttempts(b []byte) (a attempts, err error) {
	if len(b) != 13 || b[0] != 1 {
		return a, unknownForm("the attempts at a record", b)
	}
	a.offset = int64(binary.BigEndian.Uint64(b[1:]))
	a.n = binary.BigEndian.Uint32(b[9:])
	return a, nil
}

func unknownForm(what string, b []byte) error {
	return fmt.Errorf("hapax: %s is stored as %d bytes in an unknown format: use the newer version that wrote it, or, if the application writes keys that begin with kafkaadapter.KeyPrefix, rename those keys", what, len(b))
}
