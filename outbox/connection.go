package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A connection is the Kafka client of a session. Its methods publish, and determine what was
// published.
type connection struct {
	shared   *shared
	client   client    // nil: not made yet
	progress *progress // of the exactly-once relay, after it was read

	leftOver []*sending  // those of earlier batches whose messages the client still has
	released []partition // whose hold has ended in this batch
}

// connect makes the client unless there is one.
func (c *connection) connect() error {
	if c.client != nil {
		return nil
	}
	client, err := c.shared.dial(clientOptions(&c.shared.opt, c.shared.eng.Identity(), c.shared.limits.of, &c.shared.holds)...)
	if err != nil {
		return fmt.Errorf("outbox: making a client: %w", err)
	}
	c.client = client
	return nil
}

// abandon closes the client, and with it all requests in flight. Run waits for that at its end.
func (c *connection) abandon() {
	if c.client == nil {
		return
	}
	client := c.client
	c.client = nil
	c.shared.closing.Go(client.Close)
}

// during runs fn, which takes long, and renews the lease meanwhile. If that fails, or fn takes
// longer than limit, the client is abandoned and the context of fn ends; during returns when fn has
// returned.
func (c *connection) during(ctx context.Context, limit time.Duration, fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	over, stopOver := c.shared.opt.Clock.After(limit)
	defer stopOver()
	giveUp := func(why error) error {
		cancel()
		c.abandon()
		return errors.Join(why, <-done)
	}
	for {
		renew, stopRenew := c.shared.opt.Clock.After(c.shared.lease.untilRenewal())
		select {
		case err := <-done:
			stopRenew()
			return err
		case <-over:
			stopRenew()
			return giveUp(fmt.Errorf("outbox: the broker did not answer within %v", limit))
		case <-renew:
			if err := c.shared.lease.ensure(c.shared.eng, 0); err != nil {
				return giveUp(err)
			}
		}
	}
}
