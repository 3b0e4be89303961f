package kafkaadapter

import (
	"context"
	"errors"
	"fmt"

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
