package idempotency

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/quota"
	"github.com/hapax-dev/hapax/internal/wait"
)

type middleware struct {
	eng   *engine.Engine
	opt   Options
	quota *quota.Quota
}

// New returns a middleware that runs the requests of each idempotency key once. It may wrap several
// handlers, and these are safe for concurrent use. The caller closes the engine after the server
// has shut down.
func New(eng *engine.Engine, options Options) (func(http.Handler) http.Handler, error) {
	if eng == nil {
		return nil, errors.New("hapax: idempotency: the engine is nil: open one with engine.Open, and check its error")
	}
	o, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := o.checkRetention(eng); err != nil {
		return nil, err
	}
	limit := quota.New(eng, quota.Options{Scope: o.Scope, Window: o.Retention, Max: o.MaxKeysPerTenant, Clock: o.Clock})
	m := &middleware{eng: eng, opt: o, quota: limit}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.receive(w, r, next) })
	}, nil
}

var errParsed = errors.New("hapax: idempotency: an outer handler has parsed the body as multipart/form-data, so that it cannot be compared with that of the first request: call the middleware before it")

func (m *middleware) receive(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !slices.Contains(m.opt.Methods, r.Method) {
		m.serve(w, r, next)
		return
	}
	key, err := requestKey(r.Header, m.opt.Header)
	switch {
	case errors.Is(err, errNoKey) && m.opt.Optional:
		m.serve(w, r, next)
		return
	case errors.Is(err, errNoKey):
		refuse(w, http.StatusBadRequest, problemNoKey, err.Error())
		return
	case err != nil:
		refuse(w, http.StatusBadRequest, problemKey, err.Error())
		return
	}
	tenant, err := m.tenant(r)
	if err != nil {
		m.refuseTenant(w, r, err)
		return
	}
	if r.MultipartForm != nil {
		m.report(r, errParsed)
		refuse(w, http.StatusInternalServerError, problemBody, "the body of the request cannot be compared")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, m.opt.MaxRequestBytes))
	if err != nil {
		refuseBody(w, err)
		return
	}
	ev := m.event(r, tenant, key, body)
	r = r.WithContext(r.Context()) // a copy: the caller's request keeps its body
	r.Body = io.NopCloser(bytes.NewReader(body))
	m.answer(w, r, tenant, ev, next)
}

// claim claims the key of a request. While another request with the key is in progress, claim waits
// for it, up to Options.Wait. It also returns when the last attempt began.
func (m *middleware) claim(ctx context.Context, ev engine.Event) (engine.Result, time.Time, error) {
	const shortest, longest = 10 * time.Millisecond, 250 * time.Millisecond
	end := time.Now().Add(m.opt.Wait)
	for pause := shortest; ; pause = min(2*pause, longest) {
		began := time.Now()
		res, err := m.claimOnce(ctx, ev)
		busy := res.Verdict == engine.Pending || res.Verdict == engine.InFlight
		if left := time.Until(end); err != nil || !busy || left <= 0 || wait.For(ctx, min(pause, left)) != nil {
			return res, began, err
		}
	}
}

// claimOnce claims the key. With FailOpen it gives up early enough to run the handler.
func (m *middleware) claimOnce(ctx context.Context, ev engine.Event) (engine.Result, error) {
	if m.opt.FailOpen {
		var cancel context.CancelFunc
		ctx, cancel = wait.Bound(ctx, failOpenAfter)
		defer cancel()
	}
	return m.eng.TryClaim(ctx, ev)
}

// answer claims the key of a request and acts on the verdict.
func (m *middleware) answer(w http.ResponseWriter, r *http.Request, tenant string, ev engine.Event, next http.Handler) {
	res, began, err := m.claim(r.Context(), ev)
	if err != nil {
		m.report(r, err)
		if _, bad := errors.AsType[*engine.EventError](err); bad { // the store has not failed, so FailOpen does not apply
			refuse(w, http.StatusInternalServerError, problemUnjudged, "the "+m.opt.Header+" cannot be judged")
			return
		}
		if m.opt.FailOpen && r.Context().Err() == nil { // otherwise the request has ended, not the store failed
			m.serve(w, r, next)
			return
		}
		m.refuseStore(w)
		return
	}
	switch res.Verdict {
	case engine.Claimed:
		m.run(w, r, tenant, res.Lease, began, next)
	case engine.Duplicate:
		m.replay(w, r, res.Record.Data)
	case engine.Mismatch:
		refuse(w, http.StatusUnprocessableEntity, problemMismatch, "the "+m.opt.Header+" was used for a different request: send a new key")
	case engine.Pending:
		m.refuseBusy(w, res.Record.LeaseEnd.Sub(m.opt.Clock()))
	case engine.InFlight: // a transaction of the application holds the event
		m.refuseBusy(w, 0)
	default:
		m.report(r, fmt.Errorf("hapax: idempotency: the key is %v: check the clock of this machine", res.Verdict))
		m.refuseStore(w)
	}
}

// run runs the handler unless the tenant has too many keys. The lease counts from began at the earliest.
func (m *middleware) run(w http.ResponseWriter, r *http.Request, tenant string, lease *engine.Lease, began time.Time, next http.Handler) {
	x := newRun(m, w, r, tenant, lease, began)
	ok, err := x.enter()
	if x.isCounted {
		defer m.quota.Leave(tenant)
	}
	switch {
	case ok:
		x.serve(next)
		return
	case err == nil:
		_ = x.release() // reported
		refuse(w, http.StatusTooManyRequests, problemTooMany, "the caller has used too many keys: wait until earlier ones expire")
		return
	case errors.Is(err, engine.ErrLeaseLost):
		m.refuseBusy(w, 0)
		return
	}
	_ = x.release() // reported
	m.refuseStore(w)
}

// enter reports whether the handler may run: its tenant has not too many keys, and the lease lasts. With FailOpen it
// may also run if the store does not say so in time.
func (x *run) enter() (ok bool, err error) {
	ctx, cancel := context.WithTimeout(x.r.Context(), x.patience()) // nothing renews the lease meanwhile
	defer cancel()
	if ok, err = x.m.quota.Enter(ctx, x.tenant); ok {
		x.isCounted = true
		err = x.kept.Ensure(ctx)
	}
	if err != nil {
		x.m.report(x.r, err)
		return x.m.opt.FailOpen && !errors.Is(err, engine.ErrLeaseLost) && x.r.Context().Err() == nil, err
	}
	return ok, nil
}

func (m *middleware) replay(w http.ResponseWriter, r *http.Request, data string) {
	kept, err := decodeResponse(data)
	if err != nil {
		m.report(r, err)
		m.refuseStore(w)
		return
	}
	w.Header().Set(ReplayedHeader, "true")
	if kept.dropped {
		refuse(w, http.StatusConflict, problemDropped, "the request was run and answered with status "+strconv.Itoa(kept.status)+
			"; the response was too large to keep: do not retry")
		return
	}
	kept.sendAccepted(w, r.Header)
}

func (m *middleware) tenant(r *http.Request) (string, error) {
	if m.opt.Tenant == nil {
		return "", nil
	}
	tenant, err := m.opt.Tenant(r)
	if err == nil && len(tenant) > MaxTenantBytes {
		err = errors.New("hapax: idempotency: Options.Tenant returned more than 255 bytes: return a shorter name or a hash")
	}
	return tenant, err
}

// event returns the event to claim. Its ID is the length of the tenant, the tenant and the key.
func (m *middleware) event(r *http.Request, tenant, key string, body []byte) engine.Event {
	id := append(appendBytes(nil, tenant), key...)
	secret := m.opt.Secret
	if len(secret) == 0 {
		secret = id
	}
	return engine.Event{
		Scope: m.opt.Scope, ID: id, Window: m.opt.Retention, Lease: m.opt.Lease,
		Fingerprint: fingerprint(r, secret, m.opt.Fingerprint(r, body)), Origin: engine.Origin{Topic: originTopic},
	}
}

func (m *middleware) report(r *http.Request, err error) {
	if m.opt.OnError != nil {
		m.opt.OnError(r, err)
	}
}

func (m *middleware) refuseTenant(w http.ResponseWriter, r *http.Request, err error) {
	m.report(r, err)
	status := http.StatusInternalServerError
	if se, ok := errors.AsType[*StatusError](err); ok {
		if own := se.Status; own >= 400 && own <= 599 { // read once
			status = own
		}
	}
	refuse(w, status, problemTenant, "the tenant of the request cannot be determined")
}

func refuseBody(w http.ResponseWriter, err error) {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		refuse(w, http.StatusRequestEntityTooLarge, problemTooLarge, "the body has more than "+strconv.FormatInt(tooLarge.Limit, 10)+" bytes")
		return
	}
	refuse(w, http.StatusBadRequest, problemBody, "the body cannot be read")
}

func (m *middleware) refuseBusy(w http.ResponseWriter, wait time.Duration) {
	retryAfter(w, wait)
	refuse(w, http.StatusConflict, problemBusy, "a request with this "+m.opt.Header+" is in progress: retry after the time in Retry-After")
}

func (m *middleware) refuseStore(w http.ResponseWriter) {
	retryAfter(w, m.opt.Lease)
	refuse(w, http.StatusServiceUnavailable, problemUnavailable, "the store of idempotency keys is unavailable: retry with the same key")
}

// retryAfter returns the time in whole seconds, rounded up, at least one.
func retryAfter(w http.ResponseWriter, wait time.Duration) {
	seconds := max(1, int64((wait+time.Second-1)/time.Second))
	w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
}
