package kafkaadapter

import (
	"context"
	"sync"
	"time"
)

// openings are the partitions that the client is to fetch from a given offset. Their goroutines ask
// for it, and the poll loop does it while the group cannot rebalance: the client's offsets may be
// set only then.
type openings struct {
	mu     sync.Mutex // guards the rest
	asked  map[*partition]opening
	cancel context.CancelFunc // ends the poll that runs
}

// An opening says where the client is to fetch, and from which topic of that name.
type opening struct {
	offset  int64
	topicID [16]byte
}

// ask asks for a partition to be fetched from an offset. Until that is done its queue is closed.
func (o *openings) ask(p *partition, at opening) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.asked == nil {
		o.asked = make(map[*partition]opening)
	}
	o.asked[p] = at
	if o.cancel != nil {
		o.cancel()
	}
}

func (o *openings) any() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.asked) > 0
}

// until returns the context of a poll. It ends when a partition asks to be opened; soon, if one
// already has; and in any case when the client is to be woken again.
func (o *openings) until(ctx context.Context) (context.Context, context.CancelFunc) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.asked) > 0 {
		return context.WithTimeout(ctx, openAgain)
	}
	ctx, o.cancel = context.WithTimeout(ctx, wakeEvery)
	return ctx, o.cancel
}

func (o *openings) take() map[*partition]opening {
	o.mu.Lock()
	defer o.mu.Unlock()
	asked := o.asked
	o.asked = nil
	return asked
}

// openAgain is the time after which the poll loop tries again to open partitions that the client
// does not have yet.
const openAgain = 5 * time.Millisecond
