package kafkaadapter

import (
	"sync/atomic"
	"testing"
	"time"

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
	slow := (cluster.CoordinatorFor(r.group) + 1) % 3 // the coordinator's connection is also that of commits
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
