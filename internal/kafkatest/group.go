package kafkatest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// groups reads, commits and awaits the offsets and members of consumer groups.
type groups struct{ topics }

// Consume polls n records. It fails the test at the first error of a poll.
func Consume(t testing.TB, c *kgo.Client, n int) (records []*kgo.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for len(records) < n {
		fetches := pollForASecond(ctx, c, n-len(records))
		if err := fetches.Err(); err != nil && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
			t.Fatalf("after %d of %d records: %v", len(records), n, err)
		}
		records = append(records, fetches.Records()...)
		c.AllowRebalance()
	}
	return records
}

// pollForASecond polls up to n records. It wakes the client's fetch loops, because a loop that
// starts while the client sets its offsets can remain asleep (kgo v1.22.2).
func pollForASecond(ctx context.Context, c *kgo.Client, n int) kgo.Fetches {
	c.ResumeFetchPartitions(nil) // this resumes no partition, but wakes the loops
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return c.PollRecords(ctx, n)
}

// ConsumeTopic polls n records of a topic from its beginning, with a new client.
func (b groups) ConsumeTopic(t testing.TB, topic string, n int) []*kgo.Record {
	t.Helper()
	return Consume(t, b.Client(t, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())), n)
}

// RunUntilCommitted runs a consumer until its group has committed that offset, or a later one, for
// a partition. Then it ends the consumer's context and waits for it. A consumer that returns early,
// or with an error, fails the test.
func (b groups) RunUntilCommitted(t testing.TB, group, topic string, partition int32, next int64, run func(context.Context) error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	Until(t, "a commit of group "+group, func() bool {
		select {
		case err := <-done:
			t.Fatalf("the consumer ended before its group had committed %d: %v", next, err)
		default:
		}
		return b.committedTo(t, group, topic, partition, next)
	})
	stop()
	if err := <-done; err != nil {
		t.Fatalf("the consumer failed when it was to end: %v", err)
	}
}

// Committed returns the offset that a group has committed for a partition; false if there is none.
func (b groups) Committed(t testing.TB, group, topic string, partition int32) (kadm.Offset, bool) {
	t.Helper()
	var o kadm.OffsetResponse
	var ok bool
	b.admin(t, "offsets of group "+group, func(ctx context.Context, a *kadm.Client) error {
		all, err := a.FetchOffsets(ctx, group)
		if err != nil {
			if errors.Is(err, kerr.GroupIDNotFound) {
				return nil // the embedded broker's value if nothing is committed
			}
			return err
		}
		o, ok = all.Lookup(topic, partition)
		return o.Err
	})
	return o.Offset, ok
}

// Commit sets the committed offset of a partition, as an administrator does while no member
// consumes. It waits for members that are about to leave.
func (b groups) Commit(t testing.TB, group string, o kadm.Offset) {
	t.Helper()
	var all kadm.Offsets = map[string]map[int32]kadm.Offset{}
	all.Add(o)
	Until(t, "a group without members", func() (committed bool) {
		b.admin(t, "committing for group "+group, func(ctx context.Context, a *kadm.Client) error {
			err := a.CommitAllOffsets(ctx, group, all)
			committed = !errors.Is(err, kerr.UnknownMemberID)
			if !committed {
				return nil
			}
			return err
		})
		return committed
	})
}

// UntilCommitted waits until a group has committed that offset, or a later one, for a partition.
func (b groups) UntilCommitted(t testing.TB, group, topic string, partition int32, next int64) {
	t.Helper()
	Until(t, "a commit of group "+group, func() bool { return b.committedTo(t, group, topic, partition, next) })
}

func (b groups) committedTo(t testing.TB, group, topic string, partition int32, next int64) bool {
	t.Helper()
	o, ok := b.Committed(t, group, topic, partition)
	return ok && o.At >= next
}

// UntilMembers waits until a group has n members, is stable, and they own all partitions of the
// topics among them. It supports both group protocols.
func (b groups) UntilMembers(t testing.TB, group string, n int, topics ...string) {
	t.Helper()
	Until(t, "members of group "+group, func() bool {
		g := b.members(t, group)
		if g.n != n || n > 0 && g.state != "Stable" {
			return false
		}
		for _, topic := range topics {
			if len(g.owned[topic]) < len(b.detail(t, topic).Partitions) {
				return false // some partitions are moving from one member to another
			}
		}
		return true
	})
}

// members returns the members of a group.
type members struct {
	state string
	n     int
	owned kadm.TopicsSet
}

// members first requests a group of the newer protocol, because the embedded broker describes such
// a group as a classic group without members.
func (b groups) members(t testing.TB, group string) (m members) {
	t.Helper()
	b.admin(t, "members of group "+group, func(ctx context.Context, a *kadm.Client) error {
		next, err := a.DescribeConsumerGroups(ctx, group)
		if err != nil {
			return err
		}
		if g := next[group]; !errors.Is(g.Err, kerr.GroupIDNotFound) {
			m = members{g.State, len(g.Members), g.AssignedPartitions()}
			return g.Err
		}
		classic, err := a.DescribeGroups(ctx, group)
		if err != nil {
			return err
		}
		g := classic[group]
		if errors.Is(g.Err, kerr.GroupIDNotFound) {
			return nil // it has no members yet
		}
		m = members{g.State, len(g.Members), g.AssignedPartitions()}
		return g.Err
	})
	return m
}
