package outbox

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// spare finds out which items of a transaction failed because the relay may not write to their
// topic. Brokers before Kafka 4.0 check the topics of a transaction together and reject it as a
// whole, and the client reports that error for each record. The items of other topics are marked as
// aborted, because they were not at fault. If the broker does not say which operations are
// permitted, all items have failed.
func (c *connection) spare(items []*item) error {
	var permitted map[string]bool
	err := c.during(context.Background(), c.shared.opt.Batch.Time, func(ctx context.Context) (err error) {
		permitted, err = c.permitted(ctx, items)
		return err
	})
	for _, i := range items {
		if i.outcome == failed && errors.Is(i.err, kerr.TopicAuthorizationFailed) && permitted[i.Entry.Topic] {
			i.outcome, i.err = aborted, nil
		}
	}
	if errors.Is(err, errLeaseLost) {
		return err
	}
	return nil
}

// permitted returns the topics of items to which the relay may write.
func (c *connection) permitted(ctx context.Context, items []*item) (map[string]bool, error) {
	client, err := c.shared.hooks.NewClient(c.shared.opt.Client...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	asked := make(map[string]bool)
	for _, i := range items {
		if !asked[i.Entry.Topic] {
			asked[i.Entry.Topic] = true
			topic := kmsg.NewMetadataRequestTopic()
			topic.Topic = kmsg.StringPtr(i.Entry.Topic)
			req.Topics = append(req.Topics, topic)
		}
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	permitted := make(map[string]bool)
	for _, topic := range resp.Topics {
		operations := topic.AuthorizedOperations // one bit for each operation; negative if unknown
		if topic.Topic != nil && topic.ErrorCode == 0 && operations > 0 && operations&(1<<kmsg.ACLOperationWrite) != 0 {
			permitted[*topic.Topic] = true
		}
	}
	return permitted, nil
}
