package kafkaadapter

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hapax-dev/hapax/internal/reach"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
)

// gauges are computed at each scrape, from the partitions that are assigned then.
type gauges struct {
	shared                                                       *shared
	parts                                                        *assignments
	readiness                                                    func() error
	lag, stableLag, holdAge, batchAge, isPaused, isStopped, away *prometheus.Desc
	connection, ready, buffered, restored                        *prometheus.Desc
}

func newGauges(s *shared, parts *assignments, readiness func() error, labels prometheus.Labels) *gauges {
	desc := func(name, help string, names ...string) *prometheus.Desc {
		return prometheus.NewDesc("dedup_kafka_"+name, help, names, labels)
	}
	return &gauges{s, parts, readiness,
		desc("lag_records", "Offsets between the store's and the end of the log.", "topic", "partition"),
		desc("stable_lag_records", "Offsets between the store's and the last stable offset, which can be read now. Smaller than the lag while a transaction is open.", "topic", "partition"),
		desc("hold_age_seconds", "Age of the partition's hold, which keeps weeks from expiring; weeks are kept longer if it exceeds the retention.", "topic", "partition"),
		desc("batch_age_seconds", "Age of the current batch, including its handlers; 0 between batches. It grows while a handler hangs.", "topic", "partition"),
		desc("partition_paused", "1 for each assigned partition that the application has paused.", "topic", "partition"),
		desc("partition_stopped", "1 for each partition that is stopped, by reason: an assigned one, or one that was lost, until the member has joined its group again.", "topic", "partition", "reason"),
		desc("unprotected", "1 while the store is unavailable and records are handled without claims, 0 otherwise."),
		desc("connection", "1 for the present state of the connection to Kafka, 0 for the other states.", "state"),
		desc("ready", "1 while Ready returns nil, 0 otherwise."),
		desc("buffered_bytes", "Memory of the fetched records that are not handled, at most about MaxBufferedBytes."),
		desc("changelog_restored_ratio", "Part of the changelog that was read, from 0 to 1, for each partition whose store is being restored.", "topic", "partition"),
	}
}

// Describe is part of prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.lag
	ch <- g.stableLag
	ch <- g.holdAge
	ch <- g.batchAge
	ch <- g.isPaused
	ch <- g.isStopped
	ch <- g.away
	ch <- g.connection
	ch <- g.ready
	ch <- g.buffered
	ch <- g.restored
}

// Collect is part of prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	is := func(d *prometheus.Desc, yes bool, labels ...string) {
		value := 0.0
		if yes {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	is(g.away, g.shared.links.areAway())
	is(g.ready, g.readiness() == nil)
	ch <- prometheus.MustNewConstMetric(g.buffered, prometheus.GaugeValue, float64(g.shared.memory.Held()))
	state, _ := g.shared.reach.State(time.Now())
	for _, s := range reach.States {
		is(g.connection, s == state, s.String())
	}
	for _, tp := range g.parts.lostOnes() { // their other series end
		is(g.isStopped, true, tp.topic, strconv.Itoa(int(tp.partition)), "lost")
	}
	for _, p := range g.parts.all() {
		n := strconv.Itoa(int(p.pos.Partition))
		gauge := func(d *prometheus.Desc, value float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append([]string{p.pos.Topic, n}, labels...)...)
		}
		next := p.offsets.next()
		gauge(g.lag, float64(max(0, p.ends.end.Load()-next)))
		gauge(g.stableLag, float64(max(0, p.ends.stable.Load()-next)))
		gauge(g.batchAge, p.handlers.batchAge().Seconds())
		if at := p.hold.get(); !at.IsZero() {
			gauge(g.holdAge, time.Since(at).Seconds())
		}
		if p.store.restoringFor() > 0 {
			gauge(g.restored, p.store.progress.Ratio())
		}
		if p.IsPaused() {
			gauge(g.isPaused, 1)
		}
		if e := p.status().stop; e != nil {
			gauge(g.isStopped, 1, e.Reason)
		}
	}
}

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
