package kafkaadapter

import (
	"encoding/binary"
	"errors"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// Pinned gives a consumer a fixed part of the partitions, without rebalancing: the partitions of
// each topic whose number modulo Count is Index. Use it for several processes that each have a store
// on their own volume, such as the pods of a StatefulSet: Index is the ordinal of the pod, and Count the
// number of replicas.
//
// An event is then a duplicate only of an event in the partitions of the same consumer. Producers
// must send all copies of an event to one partition, as they do when the record's key decides
// it. The number of a topic's partitions therefore must not change: the store keeps it, and if it has
// changed, the topic's partitions stop with ErrPartitionsChanged, unless Count is 1.
//
// Offsets are committed under Options.Group, for lag tools; no process may consume with that group
// as a member. The commit is read again before it is replaced: if a process with another store has
// committed for the partition, the partition stops with ErrForeignStore. Two processes with one
// ordinal therefore do not both continue.
type Pinned struct {
	Index int // from 0
	Count int // the number of consumers; 0: not pinned
}

// ErrPinnedChanged is returned by Run if the store was used with a different Membership.Pinned.
// Partitions would move between stores that do not have each other's claims.
var ErrPinnedChanged = errors.New("hapax: Membership.Pinned has changed for this store, and partitions would move to stores without their claims: " +
	"restore the earlier values; or, to change the number of consumers, wait until the lag is 0, stop all of them, and start each with a new store " +
	"and Recovery[ErrForeignStore] = TrustKafka: copies of earlier events are then handled again")

func (s Pinned) has(partition int32) bool { return int(partition)%s.Count == s.Index }

// encode: version 1 | ordinal u32 | of u32.
func (s Pinned) encode() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{1}, uint32(s.Index)), uint32(s.Count))
}

func parsePinned(b []byte) (Pinned, error) {
	if len(b) != 9 || b[0] != 1 {
		return Pinned{}, unknownForm("the pinned partitions", b)
	}
	return Pinned{int(binary.BigEndian.Uint32(b[1:])), int(binary.BigEndian.Uint32(b[5:]))}, nil
}

func shapeKey(group, topic string) []byte {
	return partitionKey(keyShape, engine.OffsetKey{Group: group, Topic: topic, Partition: -1})
}

// lastShape returns the stored shape of a topic, and stores the present one if there is none.
func lastShape(tx *engine.Tx, group, topic string, now resume.Topic) (resume.Topic, error) {
	b, found, err := tx.Get(shapeKey(group, topic))
	switch {
	case err != nil:
		return resume.Topic{}, err
	case !found:
		return now, own(tx).Put(shapeKey(group, topic), encodeShape(now))
	}
	return parseShape(b)
}

// errShapeChanged means that the number of partitions of a pinned topic has changed while it was
// read. The partition is looked up again.
var errShapeChanged = errors.New("hapax: the number of partitions has changed")

// encodeShape: version 1 | topic id 16 | partitions u32.
func encodeShape(s resume.Topic) []byte {
	return binary.BigEndian.AppendUint32(append([]byte{1}, s.ID[:]...), s.Partitions)
}

func parseShape(b []byte) (s resume.Topic, err error) {
	if len(b) != 21 || b[0] != 1 {
		return s, unknownForm("the number of partitions of a topic", b)
	}
	copy(s.ID[:], b[1:])
	s.Partitions = binary.BigEndian.Uint32(b[17:])
	return s, nil
}
