package kafkaadapter

import "github.com/hapax-dev/hapax/kafkaadapter/internal/feed"

// A flowClient tells the consumer's client what to fetch. All partitions are paused in one call, because
// each call copies the set of those that are.
type flowClient struct {
	shared *shared
	parts  *assignments
}

var _ feed.Client = flowClient{}

func (c flowClient) Queues() []*feed.Queue { return c.parts.queues() }

func (c flowClient) Fetch(p feed.Plan) {
	c.shared.brokers.client.UpdateFetchMaxBytes(p.Fetch, p.Partition)
}

func (c flowClient) PauseAll(change func(*feed.Queue) bool) {
	c.parts.changed(change, func(all map[string][]int32) {
		c.shared.brokers.client.PauseFetchPartitions(all)
		for topic, partitions := range all {
			c.shared.m.paused.WithLabelValues(topic).Add(float64(len(partitions)))
		}
	})
}

func (c flowClient) ResumeAll(change func(*feed.Queue) bool) {
	c.parts.changed(change, func(all map[string][]int32) { c.shared.brokers.client.ResumeFetchPartitions(all) })
}
