package kafkaadapter

import (
	"context"
	"sync"
	"time"
)

// openings has requests to fetch partitions from given offsets. The partitions' goroutines make
// them, and the poll loop executes them while the group cannot rebalance, because only then the
// client's offsets can be set.
type openings struct {
	mu     sync.Mutex // guards the rest
	asked  map[*partition]opening
	cancel context.CancelFunc // ends the running poll
}

// An opening has the offset from which the client should fetch, and the id of the topic.
type opening struct {
	offset  int64
	topicID [16]byte
}

// ask requests that a partition be fetched from an offset. Its queue is closed until then.
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

// until returns the context of a poll. It ends when a partition requests to be opened; shortly, if
// there is a request already or the poll is brief; and at the latest when the client must be woken.
func (o *openings) until(ctx context.Context, brief bool) (context.Context, context.CancelFunc) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if brief || len(o.asked) > 0 {
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

// wakeEvery is how often the client's fetch loops are woken. A loop that is started while offsets
// are set twice can miss the second start, and would wait until something else wakes it (kgo
// v1.22.2, source.loopFetch: hardFinish after incWorker).
const wakeEvery = time.Second
