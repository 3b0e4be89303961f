package kafkaadapter

import (
	"context"
	"time"
)

// An again is a partition that is stopped for a reason that may pass.
type again struct {
	at      time.Time // to look at it then
	topicID [16]byte  // of the topic that the client reads under that name
}

// stopForNow stops a paused partition, and has it looked at again after the longest back-off.
func (c *Consumer) stopForNow(tp topicPartition, reason string, err error, topicID [16]byte) {
	next := &again{time.Now().Add(c.opt.LongestBackoff), topicID}
	c.mu.Lock()
	told := c.again[tp] != nil
	c.again[tp] = next
	c.mu.Unlock()
	if told {
		c.opt.Logger.Warn("a partition still cannot be read", "topic", tp.topic, "partition", tp.partition, "reason", reason, "error", err)
		return
	}
	c.stop(tp, reason, err)
	c.mu.Lock()
	c.again[tp] = next
	c.mu.Unlock()
}

// lookEvery bounds a poll, so that it is seen when it is time to look at a partition again.
func (c *Consumer) lookEvery() time.Duration {
	return max(10*time.Millisecond, min(c.opt.LongestBackoff, 5*time.Second))
}

// lookAgain takes up the partitions for which it is time. The poll loop calls it while the group cannot rebalance.
func (c *Consumer) lookAgain(ctx context.Context) {
	began := time.Now()
	for tp, topicID := range c.due() {
		if ctx.Err() != nil || time.Since(began) > time.Second { // the others have to be polled, too
			return
		}
		c.mu.Lock()
		var cause error = c.stopped[tp]
		c.mu.Unlock()
		c.takeUp(ctx, tp, topicID, cause, func(error) bool { return false })
		if c.partition(tp) != nil {
			c.opt.Logger.Info("partition goes on", "topic", tp.topic, "partition", tp.partition)
		}
	}
}

func (c *Consumer) due() map[topicPartition][16]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	due := make(map[topicPartition][16]byte)
	for tp, a := range c.again {
		if !a.at.After(time.Now()) && c.stopped[tp] != nil {
			due[tp] = a.topicID
		}
	}
	return due
}
