package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"time"
)

// rateRounds is how often each rate of Kafka is taken.
const rateRounds = 3

// rates takes the rates: the median of each over the rounds.
func (k *kafkaRun) rates(ctx context.Context) error {
	all, others := sum(k.ends), sum(k.ends[1:])
	timed := func(records uint64, m func(dir string) (measurement, error), right func(m measurement) error) *timing {
		return &timing{take: func(dir string) (float64, error) {
			m, err := m(dir)
			if err == nil {
				err = right(m)
			}
			return float64(records) / m.Seconds, err
		}}
	}
	raw := timed(all, func(dir string) (measurement, error) { return k.timed(ctx, rawLoop, dir, 0) }, func(m measurement) error {
		if m.Handled == all {
			return nil
		}
		return fmt.Errorf("a plain loop has read %d of %d records: give brokers that keep them all", m.Handled, all)
	})
	once := func(m measurement) error {
		if m.Handled == k.distinct && m.Claims == k.distinct {
			return nil
		}
		return fmt.Errorf("%w: of %d distinct events %d were handled and %d are claimed: report it with the command line", ErrNotHeld, k.distinct, m.Handled, m.Claims)
	}
	claims := timed(all, func(dir string) (measurement, error) { return k.timed(ctx, engineAlone, dir, 0) }, once)
	ours := timed(all, func(dir string) (measurement, error) { return k.timed(ctx, consumerKind(k.Mode), dir, 0) }, once)
	timings := []*timing{raw, claims, ours}
	beside := timed(others, func(dir string) (measurement, error) { // until all partitions but the slow one are at their ends
		return k.timed(ctx, consumerKind(k.Mode), dir, k.Workload.Slow)
	}, func(measurement) error { return nil })
	if k.Workload.Slow > 0 {
		timings = append(timings, beside)
	}
	if err := inRounds(rateRounds, k.dir, timings...); err != nil {
		return err
	}
	r := k.report
	r.RecordsPerS, r.RawRecordsPerS, r.ClaimsPerS = ours.median(), raw.median(), claims.median()
	r.Ratio = over(r.RecordsPerS, r.RawRecordsPerS)
	if k.Workload.Slow > 0 {
		without := *r.RecordsPerS * float64(others) / float64(all)
		r.BesideSlow = over(beside.median(), &without)
	}
	return nil
}

// timed runs a consumer that nothing kills, in a group of its own.
func (k *kafkaRun) timed(ctx context.Context, kind consumerKind, dir string, slow time.Duration) (measurement, error) {
	group := kind.name() + "-" + filepath.Base(dir)
	if slow > 0 {
		group += "-slow"
	}
	c := k.newConsumer(kind, dir, group)
	c.way, c.order.Measure, c.order.Workload.Slow = uint64(k.N), true, slow
	err := c.run(ctx)
	r := k.report
	if kind == consumerKind(k.Mode) && slow == 0 {
		if c.effort.Calls >= r.HandlerCalls {
			r.HandlerCalls, r.Conflicts = c.effort.Calls, c.effort.Conflicts
		}
		if s := c.measured.Spread; s > 0 && (r.PartitionSpread == nil || s > *r.PartitionSpread) {
			r.PartitionSpread = &s
		}
	}
	return c.measured, err
}
