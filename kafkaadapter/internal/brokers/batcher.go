package brokers

import (
	"context"
	"sync"
)

// A Batcher sends one batch of questions at a time. Questions that are asked meanwhile join the
// next batch. The zero value is ready, and is safe for concurrent use.
type Batcher[Q, A any] struct {
	Most int // questions of a batch; 0: no limit

	mu      sync.Mutex // guards the rest; not held while a batch is sent
	waiting []*Question[Q, A]
	sending bool
}

// A Question is one of a batch. The sender sets Answer or Err.
type Question[Q, A any] struct {
	Ask    Q
	Answer A
	Err    error

	ctx  context.Context
	done chan struct{}
}

// Ask returns the answer that send gives to q. The batch does not end with ctx: others wait for it.
// A question whose ctx has ended before its batch begins is left out.
func (b *Batcher[Q, A]) Ask(ctx context.Context, q Q, send func([]*Question[Q, A])) (A, error) {
	x := &Question[Q, A]{Ask: q, ctx: ctx, done: make(chan struct{})}
	b.mu.Lock()
	b.waiting = append(b.waiting, x)
	if !b.sending {
		b.sending = true
		go b.run(send)
	}
	b.mu.Unlock()
	select {
	case <-x.done:
		return x.Answer, x.Err
	case <-ctx.Done():
		var none A
		return none, ctx.Err()
	}
}

func (b *Batcher[Q, A]) run(send func([]*Question[Q, A])) {
	for batch := b.next(); len(batch) > 0; batch = b.next() {
		send(batch)
		for _, x := range batch {
			close(x.done)
		}
	}
}

// next takes the next batch. The run ends if it is empty.
func (b *Batcher[Q, A]) next() (batch []*Question[Q, A]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := 0
	for _, x := range b.waiting {
		if b.Most > 0 && len(batch) == b.Most {
			break
		}
		if taken++; x.ctx.Err() == nil {
			batch = append(batch, x)
		}
	}
	b.waiting = b.waiting[taken:]
	b.sending = len(batch) > 0
	return batch
}
