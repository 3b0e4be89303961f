package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// rounds is how often each rate is taken, in turns, because other work on a machine comes and goes.
const rounds = 3

// rates takes the three rates: the median of each over the rounds.
func (k *kafkaRun) rates(ctx context.Context) error {
	var ours, raw, claims [rounds]float64
	for i := range rounds {
		dir := filepath.Join(k.dir, fmt.Sprintf("round-%d", i+1))
		takes := []struct {
			rate  *float64
			timed func(context.Context, string) (measurement, error)
		}{{&raw[i], k.timedRaw}, {&claims[i], k.timedClaims}, {&ours[i], k.timedAdapter}}
		for j := range takes {
			take := takes[(i+j)%len(takes)] // none comes always after the same one
			m, err := take.timed(ctx, dir)
			if err == nil {
				err = os.RemoveAll(dir)
			}
			if err != nil {
				return err
			}
			*take.rate = float64(k.N) / m.Seconds
		}
	}
	median := func(rates [rounds]float64) *float64 {
		slices.Sort(rates[:])
		return &rates[rounds/2]
	}
	r := k.report
	r.RecordsPerS, r.RawRecordsPerS, r.ClaimsPerS = median(ours), median(raw), median(claims)
	ratio := *r.RecordsPerS / *r.RawRecordsPerS
	r.Ratio = &ratio
	return nil
}

func (k *kafkaRun) timedRaw(ctx context.Context, dir string) (measurement, error) {
	m, err := k.timed(ctx, rawLoop, dir)
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
	kind := adapterWork
	if k.Mode == KafkaOwn {
		kind = adapterOwn
	}
	m, err := k.timed(ctx, kind, dir)
	if err == nil && (m.Handled != k.distinct || m.Claims != k.distinct) {
		err = fmt.Errorf("%w: of %d distinct events %d were handled and %d are claimed: report it with the command line", ErrNotHeld, k.distinct, m.Handled, m.Claims)
	}
	return m, err
}

// timed runs a consumer that nothing kills, in a group of its own.
func (k *kafkaRun) timed(ctx context.Context, kind consumerKind, dir string) (measurement, error) {
	order := k.orderIn(dir, groupNames[kind]+"-"+filepath.Base(dir), kind)
	order.Measure = true
	c := consuming{order: order, way: uint64(k.N), stage: string(kind), progress: k.Progress}
	err := c.run(ctx)
	return c.measured, err
}

// claimAlone has the engine claim the same events in a process of its own.
func (k *kafkaRun) claimAlone(ctx context.Context, dir string) (m measurement, err error) {
	child, err := startChild(ctx, "claims", claimsOrder{Log: *k.log, Parts: k.Partitions, Store: k.Store, Dir: dir})
	if err != nil {
		return m, err
	}
	_, err = child.hear(func(word, rest string) error {
		if word == "measured" {
			return m.parse(rest)
		}
		return nil
	})
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return m, err
}
