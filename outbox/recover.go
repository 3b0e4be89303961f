package outbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/zeebo/xxh3"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/entry"
)

// recoverTime bounds one attempt to determine what was published, and stableTime the part of it in
// which other transactions must end.
const (
	recoverTime = time.Minute
	stableTime  = recoverTime / 2
)

// recover ends the transaction that an earlier relay of this store has left open in Kafka, and then
// removes the published entries from the store, and returns their number. The order matters: when the progress topic is read,
// no open transaction can commit any more.
func (c *connection) recover(ctx context.Context) (removed int, err error) {
	c.abandon()
	if err := c.connect(); err != nil {
		return 0, err
	}
	client := c.client
	var p *progress
	var entries []listed
	err = c.during(ctx, recoverTime, func(ctx context.Context) (err error) {
		if _, _, err = client.ProducerID(ctx); err != nil {
			return fmt.Errorf("outbox: getting a producer id: %w", err)
		}
		p, entries, err = c.readProgress(ctx)
		return err
	})
	if err != nil {
		c.abandon()
		return 0, err
	}
	c.progress = p
	return c.remove(ctx, entries)
}

// remove removes the listed entries that the store still has, and returns their number.
func (c *connection) remove(ctx context.Context, entries []listed) (removed int, err error) {
	change := &change{put: []engine.KeyValue{c.progress.keyValue()}}
	for _, l := range entries {
		value, found, err := c.eng.In(entry.Space).Get(ctx, l.key)
		if err != nil {
			return 0, err
		}
		if !found {
			continue
		}
		i, err := newItem(engine.KeyValue{Key: l.key, Value: value})
		if err != nil {
			return 0, err
		}
		if xxh3.HashString(i.ID) == l.hash {
			change.remove(i)
			change.gone.Entries++
		}
	}
	if err := c.lease.update(ctx, c.eng, change.apply); err != nil {
		return 0, err
	}
	c.metrics.sent.Add(float64(len(change.deleted)))
	return len(change.deleted), nil
}

// readProgress reads the committed records of this store from where it has last read. It first
// writes a record of its own, and reads up to that, because a reader of committed records cannot
// find out where they end.
func (c *connection) readProgress(ctx context.Context) (*progress, []listed, error) {
	p := &progress{topic: c.opt.ExactlyOnce.ProgressTopic, store: uuid.UUID(c.eng.Identity().UUID).String()}
	plain := append(slices.Clone(c.opt.Client), kgo.RequiredAcks(kgo.AllISRAcks()))
	admin, err := kgo.NewClient(append(plain, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		return nil, nil, fmt.Errorf("outbox: making a client: %w", err)
	}
	defer admin.Close()
	if err := p.describe(ctx, kadm.NewClient(admin)); err != nil {
		return nil, nil, err
	}
	from, err := p.start(ctx, c.eng)
	if err != nil {
		return nil, nil, err
	}
	barrier := &kgo.Record{Topic: p.topic, Partition: 0, Key: []byte(p.store + "/barrier"), Value: []byte(rand.Text())}
	if err := admin.ProduceSync(ctx, barrier).FirstErr(); err != nil {
		return nil, nil, fmt.Errorf("%w: publishing to it: %w", ErrProgressTopic, err)
	}
	if barrier.Offset < 0 {
		return nil, nil, fmt.Errorf("outbox: the broker has acknowledged a record of %s without its offset", p.topic)
	}
	if err := p.awaitStable(ctx, admin, barrier.Offset, stableTime); err != nil {
		return nil, nil, err
	}
	reader, err := kgo.NewClient(append(plain, kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{p.topic: {0: from}}),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		return nil, nil, fmt.Errorf("outbox: making a client: %w", err)
	}
	defer reader.Close()
	var entries []listed
	for {
		fetches := reader.PollFetches(ctx)
		if err := errors.Join(ctx.Err(), fetches.Err0()); err != nil {
			return nil, nil, fmt.Errorf("outbox: reading %s: %w", p.topic, err)
		}
		for r := range fetches.RecordsAll() {
			if string(r.Key) == p.store {
				more, err := parseProgress(r.Value)
				if err != nil {
					return nil, nil, err
				}
				entries = append(entries, more...)
			}
			if r.Offset >= barrier.Offset {
				p.next = r.Offset + 1
				return p, entries, nil
			}
		}
	}
}
