package kafkaadapter

import (
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
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
// already has.
func (o *openings) until(ctx context.Context) (context.Context, context.CancelFunc) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.asked) > 0 {
		return context.WithTimeout(ctx, openAgain)
	}
	ctx, o.cancel = context.WithCancel(ctx)
	return ctx, o.cancel
}

func (o *openings) take() map[*partition]opening {
	o.mu.Lock()
	defer o.mu.Unlock()
	asked := o.asked
	o.asked = nil
	return asked
}

// open asks for a partition to be fetched from an offset. Until that is done its queue is closed.
func (c *Consumer) open(p *partition, at opening) {
	p.opened = true
	c.openings.ask(p, at)
}

// openPending opens the partitions that ask for it. Those that the client does not have yet ask
// again: it gets an assignment a moment after adjust returned.
func (c *Consumer) openPending() {
	asked := c.openings.take()
	if len(asked) == 0 {
		return
	}
	if c.opt.Membership.isPinned() {
		for p, at := range asked {
			if c.isAssigned(p) {
				c.openPinned(p, at)
				c.opened(p, at)
			}
		}
		return
	}
	seek, aside := make(map[string]map[int32]kgo.EpochOffset), make(map[string]map[int32]kgo.EpochOffset)
	for p, at := range asked {
		if !c.isAssigned(p) {
			delete(asked, p)
		} else if p.fetched || p.fetchAt != at.offset {
			put(seek, p, at.offset)
			put(aside, p, at.offset+1)
		}
	}
	var set map[string]map[int32]kgo.EpochOffset
	if len(seek) > 0 {
		c.client.SetOffsets(aside) // the client would ignore the offset after the last record that it has returned
		c.client.SetOffsets(seek)
		set = c.client.CommittedOffsets()
	}
	for p, at := range asked {
		if _, ok := seek[p.pos.Topic][p.pos.Partition]; ok {
			if got, ok := set[p.pos.Topic][p.pos.Partition]; !ok || got.Offset != at.offset {
				c.openings.ask(p, at)
				continue
			}
		}
		c.opened(p, at)
	}
}

// opened lets the records of a partition come that the client fetches from the right offset.
func (c *Consumer) opened(p *partition, at opening) {
	p.fetched, p.fetchID = true, at.topicID
	p.queue.start(at.offset)
	c.client.ResumeFetchPartitions(p.only())
}

func put(offsets map[string]map[int32]kgo.EpochOffset, p *partition, offset int64) {
	if offsets[p.pos.Topic] == nil {
		offsets[p.pos.Topic] = make(map[int32]kgo.EpochOffset)
	}
	offsets[p.pos.Topic][p.pos.Partition] = kgo.EpochOffset{Epoch: -1, Offset: offset}
}
