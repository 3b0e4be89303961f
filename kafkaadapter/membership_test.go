package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

func pinned(ordinal, of int) func(*Options) {
	return func(o *Options) { o.Membership.pinned = fixedShare{ordinal, of} }
}

func TestPinnedConsumersShareATopicWithAStoreEach(t *testing.T) {
	const partitions, each = 4, 20
	r := newRig(t, partitions)
	var ids [partitions][]string
	for p := range int32(partitions) {
		ids[p] = numbered(fmt.Sprintf("p%d-", p), each)
		r.send(t, p, ids[p]...)
	}
	engines := make([]*engine.Engine, 2)
	for pod := range engines {
		r.open(t, storetest.NewMem(storage.Identity{}))
		engines[pod] = r.eng
		r.start(t, r.work(2, nil), pinned(pod, 2))
	}
	for range 2 { // the second time after restarts
		for p := range int32(partitions) {
			r.eng = engines[p%2]
			r.untilStored(t, p, int64(len(ids[p])))
			r.checkOnce(t, ids[p]...)
			if r.effectsIn(t, engines[(p+1)%2], ids[p][0]) != 0 {
				t.Errorf("partition %d is handled by the other consumer", p)
			}
			kafkatest.Until(t, "the commit", func() bool {
				o, _ := r.Committed(t, r.group, r.topic, p)
				return o.At == int64(len(ids[p])) && o.Metadata == authorOf(r.eng.Identity()).Metadata()
			})
		}
		for p := range int32(partitions) {
			more := fmt.Sprintf("more-%d-%d", p, len(ids[p]))
			ids[p] = append(ids[p], more)
			r.send(t, p, more)
		}
	}
}

func (r *rig) effectsIn(t *testing.T, e *engine.Engine, id string) uint64 {
	t.Helper()
	was := r.eng
	defer func() { r.eng = was }()
	r.eng = e
	return r.effects(t, id)
}

func TestPinnedConsumerContinuesWhereItsStoreIs(t *testing.T) {
	r := newRig(t, 2)
	r.send(t, 1, "a", "b")
	m := r.start(t, r.work(2, nil), pinned(1, 2))
	r.untilStored(t, 1, 2)
	m.stop(t)
	r.send(t, 1, "c", "a")
	m = r.start(t, r.work(2, nil), pinned(1, 2))
	r.untilStored(t, 1, 4)
	r.checkOnce(t, "a", "b", "c")
	m.stop(t)
}

// Two processes with the same ordinal have a store each. The one that finds the other's commit
// stops.
func TestSecondConsumerWithOneIndexStopsTheFirst(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	m := r.start(t, r.work(2, nil), pinned(0, 1))
	r.untilStored(t, 0, 1)
	self := authorOf(r.eng.Identity()).Metadata()
	kafkatest.Until(t, "the commit", func() bool {
		o, _ := r.Committed(t, r.group, r.topic, 0)
		return o.At == 1 && o.Metadata == self
	})
	foreign := resume.Author{UUID: [16]byte{1}, Incarnation: 1}.Metadata()
	r.Commit(t, r.group, r.offset(0, 1, foreign))
	r.send(t, 0, "b")
	if e := m.stoppedOne(t); !errors.Is(e, ErrForeignStore) {
		t.Errorf("stopped: %v", e)
	}
	m.stop(t)
	if o, _ := r.Committed(t, r.group, r.topic, 0); o.Metadata != foreign {
		t.Errorf("the other's commit was replaced: %+v", o)
	}

	r.open(t, storetest.NewMem(storage.Identity{}))
	m = r.start(t, r.work(2, nil), pinned(0, 1))
	if e := m.stoppedOne(t); !errors.Is(e, ErrForeignStore) {
		t.Errorf("a third consumer: stopped: %v", e)
	}
	m.stop(t)
}

func TestChangedNumberOfPinnedConsumersIsNoticed(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	m := r.start(t, r.work(2, nil), pinned(0, 2))
	r.untilStored(t, 0, 1)
	m.stop(t)
	for _, now := range []func(*Options){pinned(0, 3), pinned(1, 2), func(*Options) {}} {
		m := r.start(t, r.work(2, nil), now)
		kafkatest.Receive(t, m.done)
		if !errors.Is(m.err, ErrPinnedChanged) {
			t.Errorf("Run: %v", m.err)
		}
	}
	r.start(t, r.work(2, nil), pinned(0, 2)).stop(t)
	o := r.options(r.work(2, nil))
	for _, bad := range []fixedShare{{1, 1}, {-1, 2}, {0, -1}, {1, 0}} {
		o.Membership.pinned = bad
		if _, err := New(r.eng, o); !errors.Is(err, ErrOption) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	for name, bad := range map[string]Membership{
		"no replicas": Pinned(0, 0), "no name": Static(""), "no name, on the server's side": Static("").ServerSide(), "pinned by the server": Pinned(0, 1).ServerSide(),
	} { // they must not become dynamic members, whose partitions move
		o.Membership = bad
		if _, err := New(r.eng, o); !errors.Is(err, ErrOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	o.Membership.pinned, o.Membership.instanceID = fixedShare{0, 1}, "static"
	if _, err := New(r.eng, o); !errors.Is(err, ErrOption) {
		t.Errorf("pinned and static: %v", err)
	}
}

func TestPartitionThatIsAddedIsPinnedToo(t *testing.T) {
	r := newRig(t, 1)
	m := r.start(t, r.work(2, nil), pinned(1, 2), acceptPartitions)
	kafkatest.Until(t, "a check of the topic", func() bool { return m.Ready() == nil })
	if _, err := kadm.NewClient(r.Client(t)).CreatePartitions(context.Background(), 1, r.topic); err != nil {
		t.Fatal(err)
	}
	kafkatest.Until(t, "the new partition", func() bool {
		select {
		case m.pin.repin <- struct{}{}:
		default:
		}
		return m.parts.get(topicPartition{r.topic, 1}) != nil
	})
	r.send(t, 1, "a")
	r.untilStored(t, 1, 1)
	m.stop(t)
}

// Latest skips the records that existed when the consumer first saw the topic, even if it had none of
// the partitions then.
func TestPartitionThatIsAddedIsReadFromItsBeginning(t *testing.T) {
	for name, restart := range map[string]bool{"while the consumer runs": false, "while it is stopped": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			latest := func(o *Options) { o.Routes[0].Start = Latest }
			m := r.start(t, r.work(2, nil), pinned(1, 2), latest, acceptPartitions)
			kafkatest.Until(t, "a check of the topic", func() bool { return m.Ready() == nil })
			if restart {
				m.stop(t)
			}
			if _, err := kadm.NewClient(r.Client(t)).CreatePartitions(t.Context(), 1, r.topic); err != nil {
				t.Fatal(err)
			}
			r.partitions = 2
			kafkatest.Until(t, "the partition that is added", func() bool { return r.TryProduce(t, r.event(1, "added")) == nil })
			if restart {
				m = r.start(t, r.work(2, nil), pinned(1, 2), latest, acceptPartitions)
			}
			kafkatest.Until(t, "the new partition", func() bool {
				select {
				case m.pin.repin <- struct{}{}:
				default:
				}
				return r.stored(t, 1) > 0
			})
			m.stop(t)
			r.checkOnce(t, "added")
		})
	}
}

// What the consumer has stored of a topic with Latest is damaged: Run says so, as with a group.
func TestPinnedConsumerEndsIfItsStoreIsUnreadable(t *testing.T) {
	r := newRig(t, 1)
	p := engine.OffsetKey{Group: r.group, Topic: r.topic, Partition: -1}
	if err := r.eng.Update(t.Context(), func(tx *engine.Tx) error { return own(tx).Put(partitionKey(keyFirst, p), []byte{9}) }); err != nil {
		t.Fatal(err)
	}
	m := r.start(t, r.work(2, nil), pinned(0, 1), func(o *Options) { o.Routes[0].Start = Latest })
	kafkatest.Receive(t, m.done)
	if m.err == nil {
		t.Error("Run returned nil")
	}
}

func TestPinnedTopicThatIsCreatedAgainIsReadFromItsStart(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b")
	m := r.start(t, r.work(2, nil), pinned(0, 1), func(o *Options) { o.Recovery = Recovery{ErrRecreated: StartOver} })
	r.untilStored(t, 0, 2)
	r.RecreateTopic(t, r.topic, 1, nil)
	r.send(t, 0, "c")
	kafkatest.Until(t, "the new topic", func() bool { return r.effects(t, "c") == 1 })
	r.checkOnce(t, "a", "b", "c")
	m.stop(t)
}

// Two consumers of one process that are pinned to the same partitions share a store. The later one
// owns the partitions.
func TestPartitionThatIsFencedIsNotReady(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	first := r.start(t, r.work(1, nil), pinned(0, 1))
	r.untilStored(t, 0, 1)
	second := r.start(t, r.work(1, nil), pinned(0, 1))
	kafkatest.Until(t, "the second consumer", func() bool { return second.Ready() == nil })
	r.send(t, 0, "b", "c")
	if e := first.stoppedOne(t); !errors.Is(e, ErrFenced) || e.Reason != "fenced" {
		t.Errorf("stopped: %v", e)
	}
	if err := first.Ready(); !errors.Is(err, ErrNotReady) || !errors.Is(err, ErrFenced) {
		t.Errorf("ready: %v", err)
	}
	r.untilStored(t, 0, 3)
	r.checkOnce(t, "a", "b", "c")
	first.stop(t)
	second.stop(t)
}

func TestPartitionThatIsFencedDoesNotSetKafkasOffsetBack(t *testing.T) {
	r := newRig(t, 1)
	first := r.start(t, r.work(1, nil), pinned(0, 1), rarely)
	untilReady(t, first)
	r.send(t, 0, "a")
	r.untilStored(t, 0, 1)
	second := r.start(t, r.work(1, nil), pinned(0, 1))
	untilReady(t, second)
	r.send(t, 0, "b", "c")
	first.stoppedOne(t)
	r.untilStored(t, 0, 3)
	r.UntilCommitted(t, r.group, r.topic, 0, 3)
	first.stop(t)
	if at, _ := r.commitOf(t, 0); at != 3 {
		t.Errorf("Kafka's commit is %d, want 3", at)
	}
	second.stop(t)
}

// The loop that assigns pinned partitions and the one that forgets topics run at the same time.
func TestPinnedTopicsThatAreCreatedAgainAtTheSameTime(t *testing.T) {
	r := newRig(t, 1)
	topics := []string{r.topic}
	for i := range 5 {
		topic := fmt.Sprintf("%s-%d", r.topic, i)
		r.CreateNamed(t, topic, 1, nil)
		r.CreateNamed(t, topic+"-dlt", 1, nil)
		topics = append(topics, topic)
	}
	send := func(topic, id string) {
		r.Produce(t, &kgo.Record{Topic: topic, Headers: []kgo.RecordHeader{{Key: "message_id", Value: []byte(id)}}})
	}
	m := r.start(t, r.work(2, nil), pinned(0, 1), func(o *Options) { o.Recovery, o.Routes[0].Topics = Recovery{ErrRecreated: StartOver}, topics })
	for _, before := range []string{"first in ", "second in "} {
		for _, topic := range topics {
			send(topic, before+topic)
		}
		for _, topic := range topics {
			kafkatest.Until(t, before+topic, func() bool { return r.effects(t, before+topic) == 1 })
		}
		for _, topic := range topics {
			r.RecreateTopic(t, topic, 1, nil)
		}
	}
	m.stop(t)
}

// OnRebalance hangs until Run has ended all assignments: those of pinLoop do not begin.
func TestNoPinnedPartitionBeginsAfterTheEndOfAll(t *testing.T) {
	kafkatest.NoGoroutines(t, "hapax/kafkaadapter.(*")
	r := newRig(t, 1)
	told, end := make(chan struct{}, 1), make(chan struct{})
	m := r.start(t, r.work(1, nil), pinned(0, 1), func(o *Options) {
		o.OnRebalance = func(change Change, _ map[string][]int32) {
			if change == Assigned {
				told <- struct{}{}
				<-end
			}
		}
	})
	kafkatest.Receive(t, told)
	m.cancel()
	kafkatest.Until(t, "the end of all assignments", func() bool {
		m.parts.mu.Lock()
		defer m.parts.mu.Unlock()
		return m.parts.closed
	})
	close(end)
	kafkatest.Receive(t, m.done)
	if all := m.parts.all(); len(all) != 0 || m.err != nil {
		t.Errorf("Run: %v; assigned afterwards: %d", m.err, len(all))
	}
}
