package kafkaadapter

import (
	"encoding/binary"
	"errors"

	"github.com/hapax-dev/hapax/engine"
)

// A shape is the id of a topic and the number of its partitions. Producers choose a partition by
// that number: if it changes, the copies of an event may go to partitions of different pinned
// consumers.
type shape struct {
	topicID    [16]byte
	partitions uint32
}

// follows reports whether a topic has the same number of partitions as before. A broker that has not
// learned of added partitions still reports the earlier number.
func (s shape) follows(before shape) bool {
	if s.topicID == before.topicID && s.topicID != [16]byte{} {
		return s.partitions <= before.partitions
	}
	return s.partitions == before.partitions
}

func shapeKey(group, topic string) []byte {
	return partitionKey(keyShape, engine.OffsetKey{Group: group, Topic: topic, Partition: -1})
}

// lastShape returns the stored shape of a topic, and stores the present one if there is none.
func lastShape(tx *engine.Tx, group, topic string, now shape) (shape, error) {
	b, found, err := tx.Get(shapeKey(group, topic))
	switch {
	case err != nil:
		return shape{}, err
	case !found:
		return now, own(tx).Put(shapeKey(group, topic), now.encode())
	}
	return parseShape(b)
}

// errShapeChanged means that the number of partitions of a pinned topic has changed while it was
// read. The partition is looked up again.
var errShapeChanged = errors.New("hapax: the number of partitions has changed")

// encode: version 1 | topic id 16 | partitions u32.
func (s shape) encode() []byte {
	return binary.BigEndian.AppendUint32(append([]byte{1}, s.topicID[:]...), s.partitions)
}

func parseShape(b []byte) (s shape, err error) {
	if len(b) != 21 || b[0] != 1 {
		return s, unknownForm("the number of partitions of a topic", b)
	}
	copy(s.topicID[:], b[1:])
	s.partitions = binary.BigEndian.Uint32(b[17:])
	return s, nil
}
