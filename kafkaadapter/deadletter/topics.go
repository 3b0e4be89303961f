package deadletter

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ErrTopic means that a dead-letter topic cannot be written. The brokers are asked at the start of a
// consumer, before there is a dead letter. See kafkaadapter.Consumer.Ready.
var ErrTopic = errors.New("hapax: a dead-letter topic cannot be written")

// CheckTopics checks with the brokers that each topic exists and can be written. An error means that
// they did not answer.
func CheckTopics(ctx context.Context, client *kgo.Client, topics []string) (faults []error, err error) {
	if len(topics) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	for i := range topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = &topics[i]
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	for i := range resp.Topics {
		if fault := faultOf(&resp.Topics[i]); fault != nil {
			faults = append(faults, fault)
		}
	}
	return faults, nil
}

// faultOf returns the reason for which a topic cannot be written, nil if it can or if the brokers do
// not report it.
func faultOf(t *kmsg.MetadataResponseTopic) error {
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
		return fmt.Errorf("%w: topic %s does not exist: create it, or set deadletter.Options.Topic", ErrTopic, topic)
	case errors.Is(err, kerr.TopicAuthorizationFailed),
		err == nil && t.AuthorizedOperations != unknown && t.AuthorizedOperations&writeBit == 0:
		return fmt.Errorf("%w: topic %s: the consumer's principal needs the operations Write and Describe on it: grant them", ErrTopic, topic)
	}
	return nil
}
