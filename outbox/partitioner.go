package outbox

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/entry"
)

// partitioner publishes to the partition that a record names, and leaves other records to another
// partitioner. A record with a key whose partition is held is refused; a record without a key goes
// to another partition.
type partitioner struct {
	keyed kgo.Partitioner
	holds *holds
}

func newPartitioner(h *holds) kgo.Partitioner { return partitioner{kgo.StickyKeyPartitioner(nil), h} }

func (p partitioner) ForTopic(topic string) kgo.TopicPartitioner {
	return topicPartitioner{p.keyed.ForTopic(topic), topic, p.holds}
}

type topicPartitioner struct {
	kgo.TopicPartitioner
	topic string
	holds *holds
}

func (p topicPartitioner) free(r *kgo.Record) bool {
	return r.Partition == entry.NoPartition && !p.TopicPartitioner.RequiresConsistency(r)
}

// RequiresConsistency reports whether Partition chooses among all partitions of the topic,
// including unavailable ones.
func (p topicPartitioner) RequiresConsistency(r *kgo.Record) bool {
	return !p.free(r) || p.holds.heldTopic(p.topic)
}

// refuse is no partition: the record fails at once.
const refuse = -1

func (p topicPartitioner) Partition(r *kgo.Record, n int) int {
	if r.Partition != entry.NoPartition {
		return p.admit(r, int(r.Partition))
	}
	chosen := p.TopicPartitioner.Partition(r, n)
	if !p.free(r) {
		return p.admit(r, chosen)
	}
	if p.holds.heldTopic(p.topic) {
		for k := range n {
			if other := (chosen + k) % n; !p.isHeld(other) {
				return other
			}
		}
		return p.admit(r, chosen)
	}
	return chosen
}

func (p topicPartitioner) isHeld(number int) bool {
	_, held := p.holds.held(partition{p.topic, int32(number)})
	return held
}

func (p topicPartitioner) admit(r *kgo.Record, number int) int {
	if f := flightOf(r); f != nil && p.isHeld(number) {
		f.number.Store(int32(number))
		f.held.Store(true)
		return refuse
	}
	return number
}

// OnNewBatch implements [kgo.TopicPartitionerOnNewBatch] for the partitioner that it embeds.
func (p topicPartitioner) OnNewBatch() {
	if on, ok := p.TopicPartitioner.(kgo.TopicPartitionerOnNewBatch); ok {
		on.OnNewBatch()
	}
}
