package kafkaadapter

import (
	"context"
	"time"
)

// decode calls Transactional.Decode for a record, if it is set and was not called for it before.
func decode(p *partition, rec *Record) error {
	work, _ := p.route.Mode.(Transactional)
	if work.Decode == nil || rec.decoded.done {
		return rec.decoded.err
	}
	ctx := traced(p.ctx, p.c.opt.Telemetry.Propagator, rec.Record)
	err := p.call(ctx, rec.Record, rec.slot, func(ctx context.Context) (err error) {
		rec.decoded.value, err = work.Decode(ctx, rec.Record)
		return err
	})
	rec.decoded.err, rec.decoded.done = err, true
	return err
}

// decodeNew decodes identified records until limit has passed, and returns how long that took. It
// omits those that are probably duplicates: claimed has an element for each record with an expected
// event. A record that it omits is decoded before its handler, if that is called.
func decodeNew(p *partition, some []sighting, claimed []bool, limit time.Duration) (took time.Duration) {
	began := time.Now()
	for i := range some {
		s := &some[i]
		if s.Record == nil {
			continue
		}
		if s.isExpected() {
			duplicate := claimed[0]
			if claimed = claimed[1:]; duplicate {
				continue
			}
		}
		if s.err != nil {
			continue
		}
		if took > limit || p.isEnding() {
			break
		}
		_ = decode(p, s.Record) // an error counts when the record is handled
		took = time.Since(began)
	}
	return took
}

// decode decodes the records. claimed has an element for each of the events.
func (e *earlySightings) decode(p *partition, claimed []bool) {
	if limit := p.c.opt.Batching.BatchTime - time.Since(e.began); p.route.decodes() {
		e.handling = decodeNew(p, e.all, claimed, limit)
	}
}
