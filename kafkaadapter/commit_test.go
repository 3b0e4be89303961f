package kafkaadapter

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// A revoked partition commits its offset within the drain timeout, even while the broker does not
// answer the commit of another one.
func TestCommitDoesNotWaitLongerThanItsLimitForAnother(t *testing.T) {
	r := newRig(t, 2)
	m := r.start(t, r.work(1, nil), func(o *Options) { o.commitInterval = time.Hour })
	for p := range r.partitions {
		r.send(t, p, "warm")
		r.untilStored(t, p, 1)
		pos := topicPartition{r.topic, p}
		kafkatest.Until(t, "an offset that is not committed", func() bool {
			return len(pending([]*partition{m.parts.get(pos)})) == 1
		})
	}
	asked, answered := make(chan struct{}), make(chan struct{})
	ask, answer := sync.OnceFunc(func() { close(asked) }), sync.OnceFunc(func() { close(answered) })
	defer answer()
	cluster := r.Cluster(t)
	cluster.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.SleepControl(func() {
			ask()
			<-answered
		})
		return nil, nil, false
	})
	first := make(chan struct{})
	go func() {
		defer close(first)
		if err := m.commits.commit(t.Context(), these(m.parts.get(topicPartition{r.topic, 0})), time.Hour); err != nil {
			t.Errorf("the commit fails: %v", err)
		}
	}()
	kafkatest.Receive(t, asked)
	second := make(chan error, 1)
	go func() {
		second <- m.commits.commit(t.Context(), these(m.parts.get(topicPartition{r.topic, 1})), time.Millisecond)
	}()
	select {
	case err := <-second:
		if err == nil {
			t.Error("a commit reports success while another one is under way")
		}
	case <-time.After(time.Minute):
		t.Error("a commit with a limit of 1 ms waits for an unanswered one")
	}
	answer()
	kafkatest.Receive(t, first)
}

// rarely lets a consumer commit to Kafka only when a test says so.
func rarely(o *Options) { o.commitInterval = time.Hour }

// late commits an offset as a request of the consumer does that the broker executes after later ones.
func (r *rig) late(t *testing.T, m *member, offset int64, metadata string) {
	t.Helper()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group = r.group
	req.MemberID, req.Generation = m.shared.brokers.client.GroupMetadata()
	rt := kmsg.NewOffsetCommitRequestTopic()
	rt.Topic, rt.TopicID = r.topic, r.TopicID(t, r.topic)
	rp := kmsg.NewOffsetCommitRequestTopicPartition()
	rp.Offset, rp.Metadata = offset, &metadata
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(t.Context(), m.shared.brokers.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The broker does not answer a commit, and applies it after the next one.
func TestCommitThatIsAppliedLateDoesNotLast(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	for name, pinned := range map[string]fixedShare{"member": {}, "pinned": {count: 1}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			m := r.start(t, r.work(1, nil), rarely, func(o *Options) { o.Membership.pinned = pinned })
			var p *partition
			kafkatest.Until(t, "the partition", func() bool {
				p = m.parts.get(topicPartition{r.topic, 0})
				return p != nil
			})
			untilReady(t, m)
			reached := func(offset int64) func() bool { return func() bool { return p.offsets.next() == offset } }
			asked, answer := holdFirst(r.Cluster(t), kmsg.OffsetCommit)
			r.send(t, 0, "a")
			kafkatest.Until(t, "a", reached(1))
			ctx, giveUp := context.WithCancel(t.Context())
			first := make(chan error)
			go func() { first <- m.commits.commit(ctx, m.parts.all, commitTime) }()
			kafkatest.Receive(t, asked)
			giveUp()
			if err := kafkatest.Receive(t, first); err == nil {
				t.Fatal("the commit was answered")
			}
			close(answer)
			r.send(t, 0, "b")
			kafkatest.Until(t, "b", reached(2))
			for range 2 { // the second is that of the next interval
				if err := m.commits.commit(t.Context(), m.parts.all, commitTime); err != nil {
					t.Error(err)
				}
				at, metadata := r.commitOf(t, 0)
				if at != 2 {
					t.Errorf("Kafka's commit is %d, want 2", at)
				}
				r.late(t, m, 1, metadata)
			}
			m.stop(t)
			if at, _ := r.commitOf(t, 0); at != 2 {
				t.Errorf("after the end, Kafka's commit is %d, want 2", at)
			}
		})
	}
}

// A commit of all partitions waits for another commit; meanwhile one of them is revoked.
func TestPartitionThatIsRevokedBeforeItsCommitIsLeftOut(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 2)
	m := r.start(t, r.work(1, nil), rarely)
	for p := range r.partitions {
		r.send(t, p, "a")
		kafkatest.Until(t, "an offset to commit", func() bool {
			p := m.parts.get(topicPartition{r.topic, p})
			return p != nil && p.offsets.next() == 1
		})
	}
	p0, p1 := m.parts.get(topicPartition{r.topic, 0}), m.parts.get(topicPartition{r.topic, 1})
	asked, answer := holdFirst(r.Cluster(t), kmsg.OffsetCommit)
	first, second := make(chan error), make(chan error)
	go func() { first <- m.commits.commit(t.Context(), these(p0), time.Minute) }()
	kafkatest.Receive(t, asked)
	looked := make(chan struct{}, 2)
	go func() {
		second <- m.commits.commit(t.Context(), func() []*partition {
			looked <- struct{}{}
			return m.parts.all()
		}, time.Minute)
	}()
	kafkatest.Receive(t, looked)
	m.parts.remove([]*partition{p1})
	close(answer)
	if err := errors.Join(kafkatest.Receive(t, first), kafkatest.Receive(t, second)); err != nil {
		t.Error(err)
	}
	for p, want := range []int64{1, 0} {
		if at, _ := r.commitOf(t, int32(p)); at != want {
			t.Errorf("the commit of partition %d is %d, want %d", p, at, want)
		}
	}
	m.parts.put(p1)
	m.stop(t)
}

// At the end of Run, the last commit waits for another one, and meanwhile a partition is revoked.
func TestPartitionThatIsRevokedBeforeTheLastCommitIsLeftOut(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 1)
	m := r.start(t, r.work(1, nil), rarely)
	untilReady(t, m)
	r.send(t, 0, "a")
	r.untilStored(t, 0, 1)
	p := m.parts.get(topicPartition{r.topic, 0})
	m.commits.committing <- struct{}{}
	m.cancel()
	kafkatest.Receive(t, p.done)
	time.Sleep(100 * time.Millisecond) // it waits for the other commit
	m.parts.remove([]*partition{p})
	<-m.commits.committing
	m.stop(t)
	if at, _ := r.commitOf(t, 0); at != 0 {
		t.Errorf("Kafka's commit is %d, want 0", at)
	}
}

// The client leaves the names out of an answer that it gets after the group has changed.
func TestErrorsOfACommitAreThoseOfItsPartitions(t *testing.T) {
	parts := make(map[topicPartition]*partition)
	req, resp := kmsg.NewPtrOffsetCommitRequest(), kmsg.NewPtrOffsetCommitResponse()
	for i, topic := range []string{"a", "b"} {
		id := [16]byte{byte(i + 1)}
		asked, answered := kmsg.NewOffsetCommitRequestTopic(), kmsg.NewOffsetCommitResponseTopic()
		asked.Topic, asked.TopicID, answered.TopicID = topic, id, id
		for n := range int32(3) {
			parts[topicPartition{topic, n}] = &partition{pos: engine.OffsetKey{Topic: topic, Partition: n}}
			rp := kmsg.NewOffsetCommitResponseTopicPartition()
			if rp.Partition = n; n == 1 {
				rp.ErrorCode = kerr.IllegalGeneration.Code
			}
			if topic == "a" || n < 2 { // one is left out
				answered.Partitions = append(answered.Partitions, rp)
			}
		}
		req.Topics, resp.Topics = append(req.Topics, asked), append(resp.Topics, answered)
	}
	errs := commitErrors(req, resp, parts)
	want := map[topicPartition]error{{"a", 1}: kerr.IllegalGeneration, {"b", 1}: kerr.IllegalGeneration, {"b", 2}: errNotAnswered}
	for tp, p := range parts {
		if !errors.Is(errs[p], want[tp]) {
			t.Errorf("%s: %v, want %v", tp, errs[p], want[tp])
		}
	}
	if len(errs) != len(want) {
		t.Errorf("%d partitions have errors: %v", len(errs), errs)
	}
}
