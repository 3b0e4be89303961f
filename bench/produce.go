package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// withLog makes a topic with the log, on brokers or on one inside this process, and calls do with
// it and the directory of the run's stores. Then it removes the temporary data.
func (c *Common) withLog(ctx context.Context, seeds []string, log *topicLog, parts int, do func(dir string, p *produced) error) error {
	return withBroker(ctx, seeds, c.Dir, func(dir string, b *broker) (err error) {
		p, err := b.produce(ctx, log, parts, c.Progress)
		if err != nil {
			return err
		}
		defer p.remove(&err)
		return do(dir, p)
	})
}

// withBroker makes the directory of the run's stores, connects to brokers, and calls do with both.
func withBroker(ctx context.Context, seeds []string, dir string, do func(dir string, b *broker) error) error {
	return inPlace(dir, func(dir string) error {
		b, err := openBroker(ctx, seeds)
		if err != nil {
			return err
		}
		defer b.close()
		return do(dir, b)
	})
}

// A produced topic holds a whole log.
type produced struct {
	*topic
	log      *topicLog
	ends     []int64 // the offset after the last record of each partition
	distinct uint64
	took     time.Duration
}

// produce sends a whole log to a new topic. On its return, the brokers have all of it.
func (b *broker) produce(ctx context.Context, log *topicLog, parts int, progress Progress) (p *produced, err error) {
	t, err := b.newTopic(ctx, parts)
	if t == nil {
		return nil, err
	}
	p = &produced{topic: t, log: log}
	if err == nil {
		err = p.send(ctx, progress)
	}
	if err == nil {
		p.ends, err = t.ends(ctx)
	}
	if sent := sum(p.ends); err == nil && sent != uint64(log.N) {
		err = fmt.Errorf("%d records were sent, the brokers have %d", log.N, sent)
	}
	if err != nil {
		t.remove(&err)
		return nil, err
	}
	return p, nil
}

func (p *produced) send(ctx context.Context, progress Progress) error {
	start := time.Now()
	var once sync.Once
	failed := make(chan error, 1)
	acked := func(_ *kgo.Record, err error) {
		if err != nil {
			once.Do(func() { failed <- fmt.Errorf("producing to %s: %w", p.Name, err) })
		}
	}
	seq := p.log.begin()
	for i := range p.log.N {
		r := seq.record()
		r.Topic = p.Name
		p.broker.client.Produce(ctx, r, acked)
		if i%4096 == 0 {
			progress.tell("produce", uint64(i), uint64(p.log.N))
		}
		if ctx.Err() != nil || len(failed) > 0 {
			break
		}
	}
	if err := p.broker.client.Flush(ctx); err != nil {
		return err
	}
	p.distinct, p.took = seq.events(), time.Since(start)
	select {
	case err := <-failed:
		return err
	default:
		return ctx.Err()
	}
}
