package outbox

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/zeebo/xxh3"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/internal/decode"
	"github.com/hapax-dev/hapax/internal/entry"
)

// progress is the state of the exactly-once relay's progress topic. Each Kafka transaction contains
// one record that lists the entries that it publishes. The entries are removed from the store after
// the transaction and before the next one. So a relay that starts learns from the committed records
// which entries of the store were already published. A record's key is the store's uuid and its
// value
//
//	version u8 = 1 | n uvarint | n times: key of the entry as bytes, XXH3-64 of its id u64 | HMAC 32 bytes
//
// The hash distinguishes an entry from another one with the same key in a store that was restored
// from a backup. Others may be able to write to the topic, so the HMAC identifies the records of
// the store, and a record without a valid HMAC is ignored. It is HMAC-SHA-256, with the secret of
// the store, of what precedes it in the value, of the name of the topic, and of the id and epoch of
// the producer, which the broker keeps with each record. So a copy of a record that was aborted, or
// that compaction has removed, is invalid: only a client that may use the transactional id of the
// store has its producer id.
type progress struct {
	topic   string
	topicID [16]byte
	store   string
	secret  []byte
	by      producerID // the producer of this relay's transaction
	next    int64      // records before this offset are not needed
	foreign int        // records that have the key of the store and were not written by it
}

const progressVersion = 1

// record returns an item that publishes a record of progress.
func (p *progress) record(items []*item) *item {
	b := binary.AppendUvarint([]byte{progressVersion}, uint64(len(items)))
	for _, i := range items {
		b = append(binary.AppendUvarint(b, uint64(len(i.key))), i.key...)
		b = binary.BigEndian.AppendUint64(b, xxh3.HashString(i.Entry.ID))
	}
	b = append(b, p.mac(b, p.by)...)
	return &item{Entry: entry.Entry{Topic: p.topic, Partition: 0, Key: []byte(p.store), Value: b}}
}

func (p *progress) mac(b []byte, by producerID) []byte {
	h := hmac.New(sha256.New, p.secret)
	h.Write(b)
	h.Write([]byte(p.topic))
	h.Write(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint64(nil, uint64(by.id)), uint16(by.epoch)))
	return h.Sum(nil)
}

// list returns the entries that a record lists; none if the store has not written it.
func (p *progress) list(r *kgo.Record) ([]listed, error) {
	if string(r.Key) != p.store {
		return nil, nil
	}
	list, genuine := p.genuine(r.Value, producerID{r.ProducerID, r.ProducerEpoch})
	if !genuine || !r.Attrs.IsTransactional() {
		p.foreign++
		return nil, nil
	}
	return parseProgress(list)
}

// genuine reports whether the store has written a value, and returns the value without its HMAC.
func (p *progress) genuine(value []byte, by producerID) (list []byte, genuine bool) {
	end := len(value) - sha256.Size
	if end < 0 || !hmac.Equal(value[end:], p.mac(value[:end], by)) {
		return nil, false
	}
	return value[:end], true
}

// secret returns the secret of the store, which the first exactly-once relay has made.
func (c *connection) secret(ctx context.Context) (secret []byte, err error) {
	secret, found, err := driver.In(c.shared.eng, entry.Space).Get(ctx, entry.SecretKey)
	if err != nil || found {
		return secret, err
	}
	secret = make([]byte, sha256.Size)
	_, _ = rand.Read(secret) // never fails
	return secret, c.shared.lease.update(ctx, c.shared.eng, func(tx *engine.Tx) error { return driver.TxIn(tx, entry.Space).Put(entry.SecretKey, secret) })
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
	d := decode.Decoder{Rest: b[1:]}
	for n := d.Uvarint(); n > 0 && !d.Bad; n-- {
		if key, hash := d.Bytes(), d.Take(8); !d.Bad {
			entries = append(entries, listed{key, binary.BigEndian.Uint64(hash)})
		}
	}
	if d.Bad || len(d.Rest) > 0 {
		return nil, malformed
	}
	return entries, nil
}

// published records that the record at an offset is committed.
func (p *progress) published(offset int64) { p.next = offset + 1 }

func (p *progress) keyValue() engine.KeyValue {
	return engine.KeyValue{Key: entry.ProgressKey, Value: binary.AppendVarint(append([]byte{}, p.topicID[:]...), p.next)}
}

// describe checks the topic.
func (p *progress) describe(ctx context.Context, admin *kadm.Client) error {
	topics, err := admin.ListTopics(ctx, p.topic)
	if err != nil {
		return fmt.Errorf("hapax: outbox: looking up %s: %w", p.topic, err)
	}
	if err := topics[p.topic].Err; err != nil {
		return fmt.Errorf("%w: %s: %w", ErrProgressTopic, p.topic, err)
	}
	p.topicID = topics[p.topic].ID
	configs, err := admin.DescribeTopicConfigs(ctx, p.topic)
	if err != nil {
		return fmt.Errorf("hapax: outbox: looking up the configuration of %s: %w", p.topic, err)
	}
	for _, c := range configs {
		for _, config := range c.Configs {
			// With deletion too, the record of the last batch could be gone before a relay reads it.
			if config.Key == "cleanup.policy" && config.MaybeValue() != "compact" {
				return fmt.Errorf("%w: %s has cleanup.policy=%s", ErrProgressTopic, p.topic, config.MaybeValue())
			}
		}
	}
	return nil
}

// start sets and returns the offset at which reading starts: after the last record that the relay
// has read or written in this topic, or the start of the topic if there is none.
func (p *progress) start(ctx context.Context, eng *engine.Engine) (kgo.Offset, error) {
	value, found, err := driver.In(eng, entry.Space).Get(ctx, entry.ProgressKey)
	if err != nil || !found {
		return kgo.NewOffset().AtStart(), err
	}
	d := decode.Decoder{Rest: value}
	topicID, next := d.Take(16), d.Varint()
	if d.Bad || len(d.Rest) > 0 {
		return kgo.Offset{}, damaged(fmt.Errorf("progress %x", value))
	}
	if [16]byte(topicID) != p.topicID {
		return kgo.NewOffset().AtStart(), nil
	}
	p.next = next
	return kgo.NewOffset().At(next), nil
}

// awaitStable waits until records can be read up to an offset, because no transaction that started
// before it is open. Relays of other stores have such transactions for a short time. A transaction
// that is still open after the limit is an error.
func (p *progress) awaitStable(ctx context.Context, client *kgo.Client, offset int64, limit time.Duration) error {
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began, failed := int64(-1), error(nil) // where the first open transaction began, and the last error
	for {
		stable, err := p.stable(wait, client)
		switch {
		case err == nil && stable > offset:
			return nil
		case err == nil:
			began, failed = stable, nil
		case wait.Err() == nil || began < 0: // otherwise the limit ended the request
			failed = err
		}
		select {
		case <-time.After(10 * time.Millisecond):
			continue
		case <-wait.Done():
		}
		if err := errors.Join(ctx.Err(), failed); err != nil {
			return fmt.Errorf("hapax: outbox: looking up the last stable offset of %s: %w", p.topic, err)
		}
		outcome := ""
		if began == p.next-1 {
			outcome = "; the broker has acknowledged its commit: do not abort it, but write its commit marker"
		}
		return fmt.Errorf("%w: for %v, the one that began at offset %d of partition 0 of %s%s", ErrHangingTransaction, limit, began, p.topic, outcome)
	}
}

// stable returns the last stable offset of the partition.
func (p *progress) stable(ctx context.Context, client *kgo.Client) (int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.IsolationLevel = 1 // committed records
	t, q := kmsg.NewListOffsetsRequestTopic(), kmsg.NewListOffsetsRequestTopicPartition()
	t.Topic, q.Partition, q.Timestamp = p.topic, 0, -1 // the end
	t.Partitions = append(t.Partitions, q)
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return 0, err
	}
	for _, rt := range resp.Topics {
		for _, rp := range rt.Partitions {
			return rp.Offset, kerr.ErrorForCode(rp.ErrorCode)
		}
	}
	return 0, kerr.UnknownTopicOrPartition
}
