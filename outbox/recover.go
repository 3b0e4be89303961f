package outbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/zeebo/xxh3"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/internal/entry"
)

// recoverTime is the maximum time without progress of an attempt to determine what was published:
// first until the progress topic can be read, then for each part of it. stableTime is the part of
// the first in which other transactions must end.
const (
	recoverTime = time.Minute
	stableTime  = recoverTime / 2
)

// removeMost is the maximum number of entries that one transaction removes.
const removeMost = 10_000

// recover ends the transaction that an earlier relay of this store has left open in Kafka. Then it
// reads the progress topic, removes the published entries from the store, and returns their number.
// The order matters: when the progress topic is read, no open transaction can commit any more. Each
// removal also records the position that was read, so that a later attempt continues there.
func (c *connection) recover(ctx context.Context) (removed int, err error) {
	c.abandon()
	if err := c.connect(); err != nil {
		return 0, err
	}
	secret, err := c.secret(ctx)
	if err != nil {
		return 0, err
	}
	client := c.client
	var r *progressReader
	err = c.during(ctx, recoverTime, func(ctx context.Context) (err error) {
		if _, _, err = client.ProducerID(ctx); err != nil {
			return fmt.Errorf("hapax: outbox: getting a producer id: %w", err)
		}
		r, err = c.openProgress(ctx, secret)
		return err
	})
	if r != nil {
		defer r.close()
		c.progress = r.progress
	}
	for err == nil && !r.ended {
		var n int
		n, err = c.recoverPart(ctx, r)
		removed += n
	}
	if r != nil && r.progress.foreign > 0 {
		c.shared.opt.Telemetry.Logger.Warn("outbox: records of the progress topic that this store has not written are ignored: allow only relays to write to it",
			slog.String("topic", r.progress.topic), slog.Int("records", r.progress.foreign))
	}
	if err != nil {
		c.abandon()
	}
	return removed, err
}

// recoverPart removes the entries that the next records of progress list.
func (c *connection) recoverPart(ctx context.Context, r *progressReader) (removed int, err error) {
	var entries []listed
	if err := c.during(ctx, recoverTime, func(ctx context.Context) (err error) {
		entries, err = r.read(ctx)
		return err
	}); err != nil {
		return 0, err
	}
	return c.remove(ctx, entries)
}

// remove removes the listed entries that the store still has, and returns their number. With the
// last of them, it records the position up to which the progress topic was read.
func (c *connection) remove(ctx context.Context, entries []listed) (removed int, err error) {
	for {
		part := entries[:min(len(entries), removeMost)]
		entries = entries[len(part):]
		n, err := c.removePart(ctx, part, len(entries) == 0)
		if removed += n; err != nil || len(entries) == 0 {
			return removed, err
		}
	}
}

func (c *connection) removePart(ctx context.Context, part []listed, last bool) (removed int, err error) {
	change := &change{}
	// An entry is listed twice if it was published, and again after a backup was restored.
	taken := make(map[string]struct{}, len(part))
	for _, l := range part {
		value, found, err := driver.In(c.shared.eng, entry.Space).Get(ctx, l.key)
		if err != nil {
			return 0, err
		}
		if _, twice := taken[string(l.key)]; twice || !found {
			continue
		}
		i, err := newItem(engine.KeyValue{Key: l.key, Value: value})
		if err != nil {
			return 0, err
		}
		if xxh3.HashString(i.Entry.ID) == l.hash {
			taken[string(l.key)] = struct{}{}
			change.remove(i)
			change.gone.Entries++
			change.gone.Bytes += i.Entry.Bytes()
		}
	}
	if last {
		change.put = append(change.put, c.progress.keyValue())
	}
	if err := c.shared.lease.update(ctx, c.shared.eng, change.apply); err != nil {
		return 0, err
	}
	c.shared.metrics.sent.Add(float64(len(change.deleted)))
	return len(change.deleted), nil
}

// A progressReader reads the committed records of this store from the last recorded position. It
// first writes a record and then reads up to it, because a reader of committed records cannot find
// out where they end.
type progressReader struct {
	progress *progress
	client   *kgo.Client
	end      int64 // offset of the record that it has written
	ended    bool  // all records up to it were read
}

func (c *connection) openProgress(ctx context.Context, secret []byte) (*progressReader, error) {
	p := &progress{topic: c.shared.opt.ExactlyOnce.ProgressTopic, store: uuid.UUID(c.shared.eng.Identity().UUID).String(), secret: secret}
	plain := append(slices.Clone(c.shared.opt.Client), kgo.RequiredAcks(kgo.AllISRAcks()))
	admin, err := c.shared.hooks.NewClient(append(plain, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		return nil, fmt.Errorf("hapax: outbox: making a client: %w", err)
	}
	defer admin.Close()
	if err := p.describe(ctx, kadm.NewClient(admin)); err != nil {
		return nil, err
	}
	from, err := p.start(ctx, c.shared.eng)
	if err != nil {
		return nil, err
	}
	barrier := &kgo.Record{Topic: p.topic, Partition: 0, Key: []byte(p.store + "/barrier"), Value: []byte(rand.Text())}
	if err := admin.ProduceSync(ctx, barrier).FirstErr(); err != nil {
		return nil, fmt.Errorf("%w: publishing to it: %w", ErrProgressTopic, err)
	}
	if barrier.Offset < 0 {
		return nil, fmt.Errorf("hapax: outbox: the broker has acknowledged a record of %s without its offset", p.topic)
	}
	if err := p.awaitStable(ctx, admin, barrier.Offset, stableTime); err != nil {
		return nil, err
	}
	client, err := c.shared.hooks.NewClient(append(plain, kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.MaxDecompressBatchBytes(maxProgressBatch),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{p.topic: {0: from}}),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		return nil, fmt.Errorf("hapax: outbox: making a client: %w", err)
	}
	return &progressReader{progress: p, client: client, end: barrier.Offset}, nil
}

// maxProgressBatch bounds what a batch of the progress topic may decompress to. The relay writes one
// small record in a transaction.
const maxProgressBatch = 16 << 20

func (r *progressReader) close() { r.client.Close() }

// read waits for the next records and returns the entries that the records of this store list.
func (r *progressReader) read(ctx context.Context) (entries []listed, err error) {
	p := r.progress
	for some := false; !some; {
		fetches := r.client.PollFetches(ctx)
		err := fetches.Err0()
		if large, ok := errors.AsType[*kgo.ErrDecompressTooLarge](err); ok { // no relay has written it
			r.client.SetOffsets(map[string]map[int32]kgo.EpochOffset{p.topic: {0: {Epoch: large.Epoch, Offset: large.NextOffset}}})
			err = nil
		}
		if err := errors.Join(ctx.Err(), err); err != nil {
			return nil, fmt.Errorf("hapax: outbox: reading %s: %w", p.topic, err)
		}
		for record := range fetches.RecordsAll() {
			more, err := p.list(record)
			if err != nil {
				return nil, err
			}
			entries = append(entries, more...)
			some, p.next = true, record.Offset+1
			if r.ended = record.Offset >= r.end; r.ended {
				return entries, nil
			}
		}
	}
	return entries, nil
}
