package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hapax-dev/hapax/internal/wait"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
)

// topicLoop looks for topics that cannot be consumed, for which the client waits silently, and for a number of
// partitions that must not change.
func (c *shared) topicLoop(ctx context.Context, parts *assignments) {
	for {
		c.lookForTopics(ctx, parts)
		if wait.For(ctx, c.opt.lagInterval) != nil {
			return
		}
	}
}

func (c *shared) lookForTopics(ctx context.Context, parts *assignments) {
	ctx, cancel := context.WithTimeout(ctx, brokers.Limit)
	defer cancel()
	details, err := c.brokers.admin.ListTopics(ctx, c.opt.topics()...)
	if err != nil {
		return // see ErrDisconnected
	}
	checkShapes(parts, details)
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
		faults, err := deadletter.CheckTopics(ctx, c.brokers.client, c.opt.letterTopics())
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
