package kafkaadapter

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
)

// lagLoop requests the ends of the logs from the brokers, independently of polling, so that the lag
// of a paused, stopped or idle partition is known, too.
func (c *shared) lagLoop(ctx context.Context, parts *assignments) {
	t := time.NewTicker(c.opt.lagInterval)
	defer t.Stop()
	for {
		c.measure(ctx, parts.all())
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// measure requests the ends of the logs of partitions.
func (c *shared) measure(ctx context.Context, all []*partition) {
	if len(all) == 0 {
		return
	}
	asked := make(map[brokers.Partition]*partition, len(all))
	for _, p := range all {
		asked[p.tp().asked()] = p
	}
	err := c.brokers.ask.Ends(ctx, slices.Collect(maps.Keys(asked)), func(p brokers.Partition, l brokers.Log) { asked[p].ends.report(l.AsOf, l.End, l.Stable) })
	if err != nil && ctx.Err() == nil {
		c.throttled(c.opt.Telemetry.Logger.Warn, "looking up the ends of the logs failed; the reported lag is outdated", topicPartition{}, "error", err)
	}
}
