package kafkaadapter

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// away makes the look-ups of the topic's logs fail until back is called.
func (r *rig) away(t *testing.T, err *kerr.Error) (back func()) {
	t.Helper()
	h := r.Cluster(t).Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: r.topic, Err: err, Count: -1})
	return func() { h.Remove() }
}

// refuseCommits makes the commits of a partition fail until back is called.
func (r *rig) refuseCommits(t *testing.T, partition int32) (back func()) {
	t.Helper()
	h := r.Cluster(t).Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Topic: r.topic, Partitions: []int32{partition}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	return func() { h.Remove() }
}

// The group's commit is compared when the leader is available again, not only at the assignment.
func TestForeignStoreIsDetectedAfterALeaderWasUnavailable(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	for name, tt := range map[string]struct {
		change func(r *rig)
		kind   error
	}{
		"another store": {func(r *rig) { r.open(t, storetest.NewMem(storage.Identity{})) }, ErrForeignStore},
		"empty store": {func(r *rig) {
			r.Commit(t, r.group, r.offset(0, 10, "kgo-1"))
			r.open(t, storetest.NewMem(storage.Identity{}))
		}, ErrEmptyStore},
		"older store": {func(r *rig) {
			r.send(t, 0, "later")
			r.Commit(t, r.group, r.offset(0, 11, authorOf(r.eng.Identity()).Metadata()))
		}, ErrKafkaAhead},
		"reset": {func(r *rig) { r.Commit(t, r.group, r.offset(0, 4, "")) }, ErrOffsetReset},
	} {
		t.Run(name, func(t *testing.T) {
			r := consumed(t, inMemory)
			tt.change(r)
			before := len(r.handled())
			commit, _ := r.Committed(t, r.group, r.topic, 0)
			back := r.away(t, kerr.LeaderNotAvailable)
			m := r.start(t, r.work(1, nil))
			for range 2 {
				if e := m.stoppedOne(t); e.Reason != "unreachable" {
					t.Errorf("stopped: %v", e)
				}
			}
			back()
			for e := m.stoppedOne(t); ; e = m.stoppedOne(t) {
				if e.Partition == 0 && e.Reason != "unreachable" {
					if !errors.Is(e, tt.kind) {
						t.Errorf("stopped: %v, want %v", e, tt.kind)
					}
					break
				}
			}
			m.stop(t)
			if after, _ := r.Committed(t, r.group, r.topic, 0); after.At != commit.At || after.Metadata != commit.Metadata || len(r.handled()) != before {
				t.Errorf("%d records were handled, Kafka had %+v and has %+v", len(r.handled())-before, commit, after)
			}
		})
	}
}

// A counter counts the records that the client has fetched.
type counter struct{ n atomic.Int64 }

func (c *counter) OnFetchRecordBuffered(*kgo.Record) { c.n.Add(1) }

func TestReadingResumesAtTheStoresOffsetAfterALeaderWasUnavailable(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 1)
	r.send(t, 0, numbered("a", 1000)...)
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 1000)
	m.stop(t)
	r.send(t, 0, "b")
	back := r.away(t, kerr.LeaderNotAvailable)
	var fetched counter
	m = r.start(t, r.work(1, nil), func(o *Options) { o.Client = append(o.Client, kgo.WithHooks(&fetched)) })
	if e := m.stoppedOne(t); e.Reason != "unreachable" {
		t.Errorf("stopped: %v", e)
	}
	back()
	r.untilStored(t, 0, 1001)
	m.stop(t)
	if n := fetched.n.Load(); n != 1 {
		t.Errorf("%d records were fetched for one", n)
	}
}

// An assignment is made although no broker answers: each partition's goroutine waits separately.
func TestAssignmentDoesNotWaitForTheBrokers(t *testing.T) {
	dialed := make(chan struct{}, 100)
	o := someOptions()
	o.Client = append(o.Client, kgo.Dialer(func(ctx context.Context, _, _ string) (net.Conn, error) {
		dialed <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}))
	c, err := New(memEngine(t), o)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(o.Client...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c.shared.brokers = newClients(client)
	offsets, err := c.assign.adjust(t.Context(), map[string]map[int32]kgo.Offset{"in": {0: kgo.NewOffset(), 1: kgo.NewOffset(), 2: kgo.NewOffset()}})
	if err != nil || len(offsets["in"]) != 3 {
		t.Errorf("assigned are %v, %v", offsets, err)
	}
	kafkatest.Receive(t, dialed)
	for _, p := range c.parts.all() {
		if s := p.status(); s.state != lookingUp || s.stop != nil {
			t.Errorf("%v is %+v", p.tp(), s)
		}
	}
	if n := c.assign.drain(c.parts.close(), time.Minute); n > 0 {
		t.Errorf("%d look-ups continue after their assignment", n)
	}
}

func TestTopicThatMayNotBeReadStopsAlone(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	for name, key := range map[string]kmsg.Key{
		"when its commit is fetched": kmsg.OffsetFetch, "when it is looked up": kmsg.ListOffsets, "when it is fetched": kmsg.Fetch,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			closed := r.topic + "-closed"
			r.CreateNamed(t, closed, 1, nil)
			r.CreateNamed(t, closed+"-dlt", 1, nil)
			r.Produce(t, &kgo.Record{Topic: closed, Headers: []kgo.RecordHeader{{Key: "message_id", Value: []byte("c")}}})
			h := r.Cluster(t).Fault(kfake.Fault{Keys: []kmsg.Key{key}, Topic: closed, Err: kerr.TopicAuthorizationFailed, Count: -1})
			m := r.start(t, r.work(1, nil), func(o *Options) { o.Routes[0].Topics = append(o.Routes[0].Topics, closed) })
			if e := m.stoppedOne(t); e.Topic != closed || e.Reason != "unauthorized" || !errors.Is(e, kerr.TopicAuthorizationFailed) {
				t.Errorf("stopped: %v", e)
			}
			r.send(t, 0, "a")
			r.untilStored(t, 0, 1)
			h.Remove()
			kafkatest.Until(t, "the other topic's record", func() bool { return r.effects(t, "c") == 1 })
			m.stop(t)
		})
	}
}

// assignedByBoth runs a test of two partitions with one record each, in a group whose client assigns
// them, and in one whose broker does (KIP-848).
func assignedByBoth(t *testing.T, test func(t *testing.T, r *rig, protocol func(*Options))) {
	kafkatest.EmbeddedOnly(t)
	for name, server := range map[string]bool{"classic": false, "KIP-848": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2)
			r.send(t, 0, "a")
			r.send(t, 1, "b")
			test(t, r, func(o *Options) { o.Membership.serverSide = server })
		})
	}
}

// A commit that could not be fetched at the assignment is compared when it can be.
func TestCommitThatCouldNotBeFetchedIsCompared(t *testing.T) {
	assignedByBoth(t, func(t *testing.T, r *rig, protocol func(*Options)) {
		r.Commit(t, r.group, r.offset(1, 1, ""))
		r.Cluster(t).Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Topic: r.topic, Err: kerr.TopicAuthorizationFailed, Count: 1})
		m := r.start(t, r.work(1, nil), protocol)
		if e := m.stoppedOne(t); !errors.Is(e, ErrEmptyStore) || e.Partition != 1 {
			t.Errorf("stopped: %v", e)
		}
		r.untilStored(t, 0, 1)
		m.stop(t)
		r.checkOnce(t, "a")
	})
}

// The client looks up the commits again while a transaction has one open, and then leaves out the
// partitions that were refused before.
func TestPartitionThatIsRefusedBeforeACommitIsStableIsRead(t *testing.T) {
	assignedByBoth(t, func(t *testing.T, r *rig, protocol func(*Options)) {
		c, fetch := r.Cluster(t), []kmsg.Key{kmsg.OffsetFetch}
		c.Fault(kfake.Fault{Keys: fetch, Topic: r.topic, Partitions: []int32{0}, Err: kerr.TopicAuthorizationFailed, Count: 1})
		unstable := c.Fault(kfake.Fault{Keys: fetch, Topic: r.topic, Partitions: []int32{1}, Err: kerr.UnstableOffsetCommit, Count: 1})
		m := r.start(t, r.work(1, nil), protocol)
		r.untilStored(t, 0, 1)
		r.untilStored(t, 1, 1)
		m.stop(t)
		r.checkOnce(t, "a", "b")
		if unstable.Hits() != 1 {
			t.Errorf("%d answers were unstable", unstable.Hits())
		}
	})
}

// Latest skips the records that existed when the group first consumed the topic. A partition that
// is added later is read from its beginning, as is one of a topic that was created again.
func TestLatestReadsLaterPartitionsFromTheirBeginning(t *testing.T) {
	r := newRig(t, 1)
	latest := func(o *Options) { o.Routes[0].Start = Latest }
	r.send(t, 0, "before")
	m := r.start(t, r.work(1, nil), latest)
	r.UntilCommitted(t, r.group, r.topic, 0, 1)
	m.stop(t)
	if _, err := kadm.NewClient(r.Client(t)).CreatePartitions(t.Context(), 1, r.topic); err != nil {
		t.Fatal(err)
	}
	r.partitions = 2
	kafkatest.Until(t, "the partition that is added", func() bool {
		return r.TryProduce(t, r.event(1, "added")) == nil
	})
	m = r.start(t, r.work(1, nil), latest)
	kafkatest.Until(t, "the record of the partition that was added", func() bool { return r.effects(t, "added") > 0 })
	m.stop(t)
	if got := r.handledIDs(); !slices.Equal(slices.Compact(got), []string{"added"}) {
		t.Errorf("handled %q", got)
	}
}

// The lag of a partition that is stopped before it is looked up is that of the store's offset.
func TestLagOfAPartitionThatIsStoppedBeforeItsLookUp(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 1)
	r.send(t, 0, numbered("a", 10)...)
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 10)
	m.stop(t)
	r.send(t, 0, numbered("b", 3)...)
	r.Cluster(t).Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Topic: r.topic, Err: kerr.TopicAuthorizationFailed, Count: -1})
	m = r.start(t, r.work(1, nil), func(o *Options) { o.lagInterval = 20 * time.Millisecond })
	if e := m.stoppedOne(t); e.Reason != "unauthorized" {
		t.Errorf("stopped: %v", e)
	}
	kafkatest.Until(t, "a report of the log's end", func() bool { return m.metric(t, "lag_records") > 0 })
	if lag := m.metric(t, "lag_records"); lag != 3 {
		t.Errorf("a lag of %v, want 3", lag)
	}
	m.stop(t)
}
