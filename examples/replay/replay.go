package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// originalTopic is the header of a dead letter that names the topic of its record.
const originalTopic = "hapax_dlt_original_topic"

// counted has the counts of a replay: letters that were sent back, and records that are not dead
// letters and were skipped.
type counted struct {
	sent, left int
}

// replay sends the dead letters of a topic back to their original topics: all letters that existed
// when it began and that no earlier replay of the same group has sent. It commits its progress in
// Kafka after it has sent letters. So a replay that was interrupted sends some letters again, but
// the consumer still handles each once.
func replay(ctx context.Context, topic, group string, client ...kgo.Opt) (n counted, err error) {
	cl, err := kgo.NewClient(append(client,
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.MaxDecompressBatchBytes(64<<20),
		kgo.KeepControlRecords(), // a log may end with markers of transactions
	)...)
	if err != nil {
		return n, err
	}
	defer cl.Close()
	admin := kadm.NewClient(cl)
	from, to, err := open(ctx, admin, topic, group)
	if err != nil {
		return n, err
	}
	cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: from})
	for len(to) > 0 {
		fetches := cl.PollRecords(ctx, 1000)
		if err := fetches.Err(); err != nil {
			return n, err
		}
		var next kadm.Offsets
		for _, rec := range fetches.Records() {
			if !to.includes(rec) {
				continue // it was added after the replay began
			}
			if err := sendBack(ctx, cl, rec, &n); err != nil {
				return n, fmt.Errorf("letter %s/%d@%d: %w", rec.Topic, rec.Partition, rec.Offset, err)
			}
			next.AddOffset(topic, rec.Partition, rec.Offset+1, -1)
		}
		if err := admin.CommitAllOffsets(ctx, group, next); err != nil {
			return n, err
		}
	}
	return n, nil
}

// ends are the offsets at which the replay of the partitions that are still read ends.
type ends map[int32]int64

// includes reports whether the replay contains a record. It removes the partition after its last
// record. If compaction has left a gap before the end, it does so only at a record after the end.
func (e ends) includes(rec *kgo.Record) bool {
	end, ok := e[rec.Partition]
	if ok && rec.Offset+1 >= end {
		delete(e, rec.Partition)
	}
	return ok && rec.Offset < end
}

// open determines the offsets between which to read, for the partitions that have letters.
func open(ctx context.Context, admin *kadm.Client, topic, group string) (from map[int32]kgo.Offset, to ends, err error) {
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, nil, err
	}
	committed, err := admin.ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = committed.Error()
	}
	if err != nil {
		return nil, nil, err
	}
	done, err := admin.FetchOffsetsForTopics(ctx, group, topic)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // the first replay of this group
		return nil, nil, err
	}
	from, to = map[int32]kgo.Offset{}, ends{}
	committed.Each(func(end kadm.ListedOffset) {
		at := starts[topic][end.Partition].Offset
		if o, ok := done.Lookup(topic, end.Partition); ok {
			at = max(at, o.At)
		}
		if at < end.Offset {
			from[end.Partition], to[end.Partition] = kgo.NewOffset().At(at), end.Offset
		}
	})
	return from, to, nil
}

// sendBack sends a letter to its original topic. Its headers are unchanged, because they identify
// the replay.
func sendBack(ctx context.Context, cl *kgo.Client, rec *kgo.Record, n *counted) error {
	if rec.Attrs.IsControl() {
		return nil
	}
	back := &kgo.Record{Key: rec.Key, Value: rec.Value, Headers: rec.Headers}
	for _, h := range rec.Headers {
		if h.Key == originalTopic {
			back.Topic = string(h.Value)
		}
	}
	if back.Topic == "" {
		n.left++
		return nil
	}
	if back.Topic == rec.Topic {
		return errors.New("it would be sent to its own topic")
	}
	if err := cl.ProduceSync(ctx, back).FirstErr(); err != nil {
		return err
	}
	n.sent++
	return nil
}
