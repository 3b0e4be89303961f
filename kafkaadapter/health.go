package kafkaadapter

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Errors of Ready and Live. They are wrapped: test them with errors.Is.
var (
	// ErrNotReady is returned by Ready, with the reason.
	ErrNotReady = errors.New("hapax: the consumer is not ready")
	// ErrNotLive is returned by Live, with the reason.
	ErrNotLive = errors.New("hapax: the consumer is not live: restart the process")
)

// Ready returns nil while brokers answer, all topics exist, and the consumer is a member of its group
// and reads all partitions that are assigned to it: each has been looked up, is owned, and is not
// stopped, and the dead-letter topics exist and may be written to. A paused partition counts as read,
// and a member without partitions is ready. Otherwise the error wraps ErrNotReady, the StopError of
// each stopped partition, ErrDisconnected while no broker answers, and ErrUnprotected while records are
// handled without claims (Options.ReopenStore). It is logged once a minute as long as it lasts, and the
// gauge dedup_kafka_ready is 0. Ready asks no broker, and is safe for concurrent use.
func (c *Consumer) Ready() error {
	if c.shared.health.outcome.Load() != nil {
		return fmt.Errorf("%w: Run has returned", ErrNotReady)
	}
	var all []error
	if err := c.shared.disconnected(); err != nil {
		all = append(all, err)
	}
	if !c.shared.health.joined.Load() {
		all = append(all, fmt.Errorf("it has not joined the group %q yet", c.shared.opt.Group))
	}
	if n := c.shared.health.awaited.Load(); n > 0 {
		all = append(all, fmt.Errorf("the group's offsets of %d new partitions cannot be fetched yet: the coordinator is loading them, or a transaction that committed some is open", n))
	}
	if err := c.shared.health.letters.Load(); err != nil {
		all = append(all, *err)
	}
	if err := c.shared.health.topics.Load(); err != nil && *err != nil {
		all = append(all, *err)
	}
	_, away := c.shared.links.get()
	if away != nil {
		all = append(all, fmt.Errorf("%w: %w", ErrUnprotected, away))
	}
	for _, p := range c.parts.all() {
		switch s := p.status(); {
		case s.stop != nil:
			all = append(all, s.stop.copy())
		case s.state == ended:
			all = append(all, fmt.Errorf("%s is not read any more", p.tp()))
		case s.state == restoring:
			all = append(all, fmt.Errorf("%s is not read yet (%v): %.0f %% of its changelog are read", p.tp(), s.state, 100*p.store.progress.Ratio()))
		case s.state < publishing:
			all = append(all, fmt.Errorf("%s is not read yet (%v)", p.tp(), s.state))
		case s.state == unprotected && away == nil: // it comes back to the store at its next batch
			all = append(all, fmt.Errorf("%w: the store is open again; %s begins to use it with its next batch", ErrUnprotected, p.tp()))
		}
	}
	if len(all) > 0 {
		return fmt.Errorf("%w: %w", ErrNotReady, errors.Join(all...))
	}
	return nil
}

// Live returns an error if only a restart of the process can help: Run has returned, the store has
// failed and Options.ReopenStore is not set, or a handler still runs DrainTimeout after
// Route.HandlerTimeout ended its context. The error wraps ErrNotLive and the cause. The consumer is
// live before Run, and while it waits for brokers or dead letters. Live is safe for concurrent use.
func (c *Consumer) Live() error {
	if o := c.shared.health.outcome.Load(); o != nil {
		if *o == nil {
			return fmt.Errorf("%w: Run has returned", ErrNotLive)
		}
		return fmt.Errorf("%w: Run has returned: %w", ErrNotLive, *o)
	}
	if eng := c.shared.engine(); c.shared.opt.ReopenStore == nil && eng != nil && eng.Err() != nil {
		err := eng.Err()
		return fmt.Errorf("%w: %w", ErrNotLive, err)
	}
	for _, p := range c.parts.all() {
		if late := p.handlers.overdue(); late > c.shared.opt.DrainTimeout {
			return fmt.Errorf("%w: a handler of %s still runs %v after its context has ended", ErrNotLive, p.tp(), late.Round(time.Second))
		}
	}
	return nil
}

// ReadyHandler returns a handler for readiness probes: 200 while Ready returns nil, 503 with its
// error otherwise.
func (c *Consumer) ReadyHandler() http.Handler { return probe(c.Ready) }

// LiveHandler returns a handler for liveness probes: 200 while Live returns nil, 503 with its error
// otherwise.
func (c *Consumer) LiveHandler() http.Handler { return probe(c.Live) }

func probe(check func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		text := "ok"
		if err := check(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			text = err.Error()
		}
		_, _ = fmt.Fprintln(w, text) // the client may have disconnected
	})
}
