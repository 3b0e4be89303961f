package brokers

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// rawFetchBytes is the size of one raw fetch.
const rawFetchBytes = 1 << 20

// RawFetch fetches a part of a log from the leader that the client knows, independently of the client's own
// fetches. Records that are not committed are left out.
func (c *Client) RawFetch(ctx context.Context, p Partition, topicID [16]byte, offset int64) (*kmsg.FetchResponseTopicPartition, error) {
	leader, _, err := c.kafka.PartitionLeader(p.Topic, p.Partition)
	if err == nil && leader < 0 {
		err = kerr.LeaderNotAvailable
	}
	if err != nil {
		return nil, err
	}
	q := kmsg.NewFetchRequestTopicPartition()
	q.Partition, q.FetchOffset, q.PartitionMaxBytes = p.Partition, offset, rawFetchBytes
	req := fetchRequest(p.Topic, topicID, q)
	req.MaxWaitMillis, req.IsolationLevel = 100, readCommitted
	resp, err := c.kafka.Broker(int(leader)).RetriableRequest(ctx, req)
	if err != nil {
		return nil, err
	}
	return fetched(resp.(*kmsg.FetchResponse), p)
}

// Fetch fetches a part of a log, also records that are not committed, from the leader that t names. It does
// not wait for records: there are none after the end. If t is out of date it fails with
// kerr.FencedLeaderEpoch, kerr.UnknownTopicID or another retriable error.
func (c *Client) Fetch(ctx context.Context, t *Topic, p Partition, offset int64, bytes int32) (*kmsg.FetchResponseTopicPartition, error) {
	l, err := t.Leader(p.Partition)
	if err != nil {
		return nil, err
	}
	q := kmsg.NewFetchRequestTopicPartition()
	q.Partition, q.FetchOffset, q.PartitionMaxBytes, q.CurrentLeaderEpoch = p.Partition, offset, bytes, l.Epoch
	resp, err := c.kafka.Broker(int(l.Broker)).Request(ctx, fetchRequest(p.Topic, t.ID, q))
	if err != nil {
		return nil, noAnswer(ctx, err)
	}
	return fetched(resp.(*kmsg.FetchResponse), p)
}

func fetchRequest(topic string, topicID [16]byte, q kmsg.FetchRequestTopicPartition) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.MinBytes, req.MaxBytes, req.IsolationLevel, req.SessionEpoch = 1, q.PartitionMaxBytes, readUncommitted, -1
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = topic, topicID
	t.Partitions = append(t.Partitions, q)
	req.Topics = append(req.Topics, t)
	return req
}

func fetched(r *kmsg.FetchResponse, p Partition) (*kmsg.FetchResponseTopicPartition, error) {
	if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
		return nil, err
	}
	for i := range r.Topics {
		for j := range r.Topics[i].Partitions {
			if rp := &r.Topics[i].Partitions[j]; rp.Partition == p.Partition {
				return rp, kerr.ErrorForCode(rp.ErrorCode)
			}
		}
	}
	return nil, kerr.UnknownTopicOrPartition
}
