package kafkatest_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// readAll returns options of a client that reads the committed records of a topic from its start.
func readAll(topic string) []kgo.Opt {
	return []kgo.Opt{
		kgo.ConsumeTopics(topic),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	}
}

// member returns options of a member of a group that commits on request.
func member(group, topic string) []kgo.Opt {
	return append(readAll(topic), kgo.ConsumerGroup(group), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(30*time.Second), kgo.HeartbeatInterval(250*time.Millisecond))
}

// numbers returns the numbers that Records gave to the records, in order of partition and offset.
func numbers(t *testing.T, records []*kgo.Record) (ns []int) {
	t.Helper()
	slices.SortStableFunc(records, func(a, b *kgo.Record) int { return int(a.Partition - b.Partition) })
	for _, r := range records {
		var n int
		if _, err := fmt.Sscanf(string(r.Value), "%d ", &n); err != nil {
			t.Fatalf("value %q: %v", r.Value, err)
		}
		ns = append(ns, n)
	}
	return ns
}

func TestProducedRecordsAreConsumed(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 2, map[string]string{"retention.ms": "3600000"})
	b.Produce(t, kafkatest.Records(topic, 2, 6, 100, kgo.RecordHeader{Key: "id", Value: []byte("x")})...)

	got := kafkatest.Consume(t, b.Client(t, readAll(topic)...), 6)
	if ns := numbers(t, got); !slices.Equal(ns, []int{0, 2, 4, 1, 3, 5}) {
		t.Errorf("partition 0, then 1: %v", ns)
	}
	for _, r := range got {
		if len(r.Value) != 100 || len(r.Headers) != 1 || r.Headers[0].Key != "id" {
			t.Errorf("value of %d bytes, headers %v", len(r.Value), r.Headers)
		}
	}
	if l := b.Log(t, topic, 1); l != (kafkatest.Log{Start: 0, Stable: 3, End: 3}) {
		t.Errorf("partition 1 is %+v", l)
	}
}

func TestGroupContinuesWhereItCommitted(t *testing.T) {
	for name, protocol := range map[string]kgo.Opt{"classic": kgo.Balancers(kgo.CooperativeStickyBalancer()), "server": kgo.ServerSideBalancer()} {
		t.Run(name, func(t *testing.T) {
			b := kafkatest.Start(t, kafkatest.Options{})
			topic, group := b.CreateTopic(t, 1, nil), kafkatest.Name(t)
			b.Produce(t, kafkatest.Records(topic, 1, 5, 0)...)

			first := b.Client(t, append(member(group, topic), protocol)...)
			kafkatest.Consume(t, first, 3)
			b.UntilMembers(t, group, 1)
			mark := "ours"
			annotated := kgo.PreCommitFnContext(t.Context(), func(r *kmsg.OffsetCommitRequest) error {
				r.Topics[0].Partitions[0].Metadata = &mark
				return nil
			})
			at := map[string]map[int32]kgo.EpochOffset{topic: {0: {Epoch: -1, Offset: 3}}}
			first.CommitOffsetsSync(annotated, at, nil)
			b.UntilCommitted(t, group, topic, 0, 3)
			if o, ok := b.Committed(t, group, topic, 0); !ok || o.At != 3 || o.Metadata != mark {
				t.Errorf("committed %+v, %v", o, ok)
			}
			first.CloseAllowingRebalance()
			b.UntilMembers(t, group, 0)

			second := b.Client(t, append(member(group, topic), protocol)...)
			if ns := numbers(t, kafkatest.Consume(t, second, 2)); !slices.Equal(ns, []int{3, 4}) {
				t.Errorf("the second member got %v", ns)
			}
		})
	}
}

func TestMembersOwnAllPartitionsAmongThem(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic, group := b.CreateTopic(t, 4, nil), kafkatest.Name(t)
	clients := []*kgo.Client{b.Client(t, member(group, topic)...)}
	b.UntilMembers(t, group, 1, topic)
	clients = append(clients, b.Client(t, member(group, topic)...))
	b.UntilMembers(t, group, 2, topic)
	b.Produce(t, kafkatest.Records(topic, 4, 4, 0)...)

	got := make([][]int32, 2) // partitions of which a client got a record
	kafkatest.Until(t, "a record of each partition", func() bool {
		for i, c := range clients {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			for _, r := range c.PollFetches(ctx).Records() {
				got[i] = append(got[i], r.Partition)
			}
			cancel()
			c.AllowRebalance()
		}
		return len(got[0])+len(got[1]) >= 4
	})
	all := slices.Sorted(slices.Values(slices.Concat(got...)))
	if len(got[0]) != 2 || !slices.Equal(all, []int32{0, 1, 2, 3}) {
		t.Errorf("the members got records of the partitions %v", got)
	}
	clients[0].CloseAllowingRebalance()
	b.UntilMembers(t, group, 1, topic)
}

func TestUntilMembersWaitsForTheLastOne(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	cluster := b.Cluster(t)
	topic, other, group := b.CreateTopic(t, 2, nil), b.CreateTopic(t, 2, nil), kafkatest.Name(t)
	first := b.Client(t, member(group, topic)...)
	// later does something after UntilMembers has checked without success.
	later := func(do func()) {
		asked := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeGroups}, Count: -1, Observe: true})
		go func() {
			if err := asked.Wait(t.Context(), 2); err == nil {
				do()
			}
		}()
	}
	expect := func(members, partitions int) {
		t.Helper()
		if g := cluster.GroupInfo(group); g == nil || len(g.Members) != members || g.NumAssigned() != partitions {
			t.Errorf("the group is %+v", g)
		}
	}
	b.UntilMembers(t, group, 1, topic)
	later(func() { first.AddConsumeTopics(other) })
	b.UntilMembers(t, group, 1, topic, other)
	expect(1, 4)
	later(func() { b.Client(t, append(member(group, topic), kgo.ConsumeTopics(topic, other))...) })
	b.UntilMembers(t, group, 2, topic, other)
	expect(2, 4)
}

func TestRestartKeepsTopicsRecordsAndCommits(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{Durable: true})
	topic, group := b.CreateTopic(t, 1, nil), kafkatest.Name(t)
	id := b.TopicID(t, topic)
	b.Produce(t, kafkatest.Records(topic, 1, 4, 0)...)
	b.Commit(t, group, kadm.Offset{Topic: topic, At: 3, LeaderEpoch: -1, Metadata: "ours"})
	running := b.Client(t, readAll(topic)...)
	kafkatest.Consume(t, running, 4)

	b.Kill(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := running.Ping(ctx); err == nil {
		t.Error("a killed broker answers")
	}
	b.Revive(t)

	if got := b.TopicID(t, topic); got != id {
		t.Errorf("topic id %x, before the restart %x", got, id)
	}
	if o, ok := b.Committed(t, group, topic, 0); !ok || o.At != 3 || o.Metadata != "ours" {
		t.Errorf("committed %+v, %v", o, ok)
	}
	b.Produce(t, kafkatest.Records(topic, 1, 1, 0)...)
	if got := kafkatest.Consume(t, running, 1); got[0].Offset != 4 {
		t.Errorf("the running client continues at offset %d", got[0].Offset)
	}
	if ns := numbers(t, kafkatest.Consume(t, b.Client(t, readAll(topic)...), 5)); !slices.Equal(ns, []int{0, 1, 2, 3, 0}) {
		t.Errorf("after the restart the topic holds %v", ns)
	}
}

func TestAbortedRecordsAreNotRead(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 1, nil)
	records := kafkatest.Records(topic, 1, 6, 0)
	b.ProduceTx(t, true, records[:2]...)   // 0, 1, marker 2
	b.ProduceTx(t, false, records[2:4]...) // 3, 4, marker 5
	b.Produce(t, records[4:]...)           // 6, 7
	got := kafkatest.Consume(t, b.Client(t, readAll(topic)...), 4)
	if ns := numbers(t, got); !slices.Equal(ns, []int{0, 1, 4, 5}) {
		t.Errorf("read: %v", ns)
	}
	if got[2].Offset != 6 || b.Log(t, topic, 0) != (kafkatest.Log{Start: 0, Stable: 8, End: 8}) {
		t.Errorf("third record at %d, log %+v: one marker for each transaction is missing", got[2].Offset, b.Log(t, topic, 0))
	}
}

func TestDeletedRecordsAreOutOfRange(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 1, nil)
	b.Produce(t, kafkatest.Records(topic, 1, 5, 0)...)
	b.DeleteRecords(t, topic, 0, 3)
	if l := b.Log(t, topic, 0); l != (kafkatest.Log{Start: 3, Stable: 5, End: 5}) {
		t.Errorf("log %+v", l)
	}
	c := b.Client(t, kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(1)}}))
	if err := c.PollFetches(t.Context()).Err(); !errors.Is(err, kerr.OffsetOutOfRange) {
		t.Errorf("reading at 1: %v", err)
	}
}

func TestExpiredRecordsAreRemoved(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 2, nil)
	b.Produce(t, kafkatest.Records(topic, 2, 10, 0)...)
	b.Expire(t, topic)
	b.Produce(t, kafkatest.Records(topic, 2, 2, 0)...)
	if l := b.Log(t, topic, 1); l != (kafkatest.Log{Start: 5, Stable: 6, End: 6}) {
		t.Errorf("log %+v", l)
	}
}

func TestRecreatedTopicIsAnotherOne(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 1, nil)
	id := b.TopicID(t, topic)
	b.Produce(t, kafkatest.Records(topic, 1, 5, 0)...)
	b.RecreateTopic(t, topic, 2, nil)
	if b.TopicID(t, topic) == id {
		t.Errorf("the new topic has the id of the old one, %x", id)
	}
	b.Produce(t, kafkatest.Records(topic, 2, 2, 0)...)
	if l := b.Log(t, topic, 1); l.End != 1 {
		t.Errorf("log of the new topic: %+v", l)
	}
}

func TestFailedProduceRecovers(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic, other := b.CreateTopic(t, 1, nil), b.CreateTopic(t, 1, nil)
	heal := b.FailProduce(t, topic, kerr.PolicyViolation)
	for range 2 {
		if err := b.TryProduce(t, kafkatest.Records(topic, 1, 1, 0)...); !errors.Is(err, kerr.PolicyViolation) {
			t.Errorf("producing: %v", err)
		}
	}
	b.Produce(t, kafkatest.Records(other, 1, 1, 0)...)
	heal()
	b.Produce(t, kafkatest.Records(topic, 1, 1, 0)...)
}

func TestNamesAreUniqueAndLegal(t *testing.T) {
	t.Run("odd/name, with a space"+strings.Repeat("x", 300), func(t *testing.T) {
		x, y := kafkatest.Name(t), kafkatest.Name(t)
		if x == y || !regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`).MatchString(x) {
			t.Errorf("names for topics: %s, %s", x, y)
		}
	})
}

func TestNothingIsLeftBehind(t *testing.T) {
	kafkatest.NoGoroutines(t, "franz-go/pkg/kfake", "franz-go/pkg/kgo")
	b := kafkatest.Start(t, kafkatest.Options{Durable: true})
	topic := b.CreateTopic(t, 1, nil)
	b.Produce(t, kafkatest.Records(topic, 1, 1, 0)...)
	c := b.Client(t, append(member(kafkatest.Name(t), topic), kgo.InstanceID("one"))...)
	// and the rebalance is blocked: the cleanup must unblock it
	if n := c.PollFetches(t.Context()).NumRecords(); n != 1 {
		t.Errorf("%d records", n)
	}
}
