package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/engine"
)

// brokers sends requests that the client does not send by itself. Both clients are set when the
// group's client is made, before it joins the group.
type brokers struct {
	client *kgo.Client
	admin  *kadm.Client
}

// lookUpTime bounds one look-up at the brokers.
const lookUpTime = 5 * time.Second

// Timestamps in ListOffsets that stand for a log's start and end.
const (
	logStart = -2
	logEnd   = -1
)

// Isolation levels of ListOffsets and Fetch.
const (
	readUncommitted int8 = 0
	readCommitted   int8 = 1
)

// topic returns the id of a topic and the number of its partitions. Concurrent look-ups share an
// answer, which is at most a second old; fresh requests a new one.
func (b *brokers) topic(ctx context.Context, topic string, fresh bool) (id [16]byte, partitions int32, err error) {
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &topic
	req.Topics = append(req.Topics, t)
	age := time.Second
	if fresh {
		age = time.Millisecond
	}
	resp, err := b.client.RequestCachedMetadata(ctx, req, age)
	if err == nil {
		err = kerr.UnknownTopicOrPartition
		for i := range resp.Topics {
			if rt := &resp.Topics[i]; rt.Topic != nil && *rt.Topic == topic {
				id, partitions, err = rt.TopicID, int32(len(rt.Partitions)), kerr.ErrorForCode(rt.ErrorCode)
			}
		}
	}
	if err != nil {
		return id, 0, fmt.Errorf("looking up topic %s: %w", topic, err)
	}
	return id, partitions, nil
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

// listOffset requests from the partition's leader the log's start, its end (the high watermark) or,
// with readCommitted, its last stable offset.
func (b *brokers) listOffset(ctx context.Context, topic string, partition int32, at int64, isolation int8) (int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.IsolationLevel = isolation
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	q := kmsg.NewListOffsetsRequestTopicPartition()
	q.Partition, q.Timestamp = partition, at
	t.Partitions = append(t.Partitions, q)
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, b.client)
	if err == nil {
		err = kerr.UnknownTopicOrPartition
		for i := range resp.Topics {
			for _, rp := range resp.Topics[i].Partitions {
				if rp.Partition == partition {
					if err = kerr.ErrorForCode(rp.ErrorCode); err == nil {
						return rp.Offset, nil
					}
				}
			}
		}
	}
	return 0, fmt.Errorf("looking up where the log of %s/%d starts and ends: %w", topic, partition, err)
}

// epochEnd returns the end offset of a leader epoch, -1 if the broker does not know it. If the
// store has read further, the log no longer has some of the records that were read.
func (b *brokers) epochEnd(ctx context.Context, topic string, partition, epoch int32) (int64, error) {
	req := make(kadm.OffsetForLeaderEpochRequest)
	req.Add(topic, partition, epoch)
	ends, err := b.admin.OffsetForLeaderEpoch(ctx, req)
	e, ok := ends[topic][partition]
	switch {
	case !ok && err != nil:
		return -1, fmt.Errorf("looking up leader epochs: %w", err)
	case !ok, e.Err != nil && !kerr.IsRetriable(e.Err): // the broker does not know it
		return -1, nil
	case e.Err != nil:
		return -1, fmt.Errorf("looking up leader epochs: %s/%d: %w", topic, partition, e.Err)
	}
	return e.EndOffset, nil
}

// groupCommits returns the offsets that the group has committed.
func (b *brokers) groupCommits(ctx context.Context, group string) (map[topicPartition]*commit, error) {
	all, err := b.admin.FetchOffsets(ctx, group)
	if err == nil {
		err = all.Error()
	}
	if errors.Is(err, kerr.GroupIDNotFound) { // no member has committed yet
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking up the offsets of group %s: %w", group, err)
	}
	commits := make(map[topicPartition]*commit)
	all.Each(func(o kadm.OffsetResponse) {
		if o.At >= 0 {
			commits[topicPartition{o.Topic, o.Partition}] = &commit{o.At, o.LeaderEpoch, o.Metadata}
		}
	})
	return commits, nil
}

// groupCommit returns the offset that the group has committed for one partition, nil if there is
// none. An error of the partition is returned; groupCommits omits partitions of topics that may not
// be read.
func (b *brokers) groupCommit(ctx context.Context, p engine.OffsetKey, topicID [16]byte) (*commit, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.RequireStable = true
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = p.Group
	t := kmsg.NewOffsetFetchRequestGroupTopic()
	t.Topic, t.TopicID, t.Partitions = p.Topic, topicID, []int32{p.Partition}
	g.Topics = append(g.Topics, t)
	req.Groups = append(req.Groups, g)
	resp, err := req.RequestWith(ctx, b.client)
	var committed *commit
	if err == nil {
		committed, err = commitIn(resp, p.Partition)
	}
	if err != nil {
		return nil, fmt.Errorf("looking up the offset of group %s for %s/%d: %w", p.Group, p.Topic, p.Partition, err)
	}
	return committed, nil
}

// commitIn returns the commit in the answer for one partition, nil if there is none.
func commitIn(resp *kmsg.OffsetFetchResponse, partition int32) (*commit, error) {
	for i := range resp.Groups {
		g := &resp.Groups[i]
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
			return nil, err
		}
		for j := range g.Topics {
			for _, rp := range g.Topics[j].Partitions {
				if err := kerr.ErrorForCode(rp.ErrorCode); err != nil || rp.Partition == partition && rp.Offset < 0 {
					return nil, err
				}
				if rp.Partition == partition {
					return newCommit(rp.Offset, rp.LeaderEpoch, rp.Metadata), nil
				}
			}
		}
	}
	return nil, kerr.UnknownTopicOrPartition
}

// A commit is an offset that the group has committed to Kafka.
type commit struct {
	offset   int64
	epoch    int32
	metadata string
}

func newCommit(offset int64, epoch int32, metadata *string) *commit {
	k := &commit{offset: offset, epoch: epoch}
	if metadata != nil {
		k.metadata = *metadata
	}
	return k
}

// rawFetchBytes is the size of one raw fetch.
const rawFetchBytes = 1 << 20

// rawFetch fetches a part of a log, independently of the client's own fetches.
func (b *brokers) rawFetch(ctx context.Context, topic string, topicID [16]byte, partition int32, offset int64) (*kmsg.FetchResponseTopicPartition, error) {
	leader, _, err := b.client.PartitionLeader(topic, partition)
	if err == nil && leader < 0 {
		err = kerr.LeaderNotAvailable
	}
	if err != nil {
		return nil, err
	}
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.IsolationLevel, req.SessionEpoch = 100, 1, rawFetchBytes, readCommitted, -1
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = topic, topicID
	q := kmsg.NewFetchRequestTopicPartition()
	q.Partition, q.FetchOffset, q.PartitionMaxBytes = partition, offset, rawFetchBytes
	t.Partitions = append(t.Partitions, q)
	req.Topics = append(req.Topics, t)
	resp, err := b.client.Broker(int(leader)).RetriableRequest(ctx, req)
	if err != nil {
		return nil, err
	}
	r := resp.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
		return nil, err
	}
	for i := range r.Topics {
		for j := range r.Topics[i].Partitions {
			if rp := &r.Topics[i].Partitions[j]; rp.Partition == partition {
				return rp, kerr.ErrorForCode(rp.ErrorCode)
			}
		}
	}
	return nil, kerr.UnknownTopicOrPartition
}

type topicPartition struct {
	topic     string
	partition int32
}

func (tp topicPartition) String() string { return fmt.Sprintf("%s/%d", tp.topic, tp.partition) }
