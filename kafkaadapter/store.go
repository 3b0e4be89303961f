package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
)

// ErrUnprotected says that the store has failed, and that records are handled without claims until
// it is open again (Options.FailOpen). Ready wraps it, with the failure.
var ErrUnprotected = errors.New("hapax: the store has failed, and records are handled without claims until Options.FailOpen has opened it")

// A link is an engine with what the consumer has read from its store. It does not change.
type link struct {
	eng    *engine.Engine
	id     storage.Identity
	self   string // metadata of commits
	secret []byte // seals dead letters; it never leaves the store
}

func newLink(eng *engine.Engine, secret []byte) *link {
	id := eng.Identity()
	return &link{eng, id, authorOf(id).metadata(), secret}
}

// links hold the link to the store. It is replaced when the store has failed and is open again.
type links struct {
	failed chan struct{} // wakes reopenLoop

	mu      sync.Mutex // guards the rest
	current *link      // the last one there was; nil before the first
	away    error      // why there is none that works; nil if there is
}

func (s *links) get() (last *link, away error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current, s.away
}

func (s *links) set(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current, s.away = l, nil
}

// lose notes why the link does not work, and reports whether that is news.
func (s *links) lose(l *link, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != l || s.away != nil {
		return false
	}
	s.away = err
	select {
	case s.failed <- struct{}{}:
	default:
	}
	return true
}

// engine is the engine of the last link, nil if there was none.
func (c *Consumer) engine() *engine.Engine {
	if l, _ := c.links.get(); l != nil {
		return l.eng
	}
	return nil
}

func (c *Consumer) isAway() bool {
	_, away := c.links.get()
	return away != nil
}

// goesOn reports whether the consumer goes on without its store after err of the link's engine.
func (c *Consumer) goesOn(l *link, err error) bool {
	if c.opt.FailOpen == nil || !errors.Is(err, engine.ErrStopped) && !errors.Is(err, engine.ErrClosed) {
		return false
	}
	c.loseStore(l, err)
	return true
}

func (c *Consumer) loseStore(l *link, err error) {
	if c.links.lose(l, err) {
		c.opt.Telemetry.Logger.Error("the store has failed: records are handled without claims until it is open again", "group", c.opt.Group, "error", err)
	}
}

// connect links the consumer to its store before it reads anything.
func (c *Consumer) connect(ctx context.Context) error {
	l, _ := c.links.get()
	var eng *engine.Engine
	var err error
	if l != nil {
		eng = l.eng
	} else if eng, err = c.callFailOpen(ctx); err != nil {
		if ctx.Err() == nil {
			c.loseStore(nil, err)
		}
		return ctx.Err()
	}
	next, err := c.bindInTime(ctx, eng)
	switch {
	case err == nil:
		c.links.set(next)
		return nil
	case ctx.Err() == nil && c.goesOn(l, err):
		return nil
	}
	return err
}

// bindInTime makes a link, but for a store that hangs: Run ends when it is asked to.
func (c *Consumer) bindInTime(ctx context.Context, eng *engine.Engine) (*link, error) {
	type result struct {
		l   *link
		err error
	}
	bound := make(chan result, 1)
	go func() {
		l, err := c.bind(ctx, eng)
		bound <- result{l, err}
	}()
	select {
	case r := <-bound:
		return r.l, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// callFailOpen calls Options.FailOpen, and does not wait for it beyond ctx.
func (c *Consumer) callFailOpen(ctx context.Context) (*engine.Engine, error) {
	type result struct {
		eng *engine.Engine
		err error
	}
	opened := make(chan result, 1)
	go func() {
		eng, err := c.opt.FailOpen(ctx)
		if err == nil && eng == nil {
			err = fmt.Errorf("%w: Options.FailOpen returned neither an engine nor an error", ErrOption)
		}
		opened <- result{eng, err}
	}()
	select {
	case r := <-opened:
		return r.eng, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// reopenLoop opens the store again after it has failed.
func (c *Consumer) reopenLoop(ctx context.Context) {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = c.opt.Backoff.Min, c.opt.Backoff.Max
	var opened time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.links.failed:
		}
		if time.Since(opened) > c.opt.Backoff.Max { // a store that fails as soon as it is open is not opened without a pause
			pauses.Reset()
		}
		for done := false; !done; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pauses.NextBackOff()):
			}
			done = c.reopen(ctx)
		}
		opened = time.Now()
	}
}

// reopen opens the store, and has the partitions come back to it. It returns false if it is to be
// tried again.
func (c *Consumer) reopen(ctx context.Context) (done bool) {
	var l *link
	eng, err := c.callFailOpen(ctx)
	if err == nil {
		l, err = c.bindInTime(ctx, eng)
	}
	switch {
	case ctx.Err() != nil:
		return true
	case errors.Is(err, ErrScopeShared), errors.Is(err, ErrPinnedChanged): // it is not the store that was there
		c.fail(err)
		return true
	case err != nil:
		c.throttled(c.opt.Telemetry.Logger.Error, "the store cannot be opened; records are handled without claims, and it is tried again",
			topicPartition{}, "group", c.opt.Group, "error", err)
		return false
	}
	c.links.set(l)
	c.opt.Telemetry.Logger.Info("the store is open again: records are claimed", "group", c.opt.Group)
	for _, p := range c.partitions() {
		p.queue.nudge()
	}
	return true
}
