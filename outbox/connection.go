package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A connection is the Kafka client of a session. Its methods publish, and determine what was
// published.
type connection struct {
	shared   *shared
	client   client    // nil: not made yet
	progress *progress // exactly once: set after the progress topic was read

	leftOver []*sending  // earlier batches of which the client still has messages
	released []partition // partitions whose hold has ended in this batch
}

// connect makes the client if there is none.
func (c *connection) connect() error {
	if c.client != nil {
		return nil
	}
	options := clientOptions(&c.shared.opt, c.shared.eng.Identity(), c.shared.limits.of, &c.shared.holds)
	client, err := c.shared.dial(append(options, kgo.WithHooks(&c.shared.reach))...)
	if err != nil {
		return fmt.Errorf("hapax: outbox: making a client: %w", err)
	}
	c.client = client
	return nil
}

// abandon closes the client, which ends all requests in flight. Run waits for this before it
// returns.
func (c *connection) abandon() {
	if c.client == nil {
		return
	}
	client := c.client
	c.client = nil
	c.shared.closing.Go(client.Close)
}

// during runs fn and renews the lease while fn runs. If a renewal fails or fn takes longer than
// limit, during abandons the client and cancels the context of fn. It returns after fn has
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
			return giveUp(fmt.Errorf("hapax: outbox: the broker did not answer within %v", limit))
		case <-renew:
			if err := c.shared.lease.ensure(c.shared.eng, 0); err != nil {
				return giveUp(err)
			}
		}
	}
}
