package telemetry

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hapax-dev/hapax/engine"
)

// A figure is a metric that a scrape reads from engine.Stats.
type figure struct {
	name, help string
	kind       prometheus.ValueType
	value      func(s *engine.Stats) float64
}

// Counters start when the engine is opened.
var statFigures = []figure{
	{"claims_withdrawn_total", "Claims that were withdrawn because their events were not handled.",
		prometheus.CounterValue, func(s *engine.Stats) float64 { return float64(s.Withdrawn) }},
	{"claims_at_risk", "Events whose callers have left and whose claims are not withdrawn yet: a crash now would lose them.",
		prometheus.GaugeValue, func(s *engine.Stats) float64 { return float64(s.AtRisk) }},
	{"filter_negatives_total", "Events that the filter alone found new.",
		prometheus.CounterValue, func(s *engine.Stats) float64 { return float64(s.FilterNegatives) }},
	{"filter_false_positives_total", "Events that the filter considered possible and that the store did not have.",
		prometheus.CounterValue, func(s *engine.Stats) float64 { return float64(s.FilterFalsePositives) }},
	{"filter_bytes", "Memory of the filters.",
		prometheus.GaugeValue, func(s *engine.Stats) float64 { return float64(s.FilterBytes) }},
	{"filters_saturated", "Weeks whose filter is full and may not grow: their new events read the store more often.",
		prometheus.GaugeValue, func(s *engine.Stats) float64 { return float64(s.FiltersSaturated) }},
	{"filters_evicted", "Weeks whose filter gave its memory to those of later weeks: all their events read the store.",
		prometheus.GaugeValue, func(s *engine.Stats) float64 { return float64(s.FiltersEvicted) }},
	{"filter_rebuilding", "1 while every event reads the store, because the filters are not loaded yet.",
		prometheus.GaugeValue, func(s *engine.Stats) float64 { return oneIf(s.FilterRebuilding) }},
	{"filter_rebuilt_claims", "Claims that the rebuild of the filters has read so far.",
		prometheus.GaugeValue, func(s *engine.Stats) float64 { return float64(s.FilterRebuilt) }},
	{"cache_hits_total", "Duplicates found in the cache of recent claims.",
		prometheus.CounterValue, func(s *engine.Stats) float64 { return float64(s.CacheHits) }},
	{"store_reads_total", "Look-ups of claims in the store.",
		prometheus.CounterValue, func(s *engine.Stats) float64 { return float64(s.StoreReads) }},
	{"store_written_bytes_total", "Bytes written to files: log, tables, rewriting, sidecars.",
		prometheus.CounterValue, func(s *engine.Stats) float64 { return float64(s.Store.WrittenBytes) }},
	{"snapshot_failures_total", "Snapshots of the filters that could not be written; the next open takes longer.",
		prometheus.CounterValue, func(s *engine.Stats) float64 { return float64(s.SnapshotFailures) }},
	{"store_damaged_tables", "Tables with damaged claims: events that may be there are not decided.",
		prometheus.GaugeValue, func(s *engine.Stats) float64 { return float64(len(s.Store.Damaged)) }},
	{"store_without_reserve", "1 while the disk is too full for the store's reserve: only drops and removals are accepted.",
		prometheus.GaugeValue, func(s *engine.Stats) float64 { return oneIf(s.Store.WithoutReserve) }},
	{"open_transactions", "Transactions whose closures run.",
		prometheus.GaugeValue, func(s *engine.Stats) float64 { return float64(s.OpenTransactions) }},
	{"holds", "Holds that keep weeks from expiring.",
		prometheus.GaugeValue, func(s *engine.Stats) float64 { return float64(s.Holds) }},
	{"oldest_week_start_timestamp_seconds", "Monday of the oldest retained week; events before it are too old.",
		prometheus.GaugeValue, func(s *engine.Stats) float64 { return float64(s.Oldest.Start().Unix()) }},
}

// figures are the metrics that a scrape reads from the engine.
type figures struct {
	stats       []*prometheus.Desc // as statFigures
	storeBytes  *prometheus.Desc
	weekClaims  *prometheus.Desc
	weekBytes   *prometheus.Desc
	stopped     *prometheus.Desc
	unavailable prometheus.Counter

	maxWeeks int // Detail.MaxWeeks
	watcher  *watcher
}

func newFigures(maxWeeks int, w *watcher) *figures {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("", subsystem, name), help, labels, nil)
	}
	f := &figures{
		maxWeeks: maxWeeks,
		watcher:  w,
		storeBytes: desc("store_bytes",
			"Bytes of the store's files: disk is all of them, reclaimable the part of it that dropped weeks still occupy.", LabelState),
		weekClaims:  desc("week_claims", "Claims of a retained week.", LabelWeek),
		weekBytes:   desc("week_store_bytes", "Bytes on disk of a retained week's claims, estimated.", LabelWeek),
		stopped:     desc("engine_stopped", "1 once the store has failed and the engine gives no more verdicts."),
		unavailable: prometheus.NewCounter(counterOpts("figures_unavailable_total", "Scrapes without figures because the engine did not return them.")),
	}
	for _, s := range statFigures {
		f.stats = append(f.stats, desc(s.name, s.help))
	}
	return f
}

func (f *figures) describe(ch chan<- *prometheus.Desc) {
	for _, d := range f.stats {
		ch <- d
	}
	ch <- f.storeBytes
	ch <- f.weekClaims
	ch <- f.weekBytes
	ch <- f.stopped
	f.unavailable.Describe(ch)
}

// collector is the Observer as a prometheus.Collector. It is a single collector, so that either all
// metrics are registered or none.
type collector struct {
	pushed  []prometheus.Collector // metrics that change with events
	figures *figures
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, p := range c.pushed {
		p.Describe(ch)
	}
	c.figures.describe(ch)
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, p := range c.pushed {
		p.Collect(ch)
	}
	if w := c.figures.watcher.watch.Load(); w != nil {
		c.figures.collectEngine(ch, w)
	}
	c.figures.unavailable.Collect(ch)
}

// collectEngine collects the figures of the engine. A figure that the engine does not return is
// missing in the scrape. No other metric fails because of it.
func (f *figures) collectEngine(ch chan<- prometheus.Metric, w *watch) {
	stats, err := w.stats.answer()
	switch {
	case errors.Is(err, engine.ErrClosed):
		f.watcher.unwatch(w)
		return
	case errors.Is(err, errEnded):
		return
	case errors.Is(err, engine.ErrStopped):
		ch <- prometheus.MustNewConstMetric(f.stopped, prometheus.GaugeValue, 1)
		return
	case err != nil:
		f.unavailable.Inc()
		return
	}
	ch <- prometheus.MustNewConstMetric(f.stopped, prometheus.GaugeValue, 0)
	for i, s := range statFigures {
		ch <- prometheus.MustNewConstMetric(f.stats[i], s.kind, s.value(&stats))
	}
	ch <- prometheus.MustNewConstMetric(f.storeBytes, prometheus.GaugeValue, float64(stats.Store.DiskBytes), "disk")
	ch <- prometheus.MustNewConstMetric(f.storeBytes, prometheus.GaugeValue, float64(stats.Store.ReclaimableBytes), "reclaimable")
	if f.maxWeeks > 0 {
		f.collectWeeks(ch, w)
	}
}

func (f *figures) collectWeeks(ch chan<- prometheus.Metric, w *watch) {
	infos, err := w.latestWeeks()
	if err != nil {
		if !expected(err) {
			f.unavailable.Inc()
		}
		return
	}
	send := func(label string, claims, bytes uint64) {
		ch <- prometheus.MustNewConstMetric(f.weekClaims, prometheus.GaugeValue, float64(claims), label)
		ch <- prometheus.MustNewConstMetric(f.weekBytes, prometheus.GaugeValue, float64(bytes), label)
	}
	if older := len(infos) - f.maxWeeks; older > 0 {
		var claims, bytes uint64
		for _, w := range infos[:older] {
			claims += w.Claims
			bytes += w.Bytes
		}
		send(OlderWeeks, claims, bytes)
		infos = infos[older:]
	}
	for _, w := range infos {
		send(w.Week.String(), w.Claims, w.Bytes)
	}
}

// expected reports whether figures by week are missing for a reason that another metric shows, or
// because the engine has ended.
func expected(err error) bool {
	for _, e := range []error{engine.ErrRebuilding, engine.ErrClosed, engine.ErrStopped, errEnded, context.Canceled} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
