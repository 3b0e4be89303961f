package kafkaadapter

import (
	"context"
	"errors"
	"time"
)

// handleClaimed runs the handlers of AtMostOnce for the claimed records of a batch. The offset for
// Kafka moves past a record only when its handler has begun, so that Kafka is not ahead of the
// store if the other claims are withdrawn.
func (p *partition) handleClaimed(b *batch) (goOn bool) {
	mode := p.route.Mode.(AtMostOnce)
	began := time.Now()
	defer p.handlers.under(began)()
	defer func() {
		b.handling = time.Since(began)
		p.c.m.handler.WithLabelValues(p.pos.Topic).Observe(b.handling.Seconds())
	}()
	p.backlog.fill(&b.result)
	defer p.giveBack() // also if a handler ends the goroutine
	handle := p.handleInOrder
	if len(b.result.claimed) > 1 && p.route.Concurrency.handlers > 1 {
		handle = p.handleSideBySide
	}
	goOn = handle(mode, b)
	if p.backlog.isCut() { // what is left is used by cut
		<-p.ctx.Done()
		return false
	}
	return goOn
}

// errExited is the error of an event that is lost because its handler ended its goroutine.
var errExited = errors.New("hapax: the handler ended its goroutine (runtime.Goexit, as t.FailNow does)")

// giveBack withdraws the claims of the batch whose handlers have not begun, or counts their events
// as lost if the partition has another owner by now.
func (p *partition) giveBack() {
	b, rest := p.backlog.rest()
	if cause := context.Cause(p.ctx); cause != nil && len(rest) > 0 && !p.open.Load() {
		p.lose(len(rest), rest[0].delivery, cause)
		rest = nil
	}
	p.endBacklog(b, rest)
	if b != nil && len(rest) == 0 {
		p.backlog.recycle(b)
	}
}

// handleInOrder handles the records of a batch one after the other, until all are done or the
// assignment ends.
func (p *partition) handleInOrder(mode AtMostOnce, _ *batch) (all bool) {
	var running *delivery
	defer func() {
		if running != nil {
			p.lose(1, running, errExited)
		}
	}()
	for !p.isEnding() {
		next, offset, epoch := p.backlog.next()
		if next == nil {
			return true
		}
		p.offsets.moved(offset, epoch)
		running = next.delivery
		rec := p.handlers.hands.give(next.delivery)
		err := p.handlers.call(p.contextOf(next, rec), next.delivery.Record.Offset, 0, func(ctx context.Context) error { return mode(ctx, rec) })
		if running = nil; err != nil {
			p.lose(1, next.delivery, err)
		}
	}
	return false
}

// handleSideBySide handles the records of a batch in parallel, until all are done or the assignment
// ends. Handlers begin in the order of offsets, so that those that have not begun are the last of
// the batch.
func (p *partition) handleSideBySide(mode AtMostOnce, b *batch) (all bool) {
	w := newPool(p.route, len(b.result.claimed))
	defer w.drain()
	errs := make([]error, len(b.result.claimed))
	for w.settled < len(b.result.claimed) {
		for w.ordered < w.reach() {
			p.order(w, b.result.claimed[w.ordered].delivery)
		}
		for task, ok := w.next(); ok && task == w.begun && !w.exited && !p.isEnding(); task, ok = w.next() {
			next, offset, epoch := p.backlog.next()
			if next == nil { // the other claims were withdrawn
				w.end = 0
				break
			}
			p.offsets.moved(offset, epoch)
			rec := p.handlers.hands.give(next.delivery)
			errs[task] = errExited
			w.begin(task, func(slot int) {
				errs[task] = p.handlers.call(p.contextOf(next, rec), next.delivery.Record.Offset, slot, func(ctx context.Context) error { return mode(ctx, rec) })
			})
		}
		if w.running == 0 {
			return false
		}
		if task := w.await(); errs[task] != nil {
			p.lose(1, b.result.claimed[task].delivery, errs[task])
		}
		w.settle()
	}
	return true
}

// contextOf returns the context of the handler of a record.
func (p *partition) contextOf(c *claimed, rec *Record) context.Context {
	if !c.traced {
		return p.ctx
	}
	return p.traced(rec.Record)
}
