package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// rounds is how often each rate is taken, in turns, because other work on a machine comes and goes.
const rounds = 3

// A timing is taken in each round.
type timing struct {
	timed func(ctx context.Context, dir string) (measurement, error)
	perS  [rounds]float64
}

// rates takes the rates: the median of each over the rounds.
func (k *kafkaRun) rates(ctx context.Context) error {
	raw, claims, ours := &timing{timed: k.timedRaw}, &timing{timed: k.timedClaims}, &timing{timed: k.timedAdapter}
	takes := []*timing{raw, claims, ours}
	beside := &timing{timed: k.timedBesideSlow}
	if k.Workload.Slow > 0 {
		takes = append(takes, beside)
	}
	for i := range rounds {
		dir := filepath.Join(k.dir, fmt.Sprintf("round-%d", i+1))
		for j := range takes {
			take := takes[(i+j)%len(takes)] // none comes always after the same one
			m, err := take.timed(ctx, dir)
			if err == nil {
				err = os.RemoveAll(dir)
			}
			if err != nil {
				return err
			}
			records := float64(k.N)
			if take == beside {
				records = float64(sum(k.ends[1:]))
			}
			take.perS[i] = records / m.Seconds
		}
	}
	r := k.report
	r.RecordsPerS, r.RawRecordsPerS, r.ClaimsPerS = ours.median(), raw.median(), claims.median()
	r.Ratio = over(r.RecordsPerS, r.RawRecordsPerS)
	if k.Workload.Slow > 0 {
		without := *r.RecordsPerS * float64(sum(k.ends[1:])) / float64(k.N)
		r.BesideSlow = over(beside.median(), &without)
	}
	return nil
}

func (t *timing) median() *float64 {
	slices.Sort(t.perS[:])
	return &t.perS[rounds/2]
}

func over(a, b *float64) *float64 {
	ratio := *a / *b
	return &ratio
}

func (k *kafkaRun) timedRaw(ctx context.Context, dir string) (measurement, error) {
	m, err := k.timed(ctx, rawLoop, dir, 0)
	if all := sum(k.ends); err == nil && m.Handled != all {
		err = fmt.Errorf("a plain loop has read %d of %d records: give brokers that keep them all", m.Handled, all)
	}
	return m, err
}

func (k *kafkaRun) timedClaims(ctx context.Context, dir string) (measurement, error) {
	m, err := k.claimAlone(ctx, dir)
	if err == nil && m.Handled != k.distinct {
		err = fmt.Errorf("%w: of %d distinct events %d were told claimed: report it with the command line", ErrNotHeld, k.distinct, m.Handled)
	}
	return m, err
}

func (k *kafkaRun) timedAdapter(ctx context.Context, dir string) (measurement, error) {
	m, err := k.timed(ctx, k.adapter(), dir, 0)
	if err == nil && (m.Handled != k.distinct || m.Claims != k.distinct) {
		err = fmt.Errorf("%w: of %d distinct events %d were handled and %d are claimed: report it with the command line", ErrNotHeld, k.distinct, m.Handled, m.Claims)
	}
	return m, err
}

// timedBesideSlow runs the adapter until all partitions but the slow one are at their ends.
func (k *kafkaRun) timedBesideSlow(ctx context.Context, dir string) (measurement, error) {
	return k.timed(ctx, k.adapter(), dir, k.Workload.Slow)
}

func (k *kafkaRun) adapter() consumerKind {
	if k.Mode == KafkaOwn {
		return adapterOwn
	}
	return adapterWork
}

// timed runs a consumer that nothing kills, in a group of its own.
func (k *kafkaRun) timed(ctx context.Context, kind consumerKind, dir string, slow time.Duration) (measurement, error) {
	group := groupNames[kind] + "-" + filepath.Base(dir)
	if slow > 0 {
		group += "-slow"
	}
	order := k.orderIn(dir, group, kind)
	order.Measure, order.Workload.Slow = true, slow
	c := consuming{order: order, way: uint64(k.N), stage: string(kind), progress: k.Progress}
	err := c.run(ctx)
	r := k.report
	if kind == k.adapter() && slow == 0 {
		if c.effort.Calls >= r.HandlerCalls {
			r.HandlerCalls, r.Conflicts = c.effort.Calls, c.effort.Conflicts
		}
		if s := c.measured.Spread; s > 0 && (r.PartitionSpread == nil || s > *r.PartitionSpread) {
			r.PartitionSpread = &s
		}
	}
	return c.measured, err
}

// claimAlone has the engine claim the same events in a process of its own.
func (k *kafkaRun) claimAlone(ctx context.Context, dir string) (m measurement, err error) {
	alone := &claimsOrder{Log: *k.log, Parts: k.Partitions, Store: k.Store, Dir: dir}
	l := lives{worker: func(kill) worker { return alone }}
	l.hear = func(_ *child, word, rest string) (bool, error) {
		if word == "measured" {
			return true, json.Unmarshal([]byte(rest), &m)
		}
		return true, nil
	}
	return m, l.run(ctx)
}
