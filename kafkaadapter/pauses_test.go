package kafkaadapter

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// untilPaused waits until a partition is assigned, paused, and has fetched records that it does not
// handle.
func (m *member) untilPaused(t *testing.T, tp topicPartition) {
	t.Helper()
	kafkatest.Until(t, "a paused partition with records", func() bool {
		p := m.parts.get(tp)
		return p != nil && p.status().state == paused && !p.queue.IsIdle()
	})
}

func TestPausedPartitionHandlesNothingUntilItIsResumed(t *testing.T) {
	r := newRig(t, 2)
	r.send(t, 0, "a0")
	r.send(t, 1, "b0")
	m := r.start(t, r.work(2, nil))
	r.untilStored(t, 0, 1)
	r.untilStored(t, 1, 1)
	if err := m.Pause(r.topic, 1); err != nil {
		t.Fatal(err)
	}
	kafkatest.Until(t, "the pause", func() bool { return m.parts.get(topicPartition{r.topic, 1}).status().state == paused })
	r.send(t, 1, "b1")
	r.send(t, 0, "a1")
	r.untilStored(t, 0, 2)
	m.untilPaused(t, topicPartition{r.topic, 1})
	if got := r.stored(t, 1); got != 1 {
		t.Errorf("the paused partition is at offset %d, want 1", got)
	}
	m.counts(t, 1, "partition_paused")
	if err := m.Resume(r.topic, 1); err != nil {
		t.Fatal(err)
	}
	r.untilStored(t, 1, 2)
	r.checkOnce(t, "a0", "a1", "b0", "b1")
	m.stop(t)
}

// A partition that is paused while it is stopped counts as read when its stop has ended.
func TestStopEndsWhileItsPartitionIsPaused(t *testing.T) {
	r := newRig(t, 1)
	r.DeleteTopic(t, r.topic+"-dlt")
	r.send(t, 0, "poison")
	m := r.start(t, r.work(1, failing(errHandler, "poison")), func(o *Options) { o.lagInterval = 50 * time.Millisecond })
	if e := m.stoppedOne(t); !errors.Is(e, ErrDeadLetter) {
		t.Errorf("stopped: %v", e)
	}
	if err := m.Pause(r.topic); err != nil {
		t.Fatal(err)
	}
	r.send(t, 0, "a")
	r.CreateNamed(t, r.topic+"-dlt", 1, nil)
	kafkatest.Until(t, "the end of the stop", func() bool { return len(m.Stopped()) == 0 && m.Ready() == nil })
	if n := r.stored(t, 0); n != 1 {
		t.Errorf("the store is at %d", n)
	}
	if err := m.Resume(r.topic); err != nil {
		t.Fatal(err)
	}
	r.untilStored(t, 0, 2)
	m.stop(t)
	r.checkOnce(t, "a")
}

func TestPausedTopicIsPausedForPartitionsThatAreAssignedLater(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	var m *member
	made := make(chan struct{})
	m = r.start(t, r.work(2, nil), func(o *Options) {
		o.OnRebalance = func(change Change, _ map[string][]int32) {
			if change != Assigned {
				return
			}
			<-made
			if err := m.Pause(o.Routes[0].Topics[0]); err != nil {
				t.Error(err)
			}
		}
	})
	close(made)
	tp := topicPartition{r.topic, 0}
	m.untilPaused(t, tp)
	if err := m.Resume(r.topic, 0); err != nil {
		t.Fatal(err)
	}
	if !m.parts.get(tp).IsPaused() {
		t.Error("resuming a partition ends the pause of its topic")
	}
	if got := r.handledIDs(); len(got) > 0 {
		t.Errorf("handled while paused: %v", got)
	}
	if err := m.Pause(r.topic, 0); err != nil { // ended by the resumption of the topic
		t.Fatal(err)
	}
	if err := m.Resume(r.topic); err != nil {
		t.Fatal(err)
	}
	r.untilStored(t, 0, 1)
	if err := m.Pause("another-topic"); !errors.Is(err, ErrOption) {
		t.Errorf("pausing a topic that is not consumed: %v", err)
	}
	m.stop(t)
}

func TestHooksSeeAssignmentsBeforeAndAfterTheWork(t *testing.T) {
	r := newRig(t, 2)
	r.send(t, 0, "a")
	r.send(t, 1, "b")
	var seen []string
	note := func(change Change, partitions map[string][]int32) {
		slices.Sort(partitions[r.topic])
		for range partitions[r.topic] {
			r.mu.Lock()
			seen = append(seen, [...]string{Assigned: "assigned", Revoked: "revoked", Lost: "lost"}[change])
			for range r.runs {
				seen = append(seen, "handled")
			}
			r.mu.Unlock()
		}
	}
	m := r.start(t, r.work(2, nil), func(o *Options) { o.OnRebalance = note })
	r.untilStored(t, 0, 1)
	r.untilStored(t, 1, 1)
	m.stop(t)
	want := []string{"assigned", "assigned", "revoked", "handled", "handled", "revoked", "handled", "handled"}
	if !slices.Equal(seen, want) {
		t.Errorf("seen %v, want %v", seen, want)
	}
}
