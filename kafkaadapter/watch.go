package kafkaadapter

import (
	"context"
	"time"
)

// watchLoop logs why the consumer is not ready, as long as it is not.
func (c *shared) watchLoop(ctx context.Context, ready func() error) {
	t := time.NewTicker(min(time.Second, max(c.opt.Timeouts.Silence/4, time.Millisecond)))
	defer t.Stop()
	var since time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		switch err := ready(); {
		case err == nil:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > c.opt.Timeouts.Silence/2:
			c.throttled(c.opt.Telemetry.Logger.Warn, "the consumer is not ready", topicPartition{},
				"group", c.opt.Group, "since", since.Round(time.Second), "error", err)
		}
	}
}
