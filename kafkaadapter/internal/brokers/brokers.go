// Package brokers looks up what a consumer's Kafka client does not report: the topics, the bounds of
// the logs and the commits of a group.
//
// Each broker gets one request of a kind at a time, about all partitions that are asked for.
// Callers ask for one partition each: those that come while a request is answered join the next
// one. Errors are per partition, and a broker that does not answer delays only the partitions that
// it leads. The limit of time is for each request.
package brokers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/internal/wait"
)

// Limit bounds one request.
const Limit = 5 * time.Second

// A Client asks the brokers of a Kafka client. It is safe for concurrent use.
type Client struct {
	kafka   *kgo.Client
	admin   *kadm.Client
	topics  Batcher[string, *Topic]
	commits Batcher[commitQuestion, *Commit]

	mu      sync.Mutex // guards leaders
	leaders map[int32]*Batcher[logQuestion, Log]
}

// New returns a Client that sends its requests through a Kafka client.
func New(client *kgo.Client) *Client {
	return &Client{kafka: client, admin: kadm.NewClient(client), leaders: make(map[int32]*Batcher[logQuestion, Log])}
}

// A Partition names one of a topic.
type Partition struct {
	Topic     string
	Partition int32
}

// An unanswered request may be answered by another try.
type unanswered struct{ error }

func (e unanswered) Unwrap() error { return e.error }

// Retry calls try again for a while if its error is transient, because leaders may be moving. final
// reports whether an error is not worth another try.
func Retry(ctx context.Context, try func() error, final func(error) bool) error {
	began := time.Now()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := try()
		if err == nil || !kerr.IsRetriable(err) && !errors.As(err, new(unanswered)) || final(err) {
			return err
		}
		if time.Since(began)+pause > Limit || wait.For(ctx, pause) != nil {
			return err
		}
	}
}

// A Topic is the id of a topic and the number of its partitions.
type Topic struct {
	ID         [16]byte // zero: the broker has no topic ids
	Partitions uint32
	leaders    map[int32]leader
}

// A Leader is the broker that leads a partition, and the epoch of this leadership.
type Leader struct {
	Broker int32
	Epoch  int32
}

type leader struct {
	broker int32
	epoch  int32
	err    error
}

// Leader returns the leader of a partition.
func (t *Topic) Leader(partition int32) (Leader, error) {
	l, there := t.leaders[partition]
	if !there {
		return Leader{}, kerr.UnknownTopicOrPartition
	}
	return Leader{l.broker, l.epoch}, l.err
}

// Topic looks a topic up after the call.
func (c *Client) Topic(ctx context.Context, name string) (*Topic, error) {
	t, err := c.topics.Ask(ctx, name, c.askTopics)
	if err != nil {
		return nil, fmt.Errorf("looking up topic %s: %w", name, err)
	}
	return t, nil
}

func (c *Client) askTopics(batch []*Question[string, *Topic]) {
	req := kmsg.NewPtrMetadataRequest()
	asked := make(map[string]bool)
	for _, q := range batch {
		if !asked[q.Ask] {
			asked[q.Ask] = true
			t := kmsg.NewMetadataRequestTopic()
			t.Topic = &q.Ask
			req.Topics = append(req.Topics, t)
		}
	}
	resp, err := c.metadata(req)
	found := make(map[string]*Topic)
	errs := make(map[string]error)
	if err == nil {
		for i := range resp.Topics {
			if t := &resp.Topics[i]; t.Topic != nil {
				found[*t.Topic], errs[*t.Topic] = newTopic(t), kerr.ErrorForCode(t.ErrorCode)
			}
		}
	}
	for _, q := range batch {
		switch q.Answer = found[q.Ask]; {
		case err != nil:
			q.Err = err
		case q.Answer == nil:
			q.Err = kerr.UnknownTopicOrPartition
		default:
			q.Err = errs[q.Ask]
		}
	}
}

func newTopic(t *kmsg.MetadataResponseTopic) *Topic {
	topic := &Topic{t.TopicID, uint32(len(t.Partitions)), make(map[int32]leader, len(t.Partitions))}
	for i := range t.Partitions {
		p := &t.Partitions[i]
		l := leader{p.Leader, p.LeaderEpoch, kerr.ErrorForCode(p.ErrorCode)}
		if l.broker >= 0 { // an error may be about a replica
			l.err = nil
		} else if l.err == nil {
			l.err = kerr.LeaderNotAvailable
		}
		topic.leaders[p.Partition] = l
	}
	return topic
}

// hedgeAfter is how long one broker may take to answer before another one is asked as well.
const hedgeAfter = time.Second

// metadata sends a request that any broker can answer, to another one each hedgeAfter.
func (c *Client) metadata(req *kmsg.MetadataRequest) (*kmsg.MetadataResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	type result struct {
		resp *kmsg.MetadataResponse
		err  error
	}
	results := make(chan result, Limit/hedgeAfter+1)
	t := time.NewTicker(hedgeAfter)
	defer t.Stop()
	for {
		another := *req // the client sets its version
		go func() {
			resp, err := another.RequestWith(ctx, c.kafka)
			results <- result{resp, err}
		}()
		select {
		case r := <-results:
			return r.resp, r.err
		case <-t.C:
		}
	}
}

// A Commit is an offset that the group has committed to Kafka.
type Commit struct {
	Offset   int64
	Epoch    int32
	Metadata string
}

// NewCommit returns a Commit with the fields of a broker's answer.
func NewCommit(offset int64, epoch int32, metadata *string) *Commit {
	k := &Commit{Offset: offset, Epoch: epoch}
	if metadata != nil {
		k.Metadata = *metadata
	}
	return k
}

// Commits returns the offsets that a group has committed. It omits partitions of topics that may not
// be read.
func (c *Client) Commits(ctx context.Context, group string) (map[Partition]*Commit, error) {
	all, err := c.admin.FetchOffsets(ctx, group)
	if err == nil {
		err = all.Error()
	}
	if errors.Is(err, kerr.GroupIDNotFound) { // no member has committed yet
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking up the offsets of group %s: %w", group, err)
	}
	commits := make(map[Partition]*Commit)
	all.Each(func(o kadm.OffsetResponse) {
		if o.At >= 0 {
			commits[Partition{o.Topic, o.Partition}] = &Commit{o.At, o.LeaderEpoch, o.Metadata}
		}
	})
	return commits, nil
}

type commitQuestion struct {
	group   string
	of      Partition
	topicID [16]byte
}

// Commit returns the offset that a group has committed for one partition, nil if there is none. An
// error of the partition is returned.
func (c *Client) Commit(ctx context.Context, group string, p Partition, topicID [16]byte) (*Commit, error) {
	committed, err := c.commits.Ask(ctx, commitQuestion{group, p, topicID}, c.askCommits)
	if err != nil {
		return nil, fmt.Errorf("looking up the offset of group %s for %s/%d: %w", group, p.Topic, p.Partition, err)
	}
	return committed, nil
}

// askCommits sends one request for each group and topic of a batch; a consumer has one group.
func (c *Client) askCommits(batch []*Question[commitQuestion, *Commit]) {
	type groupTopic struct {
		group, topic string
		topicID      [16]byte
	}
	each := make(map[groupTopic][]*Question[commitQuestion, *Commit])
	for _, q := range batch {
		key := groupTopic{q.Ask.group, q.Ask.of.Topic, q.Ask.topicID}
		each[key] = append(each[key], q)
	}
	var wg sync.WaitGroup
	for key, questions := range each {
		wg.Go(func() {
			g := kmsg.NewOffsetFetchRequestGroup()
			g.Group = key.group
			t := kmsg.NewOffsetFetchRequestGroupTopic()
			t.Topic, t.TopicID = key.topic, key.topicID
			for _, q := range questions {
				t.Partitions = append(t.Partitions, q.Ask.of.Partition)
			}
			g.Topics = append(g.Topics, t)
			c.fetchOffsets(g, questions)
		})
	}
	wg.Wait()
}

func (c *Client) fetchOffsets(g kmsg.OffsetFetchRequestGroup, questions []*Question[commitQuestion, *Commit]) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.RequireStable = true
	req.Groups = append(req.Groups, g)
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	resp, err := req.RequestWith(ctx, c.kafka)
	found := make(map[int32]*kmsg.OffsetFetchResponseGroupTopicPartition)
	if err == nil {
		for i := range resp.Groups {
			err = errors.Join(err, kerr.ErrorForCode(resp.Groups[i].ErrorCode))
			for j := range resp.Groups[i].Topics {
				partitions := resp.Groups[i].Topics[j].Partitions
				for k := range partitions {
					found[partitions[k].Partition] = &partitions[k]
				}
			}
		}
	}
	for _, q := range questions {
		rp := found[q.Ask.of.Partition]
		switch {
		case err != nil:
			q.Err = err
		case rp == nil:
			q.Err = kerr.UnknownTopicOrPartition
		default:
			if q.Err = kerr.ErrorForCode(rp.ErrorCode); q.Err == nil && rp.Offset >= 0 {
				q.Answer = NewCommit(rp.Offset, rp.LeaderEpoch, rp.Metadata)
			}
		}
	}
}
