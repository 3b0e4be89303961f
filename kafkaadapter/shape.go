package kafkaadapter

import (
	"encoding/binary"
	"errors"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

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
