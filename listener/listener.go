package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/internal/quota"
	"github.com/hapax-dev/hapax/internal/renewal"
	"github.com/hapax-dev/hapax/internal/wait"
)

// Wrap returns a function that calls handle for messages that were not handled before, as the
// package documentation describes. It is safe for concurrent use if handle and Options.ID are. The
// caller closes eng after the last call has returned.
//
// The context of handle ends when that of the call does. It also ends, with engine.ErrLeaseLost as
// its cause, when another listener has taken the message over, because the lease could not be
// renewed in time: handle should stop its work then.
func Wrap[M any](eng *engine.Engine, handle func(ctx context.Context, message M) error, options Options[M]) (func(ctx context.Context, message M) error, error) {
	if handle == nil {
		return nil, errNil
	}
	receive, err := wrap(eng, func(ctx context.Context, message M) ([]byte, error) { return nil, handle(ctx, message) }, options)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, message M) error {
		_, err := receive(ctx, message)
		return err
	}, nil
}

// WrapResult is Wrap for a handler that has a result, up to limits.DataBytes. The result is kept
// with the claim, and exactly these bytes are returned for each duplicate, for as long as the claim
// lasts. A larger result is a failure of the handler. Options.AtMostOnce cannot be set: the claim
// is final before there is a result.
func WrapResult[M any](eng *engine.Engine, handle func(ctx context.Context, message M) (result []byte, err error), options Options[M]) (func(ctx context.Context, message M) (result []byte, err error), error) {
	if options.AtMostOnce {
		return nil, errors.New("hapax: listener: Options.AtMostOnce keeps no result: use Wrap")
	}
	return wrap(eng, handle, options)
}

var errNil = errors.New("hapax: listener: the engine or the handler is nil: give both, the engine from engine.Open")

func wrap[M any](eng *engine.Engine, handle func(context.Context, M) ([]byte, error), options Options[M]) (func(context.Context, M) ([]byte, error), error) {
	if eng == nil || handle == nil {
		return nil, errNil
	}
	o, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := o.checkWindow(eng); err != nil {
		return nil, err
	}
	messages, err := newMessages(o.Telemetry.Registerer)
	if err != nil {
		return nil, err
	}
	l := &listener[M]{Options: o, eng: eng, handle: handle, messages: messages.MustCurryWith(prometheus.Labels{"consumer_scope_id": label(o.Scope), "queue": label(o.Queue)})}
	for _, o := range outcomes { // an alert on the increase of a counter misses events that are counted before the series exists
		l.messages.WithLabelValues(string(o))
	}
	oldest, err := newCollector(o.Telemetry.Registerer)
	if err != nil {
		return nil, err
	}
	l.waits.open = make(map[*delivery]struct{})
	l.waits.log = o.Telemetry.Logger.With(slog.String("consumer_scope_id", o.Scope), slog.String("queue", o.Queue))
	oldest.add(o.Scope, o.Queue, &l.waits)
	l.quota = quota.New(eng, quota.Options{Scope: o.Scope, Window: o.Window, Max: o.MaxPerGroup, Clock: o.Clock})
	return l.receive, nil
}

type listener[M any] struct {
	Options  Options[M]
	eng      *engine.Engine
	handle   func(context.Context, M) ([]byte, error)
	messages *prometheus.CounterVec

	waits waits
	quota *quota.Quota
}

// receive judges one delivery.
func (l *listener[M]) receive(ctx context.Context, message M) ([]byte, error) {
	id := strings.Clone(l.Options.ID(message)) // the handler may change the message, of which the id may be a part
	ev := engine.Event{Scope: l.Options.Scope, ID: []byte(id), Window: l.Options.Window, Origin: engine.Origin{Topic: l.Options.Queue}}
	if l.Options.Fingerprint != nil {
		ev.Fingerprint = l.Options.Fingerprint(message)
	}
	if l.Options.Sent != nil {
		ev.Sent = l.Options.Sent(message)
	}
	if !l.Options.AtMostOnce {
		ev.Lease = l.Options.Lease
	}
	began := time.Now() // before the lease
	d := l.waits.begin(l.Options.Telemetry.IDs.Attr("correlation_id", id))
	defer d.end()
	r, err := l.claim(ctx, ev)
	switch r.Verdict {
	case engine.Claimed:
		if r.Lease == nil {
			return l.run(ctx, d, message)
		}
		return l.runLeased(ctx, d, message, id, r.Lease, began)
	case engine.Duplicate:
		l.count(duplicate)
		l.logDuplicate(ctx, id, &r.Record)
		return []byte(r.Record.Data), nil
	case engine.Pending, engine.InFlight:
		l.count(inProgress)
		return nil, &InProgressError{ID: id, LeaseEnd: r.Record.LeaseEnd, shown: l.Options.Telemetry.IDs.Text(id)}
	case engine.Mismatch:
		l.count(refused)
		return nil, fmt.Errorf("%w: %s", ErrMismatch, l.Options.Telemetry.IDs.Text(id))
	case engine.Failed:
		return l.notJudged(ctx, d, message, id, err)
	}
	l.count(refused)
	return nil, fmt.Errorf("hapax: listener: message %s is %v: check the clock of this machine", l.Options.Telemetry.IDs.Text(id), r.Verdict)
}

// claim claims the event. It gives up when the store stalls: with FailOpen early enough to handle the message.
func (l *listener[M]) claim(ctx context.Context, ev engine.Event) (engine.Result, error) {
	if l.Options.FailOpen {
		bound, cancel := wait.Bound(ctx, failOpenAfter)
		defer cancel()
		return l.eng.TryClaim(bound, ev)
	}
	bound, cancel := context.WithTimeout(ctx, max(l.Options.Lease, silence))
	defer cancel()
	r, err := l.eng.TryClaim(bound, ev)
	return r, stalled(ctx, bound, err)
}

// stalled wraps err in ErrStalled if bound has ended, and not ctx.
func stalled(ctx, bound context.Context, err error) error {
	if err != nil && bound.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", ErrStalled, err)
	}
	return err
}

// call calls the handler.
func (l *listener[M]) call(ctx context.Context, d *delivery, message M) ([]byte, error) {
	d.awaits(forHandler)
	defer d.awaits(forStore)
	return l.handle(ctx, message)
}

func (l *listener[M]) logDuplicate(ctx context.Context, id string, first *engine.ClaimRecord) {
	if !l.Options.Telemetry.Logger.Enabled(ctx, slog.LevelDebug) {
		return
	}
	l.Options.Telemetry.Logger.LogAttrs(ctx, slog.LevelDebug, "listener: duplicate message skipped", l.Options.Telemetry.IDs.Attr("correlation_id", id),
		slog.String("consumer_scope_id", l.Options.Scope), slog.String("queue", l.Options.Queue),
		slog.Time("first_seen", first.FirstSeen), slog.String("first_queue", first.Origin.Topic))
}

// notJudged returns the error for a message that the engine could not judge.
func (l *listener[M]) notJudged(ctx context.Context, d *delivery, message M, id string, err error) ([]byte, error) {
	var bad *engine.EventError
	switch {
	case errors.As(err, &bad):
		l.count(refused)
	case ctx.Err() != nil: // the queue shuts down
		l.count(storeError)
	case l.Options.FailOpen:
		l.count(failOpen)
		l.warnOpen(ctx, id, err)
		return l.call(ctx, d, message)
	default:
		l.count(storeError)
	}
	return nil, fmt.Errorf("hapax: listener: message %s could not be claimed: %w", l.Options.Telemetry.IDs.Text(id), err)
}

// run calls the handler after its claim has become final.
func (l *listener[M]) run(ctx context.Context, d *delivery, message M) ([]byte, error) {
	became := failed
	defer func() { l.count(became) }() // also after a panic
	result, err := l.call(ctx, d, message)
	if err == nil {
		became = handled
	}
	return result, err
}

// runLeased calls the handler, renews the lease, which counts from began at the earliest, while it runs, and then ends
// the claim.
func (l *listener[M]) runLeased(ctx context.Context, d *delivery, message M, id string, lease *engine.Lease, began time.Time) ([]byte, error) {
	kept := renewal.Lease{Of: l.Options.Lease, From: began, Renew: func(ctx context.Context) error {
		_, err := l.eng.Renew(ctx, lease, l.Options.Lease)
		return err
	}}
	group, ok, err := l.enter(ctx, message, id, lease, &kept)
	if err != nil {
		return nil, err
	}
	if ok {
		defer l.quota.Leave(group)
	}
	work, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	stop := kept.Keep(ctx, func(err error) bool {
		// Any other error comes from the store, and Finish or Release return it too.
		isLost := errors.Is(err, engine.ErrLeaseLost)
		if isLost {
			lost(err)
		}
		return isLost
	})
	ctx = context.WithoutCancel(ctx) // the claim must end even if the queue shuts down
	returned := false
	defer func() {
		if !returned { // a panic: if the claim cannot be released, it lasts until the end of its lease
			stop()
			_ = l.release(ctx, id, lease, nil)
		}
	}()
	result, err := l.call(work, d, message)
	returned = true
	stop()
	if err == nil && len(result) > limits.DataBytes {
		err = fmt.Errorf("hapax: listener: the result of message %s has %d bytes, the limit is %d: store it elsewhere and return a reference", l.Options.Telemetry.IDs.Text(id), len(result), limits.DataBytes)
	}
	if err != nil {
		return nil, l.release(ctx, id, lease, err)
	}
	if err := l.finish(ctx, id, group, ok, lease, result); err != nil {
		return nil, err
	}
	return result, nil
}

// enter returns the group of a message, and whether it counts there, once the lease lasts long enough for the handler.
// If the group has too many messages, it releases the claim.
func (l *listener[M]) enter(ctx context.Context, message M, id string, lease *engine.Lease, kept *renewal.Lease) (group string, ok bool, err error) {
	bound, cancel := context.WithTimeout(ctx, l.patience()) // the claim is not renewed meanwhile
	defer cancel()
	if l.quota != nil {
		group = strings.Clone(l.Options.Group(message))
		if ok, err = l.quota.Enter(bound, group); !ok && err == nil {
			err = ErrTooMany
		}
	}
	if err == nil {
		if err = kept.Ensure(bound); err == nil {
			return group, ok, nil
		}
		if ok {
			l.quota.Leave(group)
		}
	}
	switch err = stalled(ctx, bound, err); {
	case errors.Is(err, ErrTooMany):
	case errors.Is(err, engine.ErrLeaseLost):
		l.count(leaseLost)
		return "", false, fmt.Errorf("listener: message %s was claimed too late: %w", l.Options.Telemetry.IDs.Text(id), err)
	case l.Options.FailOpen && ctx.Err() == nil:
		l.warnOpen(ctx, id, err)
		return group, false, nil
	}
	return "", false, l.release(context.WithoutCancel(ctx), id, lease, fmt.Errorf("%w: %s", err, l.Options.Telemetry.IDs.Text(id)))
}

// patience is how long the end of a claim may take while the store stalls: at most the lease, after
// which another listener can take the claim over.
func (l *listener[M]) patience() time.Duration {
	if l.Options.FailOpen {
		return min(failOpenAfter, l.Options.Lease)
	}
	return l.Options.Lease
}

// release releases the claim of a message whose handler failed with cause, and returns cause.
func (l *listener[M]) release(ctx context.Context, id string, lease *engine.Lease, cause error) error {
	l.count(failed)
	ctx, cancel := context.WithTimeout(ctx, l.patience())
	defer cancel()
	if err := l.eng.Release(ctx, lease); err != nil {
		return errors.Join(cause, fmt.Errorf("hapax: listener: message %s could not be released, it waits for the end of its lease: %w", l.Options.Telemetry.IDs.Text(id), err))
	}
	return cause
}

// finish makes the claim of a message that was handled done, with its result. The message is counted in its group if
// counts is set.
func (l *listener[M]) finish(ctx context.Context, id, group string, counts bool, lease *engine.Lease, result []byte) error {
	ending, cancel := context.WithTimeout(ctx, l.patience())
	defer cancel()
	counter := l.quota
	if !counts {
		counter = nil
	}
	err := counter.Finish(ending, l.eng, lease, result, group)
	switch {
	case err == nil:
		l.count(handled)
		return nil
	case errors.Is(err, engine.ErrLeaseLost):
		l.count(leaseLost)
	case l.Options.FailOpen:
		l.count(failOpen)
		l.warnOpen(ctx, id, err)
		return nil
	default:
		l.count(storeError)
	}
	return fmt.Errorf("hapax: listener: message %s was handled, and its claim could not be finished: %w", l.Options.Telemetry.IDs.Text(id), err)
}

func (l *listener[M]) warnOpen(ctx context.Context, id string, err error) {
	l.Options.Telemetry.Logger.LogAttrs(ctx, slog.LevelWarn, "listener: message handled although the store failed", l.Options.Telemetry.IDs.Attr("correlation_id", id),
		slog.String("consumer_scope_id", l.Options.Scope), slog.String("queue", l.Options.Queue), slog.Any("error", err))
}

func (l *listener[M]) count(o outcome) { l.messages.WithLabelValues(string(o)).Inc() }
