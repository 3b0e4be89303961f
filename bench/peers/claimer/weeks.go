package claimer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/hapax-dev/hapax/bench/peers/servers"
	"github.com/hapax-dev/hapax/bench/peers/traffic"
	"github.com/hapax-dev/hapax/bench/report"
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
)

// A WeeksOrder lets Hapax claim week after week.
type WeeksOrder struct {
	PerWeek, Weeks int
	Keep           int // beside the newest
	Seed           uint64
	Dir            string
}

// A WeeksResult has a sample after each portion, and after each drop.
type WeeksResult struct {
	Seconds float64 // without the making of ids, and with the drops
	Samples []report.Sample
}

const (
	weeksBatch  = 10_000
	weeksCaller = 4
	week        = 7 * 24 * time.Hour
)

// weeksRun is a run of Weeks.
type weeksRun struct {
	WeeksOrder
	ctx      context.Context
	eng      *engine.Engine
	now      atomic.Int64 // of the engine's clock, in Unix seconds
	log      traffic.Log
	progress func(uint64)

	result WeeksResult
	stored []uint64 // by week
	oldest int      // that is kept
}

// Weeks claims PerWeek ids of each week, one week after the other, and drops what has expired when
// the clock comes to the next one.
func Weeks(ctx context.Context, o WeeksOrder, progress func(uint64)) (result WeeksResult, err error) {
	r := &weeksRun{WeeksOrder: o, ctx: ctx, log: traffic.Log{Seed: o.Seed}, progress: progress, stored: make([]uint64, o.Weeks)}
	first := time.Date(2026, 1, 7, 12, 0, 0, 0, time.UTC)
	r.now.Store(first.Unix())
	store, err := pebble.Open(o.Dir, pebble.Options{})
	if err != nil {
		return r.result, err
	}
	r.eng, err = engine.Open(store, engine.Options{
		RetentionWeeks: o.Keep, Clock: func() time.Time { return time.Unix(r.now.Load(), 0) },
	})
	if err != nil {
		return r.result, errors.Join(err, store.Close())
	}
	defer func() { err = errors.Join(err, r.eng.Close()) }()
	for w := range o.Weeks {
		r.now.Store(first.Add(time.Duration(w) * week).Unix())
		if err := r.week(w); err != nil {
			return r.result, err
		}
	}
	return r.result, nil
}

func (r *weeksRun) week(w int) error {
	if w > r.Keep {
		start := time.Now()
		if _, err := r.eng.DropExpired(r.ctx); err != nil {
			return err
		}
		if err := r.eng.Reclaimed(r.ctx); err != nil {
			return err
		}
		r.result.Seconds += time.Since(start).Seconds()
		r.oldest = w - r.Keep
		if err := r.sample(w, 0); err != nil {
			return err
		}
	}
	from := uint64(w * r.PerWeek)
	ids := make([]uuid.UUID, 0, portion)
	for left := r.PerWeek; left > 0; left -= len(ids) {
		ids = ids[:0]
		for range min(portion, left) {
			ids = append(ids, r.log.ID(from))
			from++
		}
		system := &hapaxClaims{eng: r.eng, at: time.Unix(r.now.Load(), 0)}
		run := running{Order: &Order{Batch: weeksBatch, InFlight: weeksCaller}, ctx: r.ctx, system: system, progress: r.progress}
		start := time.Now()
		if err := run.claimAll(ids); err != nil {
			return err
		}
		took := time.Since(start).Seconds()
		if fresh := int(run.fresh.Load()); fresh != len(ids) {
			return fmt.Errorf("of %d new ids %d are claimed", len(ids), fresh)
		}
		r.result.Seconds += took
		r.stored[w] += uint64(len(ids))
		if err := r.sample(w, float64(len(ids))/took); err != nil {
			return err
		}
	}
	return nil
}

func (r *weeksRun) sample(w int, perS float64) error {
	resident, err := servers.ResidentBytes(self())
	if err != nil {
		return err
	}
	s := report.Sample{PerS: perS, Disk: size(r.Dir), Resident: resident, Week: time.Unix(r.now.Load(), 0).UTC().Format(time.DateOnly)}
	for i, n := range r.stored[:w+1] {
		s.Claimed += n
		if i >= r.oldest {
			s.Stored += n
		}
	}
	r.result.Samples = append(r.result.Samples, s)
	return nil
}
