package kafkatest

import (
	"context"
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// topics creates, changes, describes and deletes topics.
type topics struct{ *cluster }

// CreateTopic makes a topic with a unique name. Configs may be nil. On the real broker it is
// deleted with the test.
func (b topics) CreateTopic(t testing.TB, partitions int32, configs map[string]string) string {
	t.Helper()
	topic := Name(t)
	b.CreateNamed(t, topic, partitions, configs)
	return topic
}

// CreateNamed makes a topic with a given name, and returns when every partition has a leader. Unless configs
// say otherwise, it keeps records of any age: those of tests may be years old.
func (b topics) CreateNamed(t testing.TB, topic string, partitions int32, configs map[string]string) {
	t.Helper()
	forever := "-1"
	set := map[string]*string{"retention.ms": &forever}
	for k, v := range configs {
		set[k] = &v
	}
	again := false
	b.admin(t, "creating topic "+topic, func(ctx context.Context, a *kadm.Client) error {
		_, err := a.CreateTopic(ctx, partitions, 1, set, topic)
		if again && errors.Is(err, kerr.TopicAlreadyExists) {
			return nil // created by the previous attempt, which timed out
		}
		again = true
		return err
	})
	if b.real {
		t.Cleanup(func() { b.remove(t, topic) })
	}
	Until(t, "leaders of "+topic, func() bool { return b.led(t, topic) == int(partitions) })
}

// DeleteTopic deletes a topic and returns when the broker no longer knows it.
func (b topics) DeleteTopic(t testing.TB, topic string) {
	t.Helper()
	b.remove(t, topic)
	Until(t, "the end of "+topic, func() bool { return !b.HasTopic(t, topic) })
}

// RecreateTopic deletes a topic and makes another one with the same name.
func (b topics) RecreateTopic(t testing.TB, topic string, partitions int32, configs map[string]string) {
	t.Helper()
	b.DeleteTopic(t, topic)
	b.CreateNamed(t, topic, partitions, configs)
}

// HasTopic reports whether a topic exists.
func (b topics) HasTopic(t testing.TB, topic string) bool {
	t.Helper()
	return !errors.Is(b.detail(t, topic).Err, kerr.UnknownTopicOrPartition)
}

// TopicID returns the id that distinguishes a topic from others of its name.
func (b topics) TopicID(t testing.TB, topic string) [16]byte {
	t.Helper()
	d := b.detail(t, topic)
	if d.Err != nil {
		t.Fatalf("topic %s: %v", topic, d.Err)
	}
	return d.ID
}

func (b topics) remove(t testing.TB, topic string) {
	t.Helper()
	b.admin(t, "deleting topic "+topic, func(ctx context.Context, a *kadm.Client) error {
		_, err := a.DeleteTopic(ctx, topic)
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			return nil // the test deleted it
		}
		return err
	})
}

func (b topics) detail(t testing.TB, topic string) (d kadm.TopicDetail) {
	t.Helper()
	b.admin(t, "describing topic "+topic, func(ctx context.Context, a *kadm.Client) error {
		all, err := a.ListTopics(ctx, topic)
		d = all[topic]
		return err
	})
	return d
}

// led counts the partitions that have a leader.
func (b topics) led(t testing.TB, topic string) (n int) {
	t.Helper()
	for _, p := range b.detail(t, topic).Partitions {
		if p.Err == nil && p.Leader >= 0 {
			n++
		}
	}
	return n
}

// A Log says which offsets a partition has: those from Start to End. Stable is the end for readers
// of committed records.
type Log struct{ Start, Stable, End int64 }

// Log returns the state of a partition.
func (b topics) Log(t testing.TB, topic string, partition int32) (l Log) {
	t.Helper()
	b.admin(t, "listing offsets of "+topic, func(ctx context.Context, a *kadm.Client) error {
		for _, list := range []struct {
			to  *int64
			ask func(context.Context, ...string) (kadm.ListedOffsets, error)
		}{{&l.Start, a.ListStartOffsets}, {&l.Stable, a.ListCommittedOffsets}, {&l.End, a.ListEndOffsets}} {
			listed, err := list.ask(ctx, topic)
			if err != nil {
				return err
			}
			o, ok := listed.Lookup(topic, partition)
			if !ok {
				return kerr.UnknownTopicOrPartition
			}
			if o.Err != nil {
				return o.Err
			}
			*list.to = o.Offset
		}
		return nil
	})
	return l
}

// DeleteRecords removes all records of a partition below an offset.
func (b topics) DeleteRecords(t testing.TB, topic string, partition int32, before int64) {
	t.Helper()
	b.admin(t, "deleting records of "+topic, func(ctx context.Context, a *kadm.Client) error {
		var o kadm.Offsets = map[string]map[int32]kadm.Offset{}
		o.Add(kadm.Offset{Topic: topic, Partition: partition, At: before})
		r, err := a.DeleteRecords(ctx, o)
		return errors.Join(err, r.Error())
	})
}

// Expire makes retention remove all present records of a topic, as it does with records that are
// too old, and then gives the topic a retention that keeps later ones.
func (b topics) Expire(t testing.TB, topic string) {
	t.Helper()
	b.retain(t, topic, "1")
	b.UntilExpired(t, topic)
	b.retain(t, topic, "3600000")
}

// UntilExpired waits until retention has removed all records of a topic, which must be too old.
func (b topics) UntilExpired(t testing.TB, topic string) {
	t.Helper()
	partitions := len(b.detail(t, topic).Partitions)
	if !b.real {
		b.embedded().ApplyRetention()
	}
	Until(t, "retention of "+topic, func() bool {
		for p := range partitions {
			if l := b.Log(t, topic, int32(p)); l.Start < l.End {
				return false
			}
		}
		return true
	})
}

func (b topics) retain(t testing.TB, topic, ms string) {
	t.Helper()
	b.admin(t, "retention of "+topic, func(ctx context.Context, a *kadm.Client) error {
		r, err := a.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: &ms}}, topic)
		if err != nil {
			return err
		}
		_, err = r.On(topic, func(c *kadm.AlterConfigsResponse) error { return c.Err })
		return err
	})
}
