package kafkaadapter

import (
	"context"
	"errors"
	"fmt"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/untrusted"
)

// ErrUnprotected means that the store has failed, and that records are handled without claims until
// it is open again (Options.ReopenStore). Ready returns it with the failure.
var ErrUnprotected = errors.New("hapax: records are handled without claims, because the store has failed (Options.ReopenStore)")

// goesOn reports whether the consumer continues without its store after err of the link's engine.
func (c *shared) goesOn(l *link, err error) bool {
	if c.opt.ReopenStore == nil || !errors.Is(err, engine.ErrStopped) && !errors.Is(err, engine.ErrClosed) {
		return false
	}
	c.loseStore(l, err)
	return true
}

func (c *shared) loseStore(l *link, err error) {
	if c.links.lose(l, err) {
		c.opt.Telemetry.Logger.Error("the store has failed: records are handled without claims until it is open again", "group", c.opt.Group, "error", err)
	}
}

// callReopenStore calls Options.ReopenStore, and does not wait for it beyond ctx.
func (c *shared) callReopenStore(ctx context.Context) (*engine.Engine, error) {
	type result struct {
		eng *engine.Engine
		err error
	}
	opened := make(chan result, 1)
	go func() {
		eng, err := c.opt.ReopenStore(ctx)
		if err == nil && eng == nil {
			err = fmt.Errorf("%w: Options.ReopenStore returned neither an engine nor an error", ErrOption)
		}
		opened <- result{eng, untrusted.Error(err)}
	}()
	select {
	case r := <-opened:
		return r.eng, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
