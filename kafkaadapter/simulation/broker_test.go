package simulation

import (
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// brokers is the number of brokers. The leaders of partitions move between them.
const brokers = 3

// moveLeader gives a partition another leader.
func (w *world) moveLeader() error {
	w.mu.Lock()
	w.tally.moves++
	w.mu.Unlock()
	if w.chance(10) {
		return w.cluster.MoveTopicPartition(deadTopic, 0, int32(w.pick(brokers)))
	}
	return w.cluster.MoveTopicPartition(topic, w.global(w.pick(partitions)), int32(w.pick(brokers)))
}

// forgetCommits makes a broker forget the commits of all groups.
func forgetCommits(c *kfake.Cluster) {
	c.ControlKey(kmsg.OffsetFetch.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := kreq.(*kmsg.OffsetFetchRequest)
		resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
		for _, g := range req.Groups {
			rg := kmsg.NewOffsetFetchResponseGroup()
			rg.Group = g.Group
			for _, t := range g.Topics {
				rt := kmsg.NewOffsetFetchResponseGroupTopic()
				rt.Topic, rt.TopicID = t.Topic, t.TopicID
				for _, p := range t.Partitions {
					rp := kmsg.NewOffsetFetchResponseGroupTopicPartition()
					rp.Partition, rp.Offset = p, -1
					rt.Partitions = append(rt.Partitions, rp)
				}
				rg.Topics = append(rg.Topics, rt)
			}
			resp.Groups = append(resp.Groups, rg)
		}
		return resp, nil, true
	})
}
