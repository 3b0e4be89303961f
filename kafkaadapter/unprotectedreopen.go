package kafkaadapter

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/hapax-dev/hapax/internal/wait"
)

// reopenLoop opens the store again after it has failed.
func (b *binder) reopenLoop(ctx context.Context) {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = b.shared.opt.backoff.Min, b.shared.opt.backoff.Max
	var opened time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.shared.links.failed:
		}
		if time.Since(opened) > b.shared.opt.backoff.Max { // a store that fails as soon as it is open is not opened without a pause
			pauses.Reset()
		}
		for done := false; !done; {
			if wait.For(ctx, pauses.NextBackOff()) != nil {
				return
			}
			done = b.reopen(ctx)
		}
		opened = time.Now()
	}
}

// reopen opens the store, and wakes the partitions so that they use it. It returns false if it must
// be tried again.
func (b *binder) reopen(ctx context.Context) (done bool) {
	var l *link
	eng, err := b.shared.callReopenStore(ctx)
	if err == nil {
		l, err = b.bindInTime(ctx, eng)
	}
	switch {
	case ctx.Err() != nil:
		return true
	case errors.Is(err, ErrScopeShared), errors.Is(err, ErrPinnedChanged): // it is a different store
		b.shared.fail(err)
		return true
	case err != nil:
		b.shared.throttled(b.shared.opt.Telemetry.Logger.Error, "the store cannot be opened; records are handled without claims, and it is tried again",
			topicPartition{}, "group", b.shared.opt.Group, "error", err)
		return false
	}
	b.own(eng)
	b.shared.links.set(l)
	b.shared.opt.Telemetry.Logger.Info("the store is open again: records are claimed", "group", b.shared.opt.Group)
	for _, p := range b.parts.all() {
		p.queue.Wake()
	}
	return true
}
