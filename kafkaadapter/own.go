package kafkaadapter

import (
	"context"
	"time"
)

// handleClaimed runs the own-commit handler for what a batch has claimed. The claims are durable: whatever becomes of the
// handlers, these events are not handled again.
func (p *partition) handleClaimed(o *outcome) (goOn bool) {
	mode := p.c.mode.(OwnCommit)
	began := time.Now()
	defer p.under(began)()
	defer func() {
		o.handling = time.Since(began)
		p.c.m.handler.WithLabelValues(p.pos.Topic).Observe(o.handling.Seconds())
	}()
	for i, r := range o.claimed {
		if p.ctx.Err() != nil {
			p.lose(len(o.claimed)-i, r, context.Cause(p.ctx))
			return false
		}
		if err := p.call(r, func(ctx context.Context) error { return mode.Handle(ctx, r) }); err != nil {
			p.lose(1, r, err)
		}
	}
	return true
}

// lose counts and logs events that were claimed and not handled.
func (p *partition) lose(n int, r *Record, err error) {
	p.c.m.lost.WithLabelValues(p.pos.Topic).Add(float64(n))
	p.log.Error("events were claimed and not handled: they are lost", "events", n, "offset", r.Offset, "id", idText(r.Event.ID), "error", err)
}
