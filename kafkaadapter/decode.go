package kafkaadapter

import (
	"context"
	"time"
)

// decode calls Transactional.Decode for a record, if it is set and was not called for it before.
func decode(p *partition, d *delivery) error {
	work, _ := p.route.Mode.(Transactional)
	if work.Decode == nil || d.decoded.done {
		return d.decoded.err
	}
	rec := p.handlers.hands.give(d)
	err := p.handlers.call(p.traced(rec.Record), d.Record.Offset, d.slot, func(ctx context.Context) (err error) {
		d.decoded.value, err = work.Decode(ctx, rec.Record)
		return err
	})
	d.decoded.err, d.decoded.done = err, true
	return err
}

// decodeNew decodes identified records until limit has passed, and returns how long that took. It
// omits those that are probably duplicates: claimed has an element for each record with an expected
// event. A record that it omits is decoded before its handler, if that is called.
func decodeNew(p *partition, some []sighting, claimed []bool, limit time.Duration) (took time.Duration) {
	began := time.Now()
	for i := range some {
		s := &some[i]
		if s.delivery == nil {
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
		_ = decode(p, s.delivery) // an error counts when the record is handled
		took = time.Since(began)
	}
	return took
}

// decode decodes the records. claimed has an element for each of the events.
func (e *earlySightings) decode(p *partition, claimed []bool) {
	if limit := p.c.opt.batchTime - time.Since(e.began); p.route.decodes() {
		e.handling = decodeNew(p, e.all, claimed, limit)
	}
}
