package kafkaadapter

import "context"

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
