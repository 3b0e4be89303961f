package kafkaadapter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"

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

// shapes shares look-ups of the shapes of topics.
type shapes struct {
	mu   sync.Mutex // guards the rest; not held during I/O
	next *shapeLook // has not begun: it waits for the last one
	last *shapeLook // nil at first
}

// A shapeLook is one look-up of all topics of the consumer.
type shapeLook struct {
	done  chan struct{}
	found map[string]shape
	err   error
}

// now returns the shape of a topic from a look-up that begins after the call. Concurrent calls share
// a look-up.
func (s *shapes) now(ctx context.Context, topic string, lookUp func(context.Context) (map[string]shape, error)) (shape, error) {
	s.mu.Lock()
	l := s.next
	if l == nil {
		l = &shapeLook{done: make(chan struct{})}
		s.next = l
		go s.run(l, s.last, lookUp)
	}
	s.mu.Unlock()
	select {
	case <-l.done:
	case <-ctx.Done():
		return shape{}, ctx.Err()
	}
	found, ok := l.found[topic]
	if l.err == nil && !ok {
		return shape{}, fmt.Errorf("looking up topic %s: %w", topic, kerr.UnknownTopicOrPartition)
	}
	return found, l.err
}

func (s *shapes) run(l, last *shapeLook, lookUp func(context.Context) (map[string]shape, error)) {
	defer close(l.done)
	if last != nil {
		<-last.done
	}
	s.mu.Lock()
	s.next, s.last = nil, l
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), lookUpTime)
	defer cancel()
	l.found, l.err = lookUp(ctx)
}
