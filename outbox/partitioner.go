package outbox

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/entry"
)

// partitioner publishes to the partition that a record names, and leaves other records to another
// partitioner.
type partitioner struct{ keyed kgo.Partitioner }

func newPartitioner() kgo.Partitioner { return partitioner{kgo.StickyKeyPartitioner(nil)} }

func (p partitioner) ForTopic(topic string) kgo.TopicPartitioner {
	return topicPartitioner{p.keyed.ForTopic(topic)}
}

type topicPartitioner struct{ kgo.TopicPartitioner }

func (p topicPartitioner) RequiresConsistency(r *kgo.Record) bool {
	return r.Partition != entry.NoPartition || p.TopicPartitioner.RequiresConsistency(r)
}

func (p topicPartitioner) Partition(r *kgo.Record, n int) int {
	if r.Partition != entry.NoPartition {
		return int(r.Partition)
	}
	return p.TopicPartitioner.Partition(r, n)
}

// OnNewBatch implements [kgo.TopicPartitionerOnNewBatch] for the partitioner that it embeds.
func (p topicPartitioner) OnNewBatch() {
	if on, ok := p.TopicPartitioner.(kgo.TopicPartitionerOnNewBatch); ok {
		on.OnNewBatch()
	}
}
