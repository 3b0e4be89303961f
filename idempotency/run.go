package idempotency

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/renewal"
)

// A run is one call of the handler, under the lease on its key. After it has called the handler,
// the run does not read the handler's request, because handlers change it.
type run struct {
	m     *middleware
	w     http.ResponseWriter
	r     *http.Request // the handler gets a copy
	lease *engine.Lease
	kept  renewal.Lease
	rec   *recorder

	tenant    string
	isCounted bool // in the tenant's number of keys

	work     context.Context         // the handler's
	cancel   context.CancelCauseFunc // of work
	stop     func()                  // ends the renewals and waits for the last one; may be called more than once
	renewing chan struct{}           // full during a renewal and while a transaction of Update commits

	mu      sync.Mutex // guards the fields below: after a timeout, the handler can still be in Update
	ended   bool       // the handler has returned or was abandoned, and Update changes none of these fields
	settled bool       // the key is finished; set inside renewing while renewals run
	answer  *response  // of Update; nil if the handler's response is in rec
	undone  bool       // Update has failed
}

func newRun(m *middleware, w http.ResponseWriter, r *http.Request, tenant string, lease *engine.Lease, began time.Time) *run {
	x := &run{m: m, w: w, r: r, tenant: tenant, lease: lease, stop: func() {}, renewing: make(chan struct{}, 1)}
	x.kept = renewal.Lease{Of: m.opt.Lease, From: began, Renew: x.renew}
	ctx, cancel := context.WithCancelCause(r.Context())
	x.work, x.cancel = context.WithValue(ctx, updaterKey{}, updater(x)), cancel
	x.rec = &recorder{w: w, limit: m.opt.MaxResponseBytes, header: http.Header{}, overflow: x.overflow, ctx: r.Context()}
	return x
}

func (x *run) serve(next http.Handler) {
	x.startRenewals()
	defer x.cancel(nil)
	returned := false
	defer func() {
		if !returned { // the handler panicked; the server gets the panic
			x.closeUpdates()
			_ = x.fail(x.work.Err() != nil) // reported
		}
	}()
	serveCopy(x.work, next, x.rec, x.r)
	returned = true
	x.end()
}

// serveCopy calls a handler with a copy of the request, and removes the temporary files of a form
// that the handler has parsed. The server does that only for the original request.
func serveCopy(ctx context.Context, next http.Handler, w http.ResponseWriter, r *http.Request) {
	theirs := r.WithContext(ctx)
	defer func() { // also after a panic
		if form := theirs.MultipartForm; form != nil && form != r.MultipartForm {
			_ = form.RemoveAll() // as the server does
		}
	}()
	next.ServeHTTP(w, theirs)
}

// startRenewals renews the lease until stop is called. It cancels the handler's context once the
// lease is lost.
func (x *run) startRenewals() {
	x.stop = sync.OnceFunc(x.kept.Keep(x.r.Context(), func(err error) bool {
		isLost := errors.Is(err, engine.ErrLeaseLost)
		if isLost {
			x.cancel(err)
		}
		return isLost
	}))
}

// renew renews the lease unless the key is finished. ctx ends with the renewals.
func (x *run) renew(ctx context.Context) error {
	x.renewing <- struct{}{}
	defer func() { <-x.renewing }()
	if x.isSettled() {
		return nil
	}
	_, err := x.m.eng.Renew(ctx, x.lease, x.m.opt.Lease)
	if err != nil && ctx.Err() == nil {
		x.m.report(x.r, err)
	}
	return err
}

// closeUpdates prevents later changes of the run by Update. If an Update is in progress, the engine
// decides who finishes the key: the transaction of the Update or the run.
func (x *run) closeUpdates() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = true
}

func (x *run) isSettled() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.settled
}

// end stores the response of a handler that has returned, and then sends it.
func (x *run) end() {
	x.closeUpdates()
	if x.answer != nil {
		x.stop()
		x.answer.send(x.w)
		return
	}
	canceled := x.work.Err() != nil
	silent := x.rec.kept.status == 0 && (x.undone || canceled)
	kept := x.rec.end()
	why := "the transaction of the request failed, and its handler has not answered"
	if x.rec.isShort(x.r.Method) {
		silent, why = true, "the handler's response is shorter than its Content-Length"
	}
	var err error
	switch {
	case x.rec.err != nil:
		x.stop()
		err = x.rec.err
	case x.settled:
		return
	case silent:
		err = x.fail(canceled)
	case !keeps(x.m.opt.Keep, kept.status, x.rec.late):
		err = x.release()
	default:
		err = x.finish(kept)
	}
	switch {
	case x.rec.direct: // it is sent
	case errors.Is(err, engine.ErrLeaseLost):
		x.m.refuseBusy(x.w, 0)
	case err != nil && !x.m.opt.FailOpen:
		x.m.refuseStore(x.w)
	case silent && keeps(x.m.opt.Keep, keptFailure.status, canceled):
		keptFailure.send(x.w)
	case silent && !canceled:
		refuse(x.w, http.StatusInternalServerError, problemFailed, why)
	case silent:
		refuse(x.w, http.StatusServiceUnavailable, problemCanceled, "the request was canceled: retry with the same key")
	default:
		kept.send(x.w)
	}
}

// overflow finishes the key before a response that is too large is sent. A response that releases
// its key is sent at once.
func (x *run) overflow() error {
	status := x.rec.kept.status
	if !keeps(x.m.opt.Keep, status, x.rec.late) {
		return nil
	}
	err := x.finish(&response{status: status, dropped: true})
	if err != nil && (!x.m.opt.FailOpen || errors.Is(err, engine.ErrLeaseLost)) {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.settled = true
	return nil
}

// keptFailure returns the result of a run without a complete response, if Options.Keep keeps its
// status.
var keptFailure = &response{status: http.StatusInternalServerError}

// fail ends a run without a complete response. canceled says that its context has ended.
func (x *run) fail(canceled bool) error {
	switch {
	case x.settled:
		x.stop()
		return nil
	case keeps(x.m.opt.Keep, keptFailure.status, canceled):
		return x.finish(keptFailure)
	}
	return x.release()
}

// ending returns a context for the end of the run, which does not end when the client has gone. It
// ends after the lease at the latest, when a retry can take the key over.
func (x *run) ending() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(x.r.Context()), x.patience())
}

// patience is how long the store may stall.
func (x *run) patience() time.Duration {
	if x.m.opt.FailOpen {
		return min(x.m.opt.Lease, failOpenAfter)
	}
	return x.m.opt.Lease
}

func (x *run) finish(kept *response) error {
	x.stop()
	ctx, cancel := x.ending()
	defer cancel()
	counter := x.m.quota
	if !x.isCounted {
		counter = nil
	}
	err := counter.Finish(ctx, x.m.eng, x.lease, kept.encodeFor(x.m.opt.KeepCredentials), x.tenant)
	if err != nil {
		x.m.report(x.r, err)
	}
	return err
}

func (x *run) release() error {
	x.stop()
	ctx, cancel := x.ending()
	defer cancel()
	err := x.m.eng.Release(ctx, x.lease)
	if err != nil {
		x.m.report(x.r, err)
	}
	return err
}
