package kafkaadapter

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
)

// clients are the consumer's client, and those that send requests through it. They are set when the
// client is made, before it joins the group.
type clients struct {
	client *kgo.Client
	admin  *kadm.Client
	ask    *brokers.Client
}

func newClients(client *kgo.Client) clients {
	return clients{client, kadm.NewClient(client), brokers.New(client)}
}

type topicPartition struct {
	topic     string
	partition int32
}

func (tp topicPartition) String() string { return fmt.Sprintf("%s/%d", tp.topic, tp.partition) }

// asked is the partition as it is asked for.
func (tp topicPartition) asked() brokers.Partition {
	return brokers.Partition{Topic: tp.topic, Partition: tp.partition}
}

// byTopic returns partitions in the form that the client expects.
func byTopic(all []topicPartition) map[string][]int32 {
	topics := make(map[string][]int32)
	for _, tp := range all {
		topics[tp.topic] = append(topics[tp.topic], tp.partition)
	}
	return topics
}
