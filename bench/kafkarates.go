package bench

import (
	"context"
	"fmt"
	"path/filepath"
)

// measure takes the three rates. A process that was only read from leaves nothing behind but a group's offsets.
func (k *kafkaRun) measure(ctx context.Context) error {
	raw, err := k.timed(ctx, rawLoop)
	if err != nil {
		return err
	}
	if raw.Handled != k.distinct {
		return fmt.Errorf("a plain loop has read %d of %d events: give brokers that keep them all", raw.Handled, k.distinct)
	}
	claims, err := k.claimAlone(ctx)
	if err != nil {
		return err
	}
	if claims.Handled != k.distinct {
		return fmt.Errorf("%w: of %d distinct events %d were told claimed: report it with the command line", ErrNotHeld, k.distinct, claims.Handled)
	}
	kind := adapterWork
	if k.Mode == KafkaOwn {
		kind = adapterOwn
	}
	ours, err := k.timed(ctx, kind)
	if err != nil {
		return err
	}
	r := k.report
	r.Handled, r.HandledTwice = ours.Handled, ours.Twice
	r.Lost = less(r.Distinct, r.Handled)
	r.StateMismatch = apart(ours.Claims, ours.Handled)
	per := func(m measurement) *float64 { rate := float64(k.N) / m.Seconds; return &rate }
	r.RecordsPerS, r.RawRecordsPerS, r.ClaimsPerS = per(ours), per(raw), per(claims)
	ratio := *r.RecordsPerS / *r.RawRecordsPerS
	r.Ratio = &ratio
	return nil
}

// timed runs a consumer that nothing kills.
func (k *kafkaRun) timed(ctx context.Context, kind consumerKind) (measurement, error) {
	c := consuming{order: k.order(kind), way: uint64(k.N), stage: string(kind), progress: k.Progress}
	c.order.Measure = true
	err := c.run(ctx)
	return c.measured, err
}

// claimAlone has the engine claim the same events in a process of its own.
func (k *kafkaRun) claimAlone(ctx context.Context) (m measurement, err error) {
	child, err := startChild(ctx, "claims", claimsOrder{Log: *k.log, Parts: k.Partitions, Store: k.Store, Dir: filepath.Join(k.dir, "claims")})
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
