package kafkaadapter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// consumed makes a consumer read a0..a9 of partition 0 and b0..b9 of partition 1.
func consumed(t *testing.T, s newStore) *rig {
	t.Helper()
	r := newRigOn(t, s, 2)
	r.send(t, 0, numbered("a", 10)...)
	r.send(t, 1, numbered("b", 10)...)
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 10)
	r.untilStored(t, 1, 10)
	m.stop(t)
	if o, _ := r.Committed(t, r.group, r.topic, 0); o.At != 10 {
		t.Fatalf("Kafka has %+v", o)
	}
	return r
}

// checkStops starts a consumer: partition 0 stops for that reason, and partition 1 continues.
func (r *rig) checkStops(t *testing.T, kind error) {
	t.Helper()
	r.send(t, 1, "on")
	m := r.start(t, r.work(1, nil))
	e := m.stoppedOne(t)
	if e.Partition != 0 || e.Reason != "position" || !errors.Is(e, kind) || !errors.As(e, new(*PositionError)) {
		t.Errorf("stopped: %v, want %v", e, kind)
	}
	kafkatest.Until(t, "the other partition", func() bool { return r.effects(t, "on") == 1 })
	m.counts(t, 1, "partition_stopped", "0", "position")
	m.stop(t)
}

// checkWayOn starts a consumer with a recovery policy and checks which records of partition 0 it
// handles after another record was sent.
func (r *rig) checkWayOn(t *testing.T, p Recovery, want ...string) {
	t.Helper()
	before := len(r.handled())
	last := "last-" + kafkatest.Name(t)
	m := r.start(t, r.work(1, nil), func(o *Options) { o.Recovery = p })
	r.send(t, 0, last)
	kafkatest.Until(t, "the last record", func() bool { return r.effects(t, last) == 1 })
	r.untilStored(t, 0, r.Log(t, r.topic, 0).End)
	m.stop(t)
	var got []string
	for _, x := range r.handled()[before:] {
		if x.partition == 0 {
			got = append(got, x.id)
		}
	}
	if want = append(want, last); !slices.Equal(got, want) {
		t.Errorf("%+v: handled %q, want %q", p, got, want)
	}
	r.checkOnce(t, want...)
	if o, _ := r.Committed(t, r.group, r.topic, 0); o.Metadata != authorOf(r.eng.Identity()).Metadata() || o.At != r.stored(t, 0) {
		t.Errorf("Kafka has %+v", o)
	}
}

func TestRecordsRemovedWhileStopped(t *testing.T) { onEachStore(t, recordsRemovedWhileStopped) }

func recordsRemovedWhileStopped(t *testing.T, s newStore) {
	r := consumed(t, s)
	r.send(t, 0, numbered("c", 5)...)
	r.DeleteRecords(t, r.topic, 0, 13)
	r.checkStops(t, ErrBelowLog)
	r.checkWayOn(t, Recovery{ErrBelowLog: StartOver}, "c3", "c4")
}

// Kafka gets the new offset at once, and not only with the next record.
func TestKafkaGetsTheOffsetOfAPolicyInAnEmptyLog(t *testing.T) {
	r := consumed(t, inMemory)
	r.send(t, 0, numbered("c", 5)...)
	end := r.Log(t, r.topic, 0).End
	r.DeleteRecords(t, r.topic, 0, end)
	m := r.start(t, r.work(1, nil), func(o *Options) { o.Recovery = Recovery{ErrBelowLog: StartOver} })
	untilReady(t, m)
	if at, _ := r.commitOf(t, 0); at != end {
		t.Errorf("Kafka's commit is %d, want %d", at, end)
	}
	m.stop(t)
}

func TestRetentionRemovesUnreadRecords(t *testing.T) { onEachStore(t, retentionRemovesWhatWasNotRead) }

func retentionRemovesWhatWasNotRead(t *testing.T, s newStore) {
	r := newRigOn(t, s, 1)
	r.send(t, 0, numbered("a", 3)...)
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 3)
	m.stop(t)
	r.send(t, 0, numbered("b", 3)...)
	r.Expire(t, r.topic)
	r.send(t, 0, "c")
	m = r.start(t, r.work(1, nil))
	if e := m.stoppedOne(t); !errors.Is(e, ErrBelowLog) {
		t.Errorf("stopped: %v", e)
	}
	m.stop(t)
	r.checkWayOn(t, Recovery{ErrBelowLog: StartOver}, "c")
}

// Fetching is paused meanwhile, so that the client does not have the removed records. A fetch in
// progress may still return them: then the test repeats this with other records.
func TestRecordsRemovedWhileRunning(t *testing.T) { onEachStore(t, recordsRemovedWhileRunning) }

func recordsRemovedWhileRunning(t *testing.T, s newStore) {
	for name, way := range map[string]RecoveryPolicy{"stop": Stop, "start over": StartOver} {
		t.Run(name, func(t *testing.T) {
			r := newRigOn(t, s, 1)
			r.send(t, 0, "a")
			m := r.start(t, r.work(1, nil), func(o *Options) { o.Recovery = Recovery{ErrBelowLog: way} })
			r.untilStored(t, 0, 1)
			for round := range 20 {
				ids := numbered(fmt.Sprintf("b%d-", round), 9)
				stop := r.removed(t, m, ids)
				switch got := r.handledIDs(); {
				case stop == nil && slices.Contains(got, ids[0]):
					continue
				case way == Stop && (stop == nil || !errors.Is(stop, ErrBelowLog)):
					t.Errorf("stopped: %v", stop)
				case way == StartOver && (stop != nil || got[len(got)-1] != ids[8] || slices.Contains(got, ids[7])):
					t.Errorf("stopped: %v, handled %q", stop, got)
				}
				m.stop(t)
				return
			}
			t.Fatal("the client has the removed records in each repetition")
		})
	}
}

// removed sends events of which only the last one remains in the log. It returns the stop of the
// partition, or nil if the partition has reached the end of the log.
func (r *rig) removed(t *testing.T, m *member, ids []string) (stop *StopError) {
	t.Helper()
	first, last := r.stored(t, 0), int64(len(ids)-1)
	only := map[string][]int32{r.topic: {0}}
	m.shared.brokers.client.PauseFetchPartitions(only)
	r.send(t, 0, ids...)
	r.DeleteRecords(t, r.topic, 0, first+last)
	m.shared.brokers.client.ResumeFetchPartitions(only)
	kafkatest.Until(t, "a stop, or the end of the log", func() bool {
		select {
		case stop = <-m.stops:
			return true
		default:
			return r.stored(t, 0) > first+last
		}
	})
	return stop
}

func TestStoreAheadOfTheLog(t *testing.T) { onEachStore(t, storeAheadOfTheLog) }

func storeAheadOfTheLog(t *testing.T, s newStore) {
	r := consumed(t, s)
	err := r.eng.Update(t.Context(), func(tx *engine.Tx) error {
		return tx.SetOffset(r.position(0), engine.Offset{Next: 99, LeaderEpoch: -1, TopicID: r.TopicID(t, r.topic)})
	})
	if err != nil {
		t.Fatal(err)
	}
	r.checkStops(t, ErrAboveLog)
	r.send(t, 0, "c")
	r.checkWayOn(t, Recovery{ErrAboveLog: TrustKafka}, "c")
}

func TestTopicRecreatedWhileStopped(t *testing.T) { onEachStore(t, topicRecreatedWhileStopped) }

func topicRecreatedWhileStopped(t *testing.T, s newStore) {
	r := consumed(t, s)
	r.RecreateTopic(t, r.topic, 2, nil)
	r.send(t, 0, "a3", "c0") // a3 was handled in the first topic
	m := r.start(t, r.work(1, nil))
	for range 2 {
		if e := m.stoppedOne(t); !errors.Is(e, ErrRecreated) {
			t.Errorf("stopped: %v", e)
		}
	}
	m.stop(t)
	r.checkWayOn(t, Recovery{ErrRecreated: StartOver}, "c0")
}

func TestTopicRecreatedWhileRunning(t *testing.T) { onEachStore(t, topicRecreatedWhileRunning) }

func topicRecreatedWhileRunning(t *testing.T, s newStore) {
	for name, way := range map[string]RecoveryPolicy{"stop": Stop, "start over": StartOver} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the client notices it only after a while
			r := newRigOn(t, s, 1)
			r.send(t, 0, numbered("a", 3)...)
			m := r.start(t, r.work(1, nil), func(o *Options) { o.Recovery = Recovery{ErrRecreated: way} })
			r.untilStored(t, 0, 3)
			r.RecreateTopic(t, r.topic, 1, nil)
			r.send(t, 0, "c0")
			if way == Stop {
				if e := m.stoppedOne(t); !errors.Is(e, ErrRecreated) {
					t.Errorf("stopped: %v", e)
				}
				again := false
				kafkatest.Until(t, "the adoption", func() bool {
					err := m.AdoptOffset(t.Context(), r.topic, 0, StartOver, "approved")
					if errors.Is(err, ErrFenced) { // the client still has the old topic
						again = strings.Contains(err.Error(), "call AdoptOffset again")
					}
					return err == nil
				})
				if !again && !r.Real() { // a broker may have assigned the partition anew before
					t.Error("no call has said that it must be called again")
				}
			}
			kafkatest.Until(t, "the new topic's record", func() bool { return r.effects(t, "c0") == 1 })
			m.stop(t)
		})
	}
}

func TestTopicDeletedWhileRunning(t *testing.T) { onEachStore(t, topicDeletedWhileRunning) }

func topicDeletedWhileRunning(t *testing.T, s newStore) {
	t.Parallel()
	r := newRigOn(t, s, 1)
	r.send(t, 0, "a")
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 1)
	r.DeleteTopic(t, r.topic)
	if e := m.stoppedOne(t); e.Reason != "topic_gone" {
		t.Errorf("stopped: %v", e)
	}
	m.stop(t)
}

// A topic is created again after the consumer has seen that it is gone. With KIP-848, its partitions
// are assigned anew, and the client commits with the id of the old topic.
func TestTopicThatWasGoneIsCreatedAgain(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"classic": func(*Options) {}, "KIP-848": func(o *Options) { o.Membership.serverSide = true }, "pinned": pinned(0, 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 2)
			r.send(t, 0, "a")
			r.send(t, 1, "b")
			m := r.start(t, r.work(1, nil), func(o *Options) { o.Recovery = Recovery{ErrRecreated: StartOver} }, change)
			r.untilStored(t, 0, 1)
			r.untilStored(t, 1, 1)
			r.DeleteTopic(t, r.topic)
			kafkatest.Until(t, "the end of the assignment or a stop", func() bool { return len(m.parts.all()) == len(m.Stopped()) })
			if m.shared.opt.Membership.serverSide {
				kafkatest.Until(t, "the end of the assignment", func() bool { return len(m.parts.all()) == 0 })
			}
			r.CreateNamed(t, r.topic, 2, nil)
			r.send(t, 0, "c")
			r.send(t, 1, "d")
			kafkatest.Until(t, "the new topic's records", func() bool { return r.effects(t, "c") == 1 && r.effects(t, "d") == 1 })
			m.stop(t)
		})
	}
}

func TestForeignStore(t *testing.T) { onEachStore(t, foreignStore) }

func foreignStore(t *testing.T, s newStore) {
	for name, tt := range map[string]struct {
		way  RecoveryPolicy
		want []string
	}{
		"trust Kafka": {TrustKafka, []string{"c"}},
		"start over":  {StartOver, append(numbered("a", 10), "c")},
	} {
		t.Run(name, func(t *testing.T) {
			r := consumed(t, s)
			r.send(t, 0, "c")
			r.Commit(t, r.group, r.offset(1, 10, "")) // a position, which other topics have too
			r.replaceStore(t)
			m := r.start(t, r.work(1, nil))
			kinds := map[int32]error{0: ErrForeignStore, 1: ErrEmptyStore}
			for range 2 {
				e := m.stoppedOne(t)
				if !errors.Is(e, kinds[e.Partition]) {
					t.Errorf("stopped: %v", e)
				}
			}
			m.stop(t)
			r.checkWayOn(t, Recovery{ErrForeignStore: tt.way}, tt.want...)
		})
	}
}

func TestEmptyStoreWithACommittedGroup(t *testing.T) { onEachStore(t, emptyStoreWithACommittedGroup) }

func emptyStoreWithACommittedGroup(t *testing.T, s newStore) {
	r := newRigOn(t, s, 1)
	r.send(t, 0, numbered("a", 5)...)
	r.Commit(t, r.group, r.offset(0, 3, "kgo-1"))
	m := r.start(t, r.work(1, nil))
	if e := m.stoppedOne(t); !errors.Is(e, ErrEmptyStore) {
		t.Errorf("stopped: %v", e)
	}
	m.stop(t)
	if o, _ := r.Committed(t, r.group, r.topic, 0); o.At != 3 || o.Metadata != "kgo-1" {
		t.Errorf("a stopped partition's commit was changed: %+v", o)
	}
	r.checkWayOn(t, Recovery{ErrEmptyStore: TrustKafka}, "a3", "a4")
}

func TestRestoredStoreIsBehindKafka(t *testing.T) { onEachStore(t, restoredStoreIsBehindKafka) }

func restoredStoreIsBehindKafka(t *testing.T, s newStore) {
	r := newRigOn(t, s, 1)
	r.send(t, 0, numbered("a", 5)...)
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 5)
	m.stop(t)
	self := authorOf(r.eng.Identity()).Metadata()
	r.send(t, 0, "b", "c")
	r.Commit(t, r.group, r.offset(0, 6, self))
	m = r.start(t, r.work(1, nil))
	if e := m.stoppedOne(t); !errors.Is(e, ErrKafkaAhead) {
		t.Errorf("stopped: %v", e)
	}
	m.stop(t)
	r.checkWayOn(t, Recovery{ErrKafkaAhead: TrustStore}, "b", "c")
}

func TestOffsetResetByAnAdministrator(t *testing.T) { onEachStore(t, offsetResetByAnAdministrator) }

func offsetResetByAnAdministrator(t *testing.T, s newStore) {
	r := consumed(t, s)
	r.Commit(t, r.group, r.offset(0, 4, ""))
	r.checkStops(t, ErrOffsetReset)
	r.checkWayOn(t, Recovery{ErrOffsetReset: TrustKafka}) // the records from 4 on are duplicates
	r.Commit(t, r.group, r.offset(0, 4, ""))
	r.checkWayOn(t, Recovery{ErrOffsetReset: TrustStore})
}

func TestPartitionWithoutAnyOffsetMayBeginAtItsEnd(t *testing.T) {
	onEachStore(t, partitionThatNobodyKnowsMayBeginAtItsEnd)
}

func partitionThatNobodyKnowsMayBeginAtItsEnd(t *testing.T, s newStore) {
	r := newRigOn(t, s, 1)
	r.send(t, 0, "a", "b")
	m := r.start(t, r.work(1, nil), func(o *Options) { o.Routes[0].Start = Latest })
	r.UntilCommitted(t, r.group, r.topic, 0, 2)
	r.send(t, 0, "c")
	r.untilStored(t, 0, 3)
	m.stop(t)
	if got := r.handledIDs(); !slices.Equal(got, []string{"c"}) {
		t.Errorf("handled %q", got)
	}
}

// A topic that is created later is consumed, and reported as missing until then.
func TestTopicThatIsCreatedLater(t *testing.T) { onEachStore(t, topicThatComesLater) }

func topicThatComesLater(t *testing.T, s newStore) {
	r := newRigOn(t, s, 1)
	later := &kgo.Record{Topic: r.topic + "-later", Headers: []kgo.RecordHeader{{Key: "message_id", Value: []byte("a")}}}
	m := r.start(t, r.work(1, nil), func(o *Options) { o.Routes[0].Topics = append(o.Routes[0].Topics, later.Topic) })
	r.UntilMembers(t, r.group, 1, r.topic)
	r.CreateNamed(t, later.Topic, 1, nil)
	r.Produce(t, later)
	kafkatest.Until(t, "its record", func() bool { return r.effects(t, "a") == 1 })
	m.stop(t)
}
