package kafkaadapter

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// Partitions that are assigned together share their look-ups and the commits of their first
// offsets.
func TestManyPartitionsShareRequests(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	const partitions = 300
	r := newRig(t, partitions)
	cluster := r.Cluster(t)
	var looks, signatures atomic.Int64
	for key, n := range map[kmsg.Key]*atomic.Int64{kmsg.ListOffsets: &looks, kmsg.OffsetCommit: &signatures} {
		cluster.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			n.Add(1)
			return nil, nil, false
		})
	}
	m := r.start(t, r.work(1, nil), rarely, func(o *Options) { o.lagInterval = time.Hour })
	kafkatest.Until(t, "the partitions", func() bool { return len(m.parts.all()) == partitions })
	untilReady(t, m)
	if n := signatures.Load(); n > partitions/2 { // one for each if they were alone
		t.Errorf("%d commits for %d partitions", n, partitions)
	}
	if n := looks.Load(); n > partitions/2 { // three for each if they were alone
		t.Errorf("%d requests for the bounds of %d logs", n, partitions)
	}
	if len(m.stops) > 0 {
		t.Errorf("stopped: %v", <-m.stops)
	}
	m.stop(t)
}

// answers counts the answers to fetches that have records, and the batches in them.
type answers struct {
	isNew      atomic.Bool
	n, batches atomic.Int64
}

func (a *answers) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if key == int16(kmsg.Fetch) && err == nil {
		a.isNew.Store(true)
	}
}

func (a *answers) OnFetchBatchRead(kgo.BrokerMetadata, string, int32, kgo.FetchBatchMetrics) {
	if a.batches.Add(1); a.isNew.Swap(false) {
		a.n.Add(1)
	}
}

// The records of many partitions come with few answers of the broker: one that has a batch of only one partition
// would let the last of thousands wait for minutes, and be reported as silent.
func TestOneFetchBringsRecordsOfManyPartitions(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	const partitions = 1000
	r := newRig(t, partitions)
	r.fill(t, 10, 28<<10, kgo.NoCompression())
	var fetched answers
	m := r.start(t, r.work(1, nil), rarely, func(o *Options) {
		// all records fit in, and the share of a partition is less than its batch
		o.MaxBufferedBytes, o.Client = 18<<20, append(o.Client, kgo.WithHooks(&fetched))
	})
	for p := range int32(partitions) {
		r.untilStored(t, p, 10)
	}
	if n := fetched.n.Load(); n > partitions/10 || fetched.batches.Load() < partitions { // as many as partitions if an answer has one batch
		t.Errorf("%d answers with %d batches of %d partitions", n, fetched.batches.Load(), partitions)
	}
	m.stop(t)
}

// Idle partitions are not woken: of 10,000, that would take most of the processor time of an idle consumer.
// One whose hold is to be moved is.
func TestIdlePartitionsAreNotWoken(t *testing.T) {
	r := newRig(t, 4)
	m := r.start(t, r.work(1, nil), func(o *Options) { o.lagInterval = 10 * time.Millisecond })
	for p := range int32(4) {
		r.send(t, p, numbered("e", 4)[p])
	}
	idle := func() bool {
		all := m.parts.all()
		return len(all) == 4 && !slices.ContainsFunc(all, isDue)
	}
	kafkatest.Until(t, "idle partitions", idle)
	p := m.parts.get(topicPartition{r.topic, 2})
	if p.hold.set(p.hold.get().AddDate(0, 0, -7)); !isDue(p) {
		t.Error("the hold is a week old, and the partition is not woken")
	}
	kafkatest.Until(t, "the hold", idle)
	m.stop(t)
}

// The error of one partition's commit leaves the others signed.
func TestCommitThatFailsForOnePartition(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 4)
	back := r.refuseCommits(t, 2)
	m := r.start(t, r.work(1, nil))
	state := func(p int32) state {
		if p := m.parts.get(topicPartition{r.topic, p}); p != nil {
			return p.status().state
		}
		return lookingUp
	}
	for _, p := range []int32{0, 1, 3} {
		r.send(t, p, "a")
		r.untilStored(t, p, 1)
		r.UntilCommitted(t, r.group, r.topic, p, 1)
	}
	if s := state(2); s > signing {
		t.Errorf("the partition without a commit is %v", s)
	}
	back()
	r.send(t, 2, "b")
	r.untilStored(t, 2, 1)
	m.stop(t)
}

// A broker that does not answer delays only the partitions that it leads.
func TestSlowBrokerStopsOnlyItsPartitions(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	const partitions = 6
	r := newRigAt(t, kafkatest.Options{Nodes: 3}, partitions)
	cluster := r.Cluster(t)
	slow := (cluster.CoordinatorFor(r.group) + 1) % 3      // the coordinator's connection is also that of commits
	for p, leader := range []int32{slow, (slow + 1) % 3} { // the leaders of the others are random
		if err := cluster.MoveTopicPartition(r.topic, int32(p), leader); err != nil {
			t.Fatal(err)
		}
	}
	answer := make(chan struct{})
	cluster.ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if cluster.CurrentNode() == slow {
			cluster.SleepControl(func() { <-answer })
		}
		return nil, nil, false
	})
	m := r.start(t, r.work(1, nil))
	var late []int32
	for p := range int32(partitions) {
		r.send(t, p, numbered("p", partitions)[p])
		if cluster.LeaderFor(r.topic, p) == slow {
			late = append(late, p)
			continue
		}
		r.untilStored(t, p, 1)
	}
	if len(late) == 0 || len(late) == partitions {
		t.Fatalf("the slow broker leads %v", late)
	}
	for range late {
		if e := m.stoppedOne(t); e.Reason != "unreachable" || cluster.LeaderFor(r.topic, e.Partition) != slow {
			t.Errorf("stopped: %v", e)
		}
	}
	close(answer)
	for _, p := range late {
		r.untilStored(t, p, 1)
	}
	m.stop(t)
}
