package idempotency

import (
	"context"
	"errors"
	"math"
	"net/http"

	"github.com/hapax-dev/hapax/engine"
)

// ErrNoMiddleware is an error of Update: the context does not belong to a request of the middleware.
var ErrNoMiddleware = errors.New("hapax: idempotency: the context is not that of a request of the middleware: give Update r.Context(), and wrap the handler with New")

// Update runs fn in a transaction of the engine, as [engine.Engine.Update] does, and makes the
// response that fn writes the result of the request's key in the same transaction. ctx is that of
// the request, or derived from it.
//
// When Update returns nil, all that fn has claimed, written and produced through tx is durable,
// together with the key and its response, and the handler returns without writing anything more.
// After an error none of it is applied, except as [engine.ErrOutcomeUnknown] says; the handler can
// still write another response, such as a rejection, to its own ResponseWriter. If it returns
// without one, that is a failure with status 500. So after a crash, a retry either gets the
// response, or does the work, none of which was done before.
//
// Each run of fn gets a new ResponseWriter, which starts with the headers that the handler has set.
// With [engine.Retries], fn runs again after a conflict, and only the response of the last run
// counts. That response is kept whatever its status is: to undo the work, fn returns an error. A
// response larger than Options.MaxResponseBytes is sent after the commit, and its retries get 409.
//
// The error is [engine.ErrLeaseLost] if another request with the key has taken over. For a request
// without a key, because it needs none or because of Options.FailOpen, Update runs fn and sends its
// response without storing it.
//
// A handler calls Update from one goroutine at a time, and successfully only once.
func Update(ctx context.Context, fn func(tx *engine.Tx, w http.ResponseWriter) error, options ...engine.UpdateOptions) error {
	u, ok := ctx.Value(updaterKey{}).(updater)
	if !ok {
		return ErrNoMiddleware
	}
	return u.update(ctx, fn, options)
}

type updaterKey struct{}

// An updater runs the transaction of a request.
type updater interface {
	update(ctx context.Context, fn func(*engine.Tx, http.ResponseWriter) error, options []engine.UpdateOptions) error
}

// update finishes the key of the run in the transaction.
func (x *run) update(ctx context.Context, fn func(*engine.Tx, http.ResponseWriter) error, options []engine.UpdateOptions) error {
	x.mu.Lock()
	closed := x.ended || x.settled
	x.mu.Unlock()
	if closed || x.rec.begun.Load() {
		return ErrAnswered
	}
	var answer *response
	// no renewal runs now: it could mistake the finished key for a lost lease
	committing := false
	defer func() {
		if committing {
			<-x.renewing
		}
	}()
	err := x.m.eng.Update(ctx, func(tx *engine.Tx) error {
		if committing { // the commit has failed
			<-x.renewing
			committing = false
		}
		rec := &recorder{limit: math.MaxInt, header: x.rec.header.Clone()}
		if err := fn(tx, rec); err != nil {
			return err
		}
		if answer = rec.end(); rec.isShort(x.r.Method) {
			return errShort // no client would accept it
		}
		select {
		case x.renewing <- struct{}{}:
			committing = true
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := tx.Finish(x.lease, answer.result(x.m.opt.MaxResponseBytes).encodeFor(x.m.opt.KeepCredentials)); err != nil {
			return err
		}
		return x.m.quota.Add(tx, x.tenant)
	}, options...)
	x.updated(answer, err)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, engine.ErrLeaseLost) {
		return cause // why ctx has ended
	}
	return err
}

var errShort = errors.New("hapax: idempotency: the response is shorter than its Content-Length: write all of it, or set no length")

// updated records the result of an Update.
func (x *run) updated(answer *response, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return
	}
	x.undone = err != nil
	if err == nil {
		x.settled, x.answer = true, answer
		x.rec.answered.Store(true)
	}
}

// result returns the part of the response that is stored.
func (r *response) result(maxBytes int) *response {
	if len(r.body) > maxBytes {
		return &response{status: r.status, dropped: true}
	}
	return r
}

// A plain request has no key.
type plain struct {
	eng  *engine.Engine
	w    http.ResponseWriter
	sent bool
}

// serve runs the handler for a request without a key.
func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	serveCopy(context.WithValue(r.Context(), updaterKey{}, &plain{eng: m.eng, w: w}), next, w, r)
}

func (p *plain) update(ctx context.Context, fn func(*engine.Tx, http.ResponseWriter) error, options []engine.UpdateOptions) error {
	if p.sent {
		return ErrAnswered
	}
	var answer *response
	err := p.eng.Update(ctx, func(tx *engine.Tx) error {
		rec := &recorder{limit: math.MaxInt, header: p.w.Header().Clone()}
		err := fn(tx, rec)
		answer = rec.end()
		return err
	}, options...)
	if err != nil {
		return err
	}
	p.sent = true
	clear(p.w.Header()) // the response started with these headers
	answer.send(p.w)
	return nil
}
