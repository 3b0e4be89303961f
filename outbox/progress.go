package outbox

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/zeebo/xxh3"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/entry"
)

// progress is the state of the exactly-once relay's progress topic. Each Kafka transaction carries
// one record that lists the entries that it publishes; the entries are removed from the store after
// the transaction, and before the next one. So the committed records tell a starting relay which
// entries were published that the store still has. A record's key is the store's uuid and its value
//
//	version u8 = 1 | n uvarint | n times: key of the entry as bytes, XXH3-64 of its id u64
//
// The hash distinguishes an entry from another one with the same key in a store that was restored
// from a backup.
type progress struct {
	topic   string
	topicID [16]byte
	store   string
	next    int64 // records before this offset are not needed
}

const progressVersion = 1

// recoverTime bounds one attempt to determine what was published.
const recoverTime = time.Minute

// record returns an item that publishes a record of progress.
func (p *progress) record(items []*item, now time.Time) *item {
	b := binary.AppendUvarint([]byte{progressVersion}, uint64(len(items)))
	for _, i := range items {
		b = append(binary.AppendUvarint(b, uint64(len(i.key))), i.key...)
		b = binary.BigEndian.AppendUint64(b, xxh3.HashString(i.ID))
	}
	return &item{Entry: entry.Entry{Topic: p.topic, Partition: 0, Key: []byte(p.store), Value: b, Created: now.UnixMilli()}}
}

// A listed is an entry in a record of progress.
type listed struct {
	key  []byte
	hash uint64
}

func parseProgress(b []byte) (entries []listed, err error) {
	malformed := fmt.Errorf("%w: a record of progress is malformed", ErrProgressTopic)
	if len(b) == 0 || b[0] != progressVersion {
		return nil, malformed
	}
	n, size := binary.Uvarint(b[1:])
	if size <= 0 || n > uint64(len(b)) {
		return nil, malformed
	}
	b = b[1+size:]
	for range n {
		length, size := binary.Uvarint(b)
		if size <= 0 || length > uint64(len(b)) || uint64(len(b)) < uint64(size)+length+8 {
			return nil, malformed
		}
		b = b[size:]
		entries = append(entries, listed{b[:length:length], binary.BigEndian.Uint64(b[length:])})
		b = b[length+8:]
	}
	if len(b) > 0 {
		return nil, malformed
	}
	return entries, nil
}

// published records that the record at an offset is committed.
func (p *progress) published(offset int64) { p.next = offset + 1 }

func (p *progress) keyValue() engine.KeyValue {
	return engine.KeyValue{Key: entry.ProgressKey, Value: binary.AppendVarint(append([]byte{}, p.topicID[:]...), p.next)}
}

// recover ends the transaction that an earlier relay of this store has left open in Kafka, and then
// removes the published entries from the store. The order matters: when the progress topic is read,
// no open transaction can commit any more.
func (s *session) recover(ctx context.Context) error {
	s.abandon()
	if err := s.connect(); err != nil {
		return err
	}
	client := s.client
	var p *progress
	var entries []listed
	err := s.during(ctx, recoverTime, func(ctx context.Context) (err error) {
		if _, _, err = client.ProducerID(ctx); err != nil {
			return fmt.Errorf("outbox: getting a producer id: %w", err)
		}
		p, entries, err = s.readProgress(ctx)
		return err
	})
	if err != nil {
		s.abandon()
		return err
	}
	s.progress = p
	return s.remove(ctx, entries)
}

// remove removes the listed entries that the store still has.
func (s *session) remove(ctx context.Context, entries []listed) error {
	c := &change{put: []engine.KeyValue{s.progress.keyValue()}}
	for _, l := range entries {
		value, found, err := s.eng.In(entry.Space).Get(ctx, l.key)
		if err != nil {
			return err
		}
		if !found {
			continue
		}
		i, err := newItem(engine.KeyValue{Key: l.key, Value: value})
		if err != nil {
			return err
		}
		if xxh3.HashString(i.ID) == l.hash {
			c.remove(i)
			c.gone.Entries++
		}
	}
	s.metrics.sent.Add(float64(len(c.deleted)))
	return s.lease.update(s.eng, c.apply)
}

// readProgress reads the committed records of this store from where it has last read. It first
// writes a record of its own, and reads up to that, because a reader of committed records cannot
// find out where they end.
func (s *session) readProgress(ctx context.Context) (*progress, []listed, error) {
	p := &progress{topic: s.opt.ExactlyOnce.ProgressTopic, store: uuid.UUID(s.eng.Identity().UUID).String()}
	plain := append([]kgo.Opt{}, s.opt.Client...)
	admin, err := kgo.NewClient(append(plain, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		return nil, nil, fmt.Errorf("outbox: making a client: %w", err)
	}
	defer admin.Close()
	if err := p.describe(ctx, kadm.NewClient(admin)); err != nil {
		return nil, nil, err
	}
	from, err := p.saved(ctx, s.eng)
	if err != nil {
		return nil, nil, err
	}
	barrier := &kgo.Record{Topic: p.topic, Partition: 0, Key: []byte(p.store + "/barrier"), Value: []byte(rand.Text())}
	if err := admin.ProduceSync(ctx, barrier).FirstErr(); err != nil {
		return nil, nil, fmt.Errorf("%w: publishing to it: %w", ErrProgressTopic, err)
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

// describe checks the topic.
func (p *progress) describe(ctx context.Context, admin *kadm.Client) error {
	topics, err := admin.ListTopics(ctx, p.topic)
	if err != nil {
		return fmt.Errorf("outbox: looking up %s: %w", p.topic, err)
	}
	if err := topics[p.topic].Err; err != nil {
		return fmt.Errorf("%w: %s: %w", ErrProgressTopic, p.topic, err)
	}
	p.topicID = topics[p.topic].ID
	configs, err := admin.DescribeTopicConfigs(ctx, p.topic)
	if err != nil {
		return fmt.Errorf("outbox: looking up the configuration of %s: %w", p.topic, err)
	}
	for _, c := range configs {
		for _, config := range c.Configs {
			if config.Key == "cleanup.policy" && !strings.Contains(config.MaybeValue(), "compact") {
				return fmt.Errorf("%w: %s has cleanup.policy=%s", ErrProgressTopic, p.topic, config.MaybeValue())
			}
		}
	}
	return nil
}

// saved returns where to begin to read: the last position that the relay has read or written in
// this topic, otherwise the start.
func (p *progress) saved(ctx context.Context, eng *engine.Engine) (kgo.Offset, error) {
	value, found, err := eng.In(entry.Space).Get(ctx, entry.ProgressKey)
	if err != nil || !found {
		return kgo.NewOffset().AtStart(), err
	}
	next, n := int64(0), 0
	if len(value) > 16 {
		next, n = binary.Varint(value[16:])
	}
	if n <= 0 || 16+n != len(value) {
		return kgo.Offset{}, damaged(fmt.Errorf("progress %x", value))
	}
	if [16]byte(value[:16]) != p.topicID {
		return kgo.NewOffset().AtStart(), nil
	}
	return kgo.NewOffset().At(next), nil
}
