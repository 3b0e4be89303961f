package kafkaadapter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

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

// dependsOnShape reports whether a change of the number of partitions moves events between stores.
func (m *Membership) dependsOnShape() bool { return m.Pinned.Of > 1 }

func shapeKey(group, topic string) []byte {
	return partitionKey(keyShape, engine.Position{Group: group, Topic: topic, Partition: -1})
}

// lastShape returns the stored shape of a topic, and stores the present one if there is none.
func lastShape(tx *engine.Tx, group, topic string, now shape) (shape, error) {
	b, found, err := tx.Get(shapeKey(group, topic))
	switch {
	case err != nil:
		return shape{}, err
	case !found:
		return now, tx.Put(shapeKey(group, topic), now.encode())
	}
	return parseShape(b)
}

// checkShape completes where a partition is read: not at all if the topic of a pinned consumer has
// another number of partitions than before.
func (f *finder) checkShape(tx *engine.Tx, v *view, b beginning) (beginning, error) {
	if !f.c.opt.Membership.dependsOnShape() {
		return b, nil
	}
	now := shape{v.topicID, uint32(v.partitions)}
	before, err := lastShape(tx, f.pos.Group, f.pos.Topic, now)
	switch {
	case err != nil:
		return b, err
	case now.follows(before) && now.topicID == before.topicID:
		f.shape.Store(&before)
		return b, nil
	case now.follows(before):
	case f.recovery().PartitionsChanged != TrustStore:
		return b, fmt.Errorf("%w (topic %s had %d partitions and has %d)", v.refuse(ErrPartitionsChanged), f.pos.Topic, before.partitions, now.partitions)
	case b.kind == nil:
		b.kind, b.way = ErrPartitionsChanged, TrustStore
	}
	f.shape.Store(&now)
	return b, tx.Put(shapeKey(f.pos.Group, f.pos.Topic), now.encode())
}

// errShapeChanged means that the number of partitions of a pinned topic has changed while it was
// read. The partition is looked up again.
var errShapeChanged = errors.New("hapax: the number of partitions has changed")

// checkShape makes sure that no partition was added before the records in the queue were fetched.
func (w *worker) checkShape() state {
	if !w.c.opt.Membership.dependsOnShape() || w.open.Load() {
		return running
	}
	now, err := w.c.shapeNow(w.ending, w.pos.Topic)
	if err == nil && !now.follows(*w.shape.Load()) {
		err = errShapeChanged
	}
	if err == nil {
		return running
	}
	w.drop(err)
	return lookingUp
}

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
	mu      sync.Mutex // guards next
	next    *shapeLook // has not begun; it waits for the running one
	running sync.Mutex // held by a look-up
}

// A shapeLook is one look-up of all topics of the consumer.
type shapeLook struct {
	done  chan struct{}
	found map[string]shape
	err   error
}

// shapeNow returns the shape of a topic from a request that is sent after the call. Concurrent calls
// share a request.
func (c *shared) shapeNow(ctx context.Context, topic string) (shape, error) {
	c.shapes.mu.Lock()
	l := c.shapes.next
	if l == nil {
		l = &shapeLook{done: make(chan struct{})}
		c.shapes.next = l
		go c.lookAtShapes(l)
	}
	c.shapes.mu.Unlock()
	select {
	case <-l.done:
	case <-ctx.Done():
		return shape{}, ctx.Err()
	}
	s, found := l.found[topic]
	if l.err == nil && !found {
		return shape{}, fmt.Errorf("looking up topic %s: %w", topic, kerr.UnknownTopicOrPartition)
	}
	return s, l.err
}

func (c *shared) lookAtShapes(l *shapeLook) {
	defer close(l.done)
	c.shapes.running.Lock()
	defer c.shapes.running.Unlock()
	c.shapes.mu.Lock()
	c.shapes.next = nil
	c.shapes.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), lookUpTime)
	defer cancel()
	l.found, l.err = c.brokers.shapesOf(ctx, c.opt.topics())
}

// shapesOf requests the shapes of topics. Those with an error are left out.
func (b *brokers) shapesOf(ctx context.Context, topics []string) (map[string]shape, error) {
	req := kmsg.NewPtrMetadataRequest()
	for _, topic := range topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(topic)
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, b.client)
	if err != nil {
		return nil, fmt.Errorf("looking up the topics: %w", err)
	}
	found := make(map[string]shape, len(topics))
	for i := range resp.Topics {
		if t := &resp.Topics[i]; t.Topic != nil && t.ErrorCode == 0 {
			found[*t.Topic] = shape{t.TopicID, uint32(len(t.Partitions))}
		}
	}
	return found, nil
}
