package kafkaadapter

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

func TestAdoptedOffsetIsAppliedOnceAndRecorded(t *testing.T) {
	r := consumed(t, inMemory) // with another store
	r.send(t, 0, "c")
	before := len(r.handled())
	r.open(t, storetest.NewMem(storage.Identity{}))
	m := r.start(t, r.work(1, nil))
	ctx := context.Background()
	for e := m.stoppedOne(t); e.Partition != 0; e = m.stoppedOne(t) {
	}
	if err := m.AdoptOffset(ctx, r.topic, 0, TrustKafka, ""); !errors.Is(err, ErrOption) {
		t.Errorf("adopted without a reason: %v", err)
	}
	if err := m.AdoptOffset(ctx, r.topic, 0, Stop, "try"); !errors.Is(err, ErrOption) {
		t.Errorf("adopted with a policy that does not apply: %v", err)
	}
	if err := m.AdoptOffset(ctx, r.topic, 7, TrustKafka, "try"); !errors.Is(err, ErrNotStopped) {
		t.Errorf("adopted for a partition that is not assigned: %v", err)
	}
	if err := m.AdoptOffset(ctx, r.topic, 0, TrustKafka, "volume lost, approved by Ada"); err != nil {
		t.Fatal(err)
	}
	r.untilStored(t, 0, 11)
	if got := r.handledIDs()[before:]; !slices.Equal(got, []string{"c"}) {
		t.Errorf("handled %v, want c", got)
	}
	if err := m.AdoptOffset(ctx, r.topic, 0, TrustKafka, "again"); !errors.Is(err, ErrNotStopped) {
		t.Errorf("adopted for a partition that is read: %v", err)
	}
	all, err := m.Adoptions(ctx)
	if err != nil || len(all) != 1 {
		t.Fatalf("adoptions %+v, %v", all, err)
	}
	a := all[0]
	if a.Topic != r.topic || a.Partition != 0 || a.Kind != "ForeignStore" || a.Policy != TrustKafka || a.Store != -1 || a.Committed != 10 ||
		a.Offset != 10 || a.Reason != "volume lost, approved by Ada" || a.Time.IsZero() || a.Metadata == "" {
		t.Errorf("recorded %+v", a)
	}
	m.stop(t)

	// The adoption applied once: the next lost volume stops the partition again.
	r.open(t, storetest.NewMem(storage.Identity{}))
	m = r.start(t, r.work(1, nil))
	if e := m.stoppedOne(t); !errors.Is(e, ErrForeignStore) {
		t.Errorf("stopped: %v", e)
	}
}

// A further call does not wait for a partition that is owned at its new offset and not read yet.
func TestAdoptionEndsTheStop(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 1)
	r.send(t, 0, "a", "b")
	r.Commit(t, r.group, r.offset(0, 1, ""))
	m := r.start(t, r.work(1, nil))
	m.stoppedOne(t)
	h := r.Cluster(t).Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Topic: r.topic, Err: kerr.TopicAuthorizationFailed, Count: -1})
	if err := m.AdoptOffset(t.Context(), r.topic, 0, TrustKafka, "try"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := m.AdoptOffset(ctx, r.topic, 0, TrustKafka, "again"); !errors.Is(err, ErrNotStopped) {
		t.Errorf("adopted again: %v", err)
	}
	h.Remove()
	r.untilStored(t, 0, 2)
	m.stop(t)
	r.checkOnce(t, "b")
}

func TestAdoptionEndsWithTheAssignment(t *testing.T) {
	r := newRig(t, 1)
	c, err := New(r.eng, r.options(r.work(1, nil)))
	if err != nil {
		t.Fatal(err)
	}
	tp := topicPartition{r.topic, 0}
	p := c.assign.newWorker(tp, nil, 0)
	c.parts.put(p.state.partition)
	p.partition.stat = status{state: stopped, stop: &StopError{r.topic, 0, "position", &PositionError{Kind: ErrForeignStore}}}
	p.partition.end() // before the goroutine takes the request
	if err := c.AdoptOffset(context.Background(), r.topic, 0, TrustKafka, "late"); !errors.Is(err, ErrFenced) {
		t.Errorf("adopted for an assignment that has ended: %v", err)
	}
}

// The commit was moved, and both offsets are below the log's start: two policies take effect
// together, and the first can still be changed before the second is given.
func TestAdoptionOfTwoDisagreements(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, numbered("a", 10)...)
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 10)
	m.stop(t)
	r.send(t, 0, numbered("b", 10)...)
	r.DeleteRecords(t, r.topic, 0, 15)
	r.Commit(t, r.group, r.offset(0, 5, ""))
	m = r.start(t, r.work(1, nil))
	if e := m.stoppedOne(t); !errors.Is(e, ErrOffsetReset) {
		t.Fatalf("stopped: %v", e)
	}
	for _, policy := range []RecoveryPolicy{TrustKafka, TrustStore} {
		if err := m.AdoptOffset(t.Context(), r.topic, 0, policy, "first"); !errors.Is(err, ErrBelowLog) {
			t.Fatalf("%v: %v", policy, err)
		}
		if all := m.Stopped(); len(all) != 1 || !errors.Is(all[0], ErrBelowLog) {
			t.Errorf("stopped: %v", all)
		}
	}
	if e := m.stoppedOne(t); !errors.Is(e, ErrBelowLog) {
		t.Errorf("stopped: %v", e)
	}
	if err := m.AdoptOffset(t.Context(), r.topic, 0, TrustKafka+7, "none"); !errors.Is(err, ErrOption) {
		t.Errorf("no policy: %v", err)
	}
	if err := m.AdoptOffset(t.Context(), r.topic, 0, StartOver, "second"); err != nil {
		t.Fatal(err)
	}
	r.untilStored(t, 0, 20)
	r.checkOnce(t, numbered("b", 10)[5:]...)
	all, err := m.Adoptions(t.Context())
	if err != nil || len(all) != 2 || all[0].Kind != "OffsetReset" || all[0].Policy != TrustStore || all[1].Kind != "BelowLog" || all[1].Policy != StartOver {
		t.Errorf("recorded %+v, %v", all, err)
	}
	m.stop(t)
}

// The store forgets the epoch of the records that the log has lost, so that the partition does not
// stop again before it has read another record.
func TestAdoptionOfADivergedLogOutlivesTheAssignment(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 1)
	r.send(t, 0, "a", "b", "c", "d", "e")
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 5)
	m.stop(t)
	r.cutLog(t, 3)
	m = r.start(t, r.work(1, nil))
	if e := m.stoppedOne(t); !errors.Is(e, ErrLogDiverged) {
		t.Fatalf("stopped: %v", e)
	}
	if err := m.AdoptOffset(t.Context(), r.topic, 0, TrustStore, "approved"); err != nil {
		t.Fatal(err)
	}
	untilReady(t, m)
	all, err := m.Adoptions(t.Context())
	if err != nil || len(all) != 1 || all[0].Kind != "LogDiverged" || all[0].Policy != TrustStore || all[0].Offset != 5 {
		t.Errorf("recorded %+v, %v", all, err)
	}
	m.stop(t)
	m = r.start(t, r.work(1, nil))
	r.send(t, 0, "f")
	r.untilStored(t, 0, 6)
	m.stop(t)
	if len(m.stops) > 0 {
		t.Errorf("stopped: %v", <-m.stops)
	}
}

// The process ends after a policy has set the store's offset back, and before Kafka has the new one.
func TestPolicyThatKafkaDidNotLearnOf(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := consumed(t, inMemory)
	err := r.eng.Update(t.Context(), func(tx *engine.Tx) error {
		return tx.SetOffset(r.position(0), engine.Offset{Next: 99, LeaderEpoch: -1, TopicID: r.TopicID(t, r.topic)})
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Commit(t, r.group, r.offset(0, 99, authorOf(r.eng.Identity()).Metadata()))
	h := r.Cluster(t).Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Topic: r.topic, Err: kerr.TopicAuthorizationFailed, Count: -1})
	m := r.start(t, r.work(1, nil), func(o *Options) { o.Recovery = Recovery{ErrAboveLog: StartOver} })
	kafkatest.Until(t, "the policy in the store", func() bool { return r.stored(t, 0) == 0 })
	m.stop(t)
	h.Remove()
	r.checkStops(t, ErrKafkaAhead)
	r.checkWayOn(t, Recovery{ErrKafkaAhead: TrustStore})
}

// A partition that is stopped by a PositionError, and whose look-up for an adoption does not
// succeed, answers further calls: one that waits for it must not make another partition wait.
func TestAdoptionThatIsNotAppliedYetDoesNotHoldUpOthers(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := consumed(t, inMemory)
	r.open(t, storetest.NewMem(storage.Identity{})) // another store
	m := r.start(t, r.work(1, nil))
	for range r.partitions {
		m.stoppedOne(t)
	}
	h := r.Cluster(t).Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: r.topic, Partitions: []int32{0}, Err: kerr.LeaderNotAvailable, Count: -1})
	adopt := func(ctx context.Context, partition int32) <-chan error {
		done := make(chan error, 1)
		go func() { done <- m.AdoptOffset(ctx, r.topic, partition, TrustKafka, "volume lost") }()
		return done
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := adopt(ctx, 0)
	kafkatest.Until(t, "the first adoption to be looked up", func() bool {
		return m.parts.get(topicPartition{r.topic, 0}).status().state != stopped
	})
	second := adopt(ctx, 0)
	if err := kafkatest.Receive(t, adopt(t.Context(), 1)); err != nil {
		t.Errorf("another partition: %v", err)
	}
	if err := kafkatest.Receive(t, second); !errors.Is(err, ErrNotStopped) {
		t.Errorf("a second adoption while the first is applied: %v", err)
	}
	h.Remove()
	if err := kafkatest.Receive(t, first); err != nil {
		t.Errorf("the first adoption: %v", err)
	}
	m.stop(t)
}
