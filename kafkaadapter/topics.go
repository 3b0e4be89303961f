package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/internal/wait"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
)

// topicLoop looks for topics that cannot be consumed: the client waits for them silently.
func (c *shared) topicLoop(ctx context.Context) {
	for {
		c.lookForTopics(ctx)
		if wait.For(ctx, c.opt.lagInterval) != nil {
			return
		}
	}
}

func (c *shared) lookForTopics(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, brokers.Limit)
	defer cancel()
	details, err := c.brokers.admin.ListTopics(ctx, c.opt.topics()...)
	if err != nil {
		return // see ErrDisconnected
	}
	var all []error
	for _, d := range details.Sorted() {
		if d.Err != nil {
			all = append(all, fmt.Errorf("topic %s cannot be consumed: %w", d.Topic, d.Err))
			c.throttled(c.opt.Telemetry.Logger.Error, "a topic cannot be consumed; the client waits for it", topicPartition{d.Topic, -1}, "topic", d.Topic, "error", d.Err)
		}
	}
	missing := errors.Join(all...)
	c.health.topics.Store(&missing)
}

// ErrLetterTopic means that a dead-letter topic cannot be written. The brokers are asked at the
// start, before there is a dead letter. See Consumer.Ready.
var ErrLetterTopic = errors.New("hapax: a dead-letter topic cannot be written")

// letterTopics returns the dead-letter topics of all routes, without duplicates.
func (o *Options) letterTopics() (all []string) {
	for i := range o.Routes {
		r := &o.Routes[i]
		if r.DeadLetters == nil {
			continue
		}
		for _, topic := range r.Topics {
			all = append(all, r.DeadLetters.TopicOf(topic))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// batchBytes returns the client's limit of a batch before compression. For a dead-letter topic,
// only the broker's limit applies, and the publisher makes small batches.
func (c *shared) batchBytes(topic string) int32 {
	if slices.Contains(c.opt.letterTopics(), topic) {
		return 1 << 30 // the most that the client takes
	}
	return 1 << 20
}

// letterTopicLoop checks the dead-letter topics at the start and then every lagInterval
// until all can be written. It logs new faults.
func (c *shared) letterTopicLoop(ctx context.Context) {
	logged := make(map[string]string)
	for {
		faults, err := c.letterTopicFaults(ctx)
		switch {
		case err == nil && len(faults) == 0:
			c.health.letters.Store(nil)
			return
		case err == nil:
			all := errors.Join(faults...)
			c.health.letters.Store(&all)
		}
		for _, fault := range faults {
			if text := fault.Error(); logged[text] == "" {
				logged[text] = text
				c.opt.Telemetry.Logger.Error("a dead-letter topic cannot be written; a partition stops at its first dead letter", "group", c.opt.Group, "error", fault)
			}
		}
		if wait.For(ctx, c.opt.lagInterval) != nil {
			return
		}
	}
}

// letterTopicFaults checks with the brokers that each dead-letter topic exists and can be written.
// An error means that they did not answer.
func (c *shared) letterTopicFaults(ctx context.Context) (faults []error, err error) {
	topics := c.opt.letterTopics()
	if len(topics) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, brokers.Limit)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	for i := range topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = &topics[i]
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, c.brokers.client)
	if err != nil {
		return nil, err
	}
	for i := range resp.Topics {
		if fault := letterTopicFault(&resp.Topics[i]); fault != nil {
			faults = append(faults, fault)
		}
	}
	return faults, nil
}

// letterTopicFault returns the reason for which a topic cannot be written, nil if it can or if the
// brokers do not report it.
func letterTopicFault(t *kmsg.MetadataResponseTopic) error {
	const (
		writeBit = 1 << kmsg.ACLOperationWrite
		unknown  = math.MinInt32
	)
	topic := ""
	if t.Topic != nil {
		topic = *t.Topic
	}
	switch err := kerr.ErrorForCode(t.ErrorCode); {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return fmt.Errorf("%w: topic %s does not exist: create it, or set deadletter.Options.Topic", ErrLetterTopic, topic)
	case errors.Is(err, kerr.TopicAuthorizationFailed),
		err == nil && t.AuthorizedOperations != unknown && t.AuthorizedOperations&writeBit == 0:
		return fmt.Errorf("%w: topic %s: the consumer's principal needs the operations Write and Describe on it: grant them", ErrLetterTopic, topic)
	}
	return nil
}
