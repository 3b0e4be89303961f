package kafkaadapter

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/internal/keyspace"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/owner"
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
// the scope follows, and keySecret and keySource, which nothing follows. Integers are big endian.
const (
	keyOwner    = 'o'                  // who may commit for the partition, and the attempts at its next record, see owner.Record
	keyLetter   = keyspace.KafkaLetter // pending dead letters: rest = part u16
	keyScope    = 's'                  // scope -> the group that claims in it
	keyFirst    = 'f'                  // a topic as it was when the group first consumed it, see firstSeen
	keyAdoption = 'r'                  // offsets that were adopted: rest = Unix nanoseconds u64, see Adoption
	keyPinned   = 'p'                  // a group's part of the partitions, see Pinned
	keySource   = 'g'                  // group and topic whose changelog it is: len(group) u16 | group | len(topic) u16 | topic
	keyShape    = 'n'                  // a topic whose number of partitions must not change, as it was last seen, see resume.Topic
)

func appendText(dst []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(dst, uint16(len(s))), s...)
}

// cutText returns what appendText has put before rest.
func cutText(b []byte) (s string, rest []byte, ok bool) {
	if len(b) < 2 || len(b)-2 < int(binary.BigEndian.Uint16(b)) {
		return "", nil, false
	}
	end := 2 + int(binary.BigEndian.Uint16(b))
	return string(b[2:end]), b[end:], true
}

func partitionKey(kind byte, p engine.OffsetKey) []byte {
	key := append([]byte(KeyPrefix), kind)
	key = appendText(appendText(key, p.Group), p.Topic)
	return binary.BigEndian.AppendUint32(key, uint32(p.Partition))
}

// letterKey begins the keys of a partition's pending dead letters, see deadletter.Pending.
func letterKey(p engine.OffsetKey) []byte { return partitionKey(keyLetter, p) }

func scopeKey(scope string) []byte { return append(append([]byte(KeyPrefix), keyScope), scope...) }

// An ownerStore has the record of a partition, see owner.Store.
type ownerStore struct {
	engine func() *engine.Engine // nil before there is one
	pos    engine.OffsetKey
}

func (s ownerStore) Update(ctx context.Context, retries int, fn func(owner.Tx) error) error {
	eng := s.engine()
	if eng == nil {
		return nil
	}
	return eng.Update(ctx, func(tx *engine.Tx) error { return fn(ownerTx{tx, s.pos}) }, engine.Retries(retries))
}

func (s ownerStore) Engine() any { return s.engine() }

// An ownerTx has the record of a partition in a transaction, see owner.Tx.
type ownerTx struct {
	tx  *engine.Tx
	pos engine.OffsetKey
}

func (t ownerTx) Get() (r owner.Record, err error) {
	b, found, err := t.tx.Get(partitionKey(keyOwner, t.pos))
	if err != nil || !found {
		return r, err
	}
	return parseOwner(b)
}

func (t ownerTx) Put(r owner.Record) error {
	return own(t.tx).Put(partitionKey(keyOwner, t.pos), encodeOwner(r))
}

// encodeOwner: version 1 | token 16 | width u32 | attempts: offset u64 | number u32.
func encodeOwner(r owner.Record) []byte {
	b := binary.BigEndian.AppendUint32(append([]byte{1}, r.Token[:]...), r.Width)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(b, uint64(r.Tries.Offset)), r.Tries.N)
}

func parseOwner(b []byte) (r owner.Record, err error) {
	if len(b) != 33 || b[0] != 1 {
		return r, unknownForm("the owner of a partition", b)
	}
	copy(r.Token[:], b[1:])
	r.Width = binary.BigEndian.Uint32(b[17:])
	r.Tries = owner.Attempts{Offset: int64(binary.BigEndian.Uint64(b[21:])), N: binary.BigEndian.Uint32(b[29:])}
	return r, nil
}

func unknownForm(what string, b []byte) error {
	return fmt.Errorf("hapax: %s is stored as %d bytes in an unknown format: use the newer version that wrote it, or, if the application writes keys that begin with kafkaadapter.KeyPrefix, rename those keys", what, len(b))
}
