package kafkaadapter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// lagLoop requests the ends of the logs from the brokers, independently of polling, so that the lag
// of a paused, stopped or idle partition is known, too.
func (c *shared) lagLoop(ctx context.Context, parts *assignments) {
	t := time.NewTicker(c.opt.Telemetry.LagInterval)
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
	topics := make(map[string]bool)
	var names []string
	for _, p := range all {
		if !topics[p.pos.Topic] {
			topics[p.pos.Topic] = true
			names = append(names, p.pos.Topic)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpTime)
	defer cancel()
	began := time.Now()
	var ends, stable kadm.ListedOffsets
	var errs [2]error
	var wg sync.WaitGroup
	wg.Go(func() { ends, errs[0] = c.brokers.admin.ListEndOffsets(ctx, names...) })
	wg.Go(func() { stable, errs[1] = c.brokers.admin.ListCommittedOffsets(ctx, names...) })
	wg.Wait()
	for _, p := range all {
		p.ends.report(began, listed(ends, p), listed(stable, p))
	}
	if err := errors.Join(errs[:]...); err != nil && ctx.Err() == nil {
		c.throttled(c.opt.Telemetry.Logger.Warn, "looking up the ends of the logs failed; the reported lag is outdated", topicPartition{}, "error", err)
	}
}

func listed(offsets kadm.ListedOffsets, p *partition) int64 {
	if o, ok := offsets.Lookup(p.pos.Topic, p.pos.Partition); ok && o.Err == nil {
		return o.Offset
	}
	return -1
}
