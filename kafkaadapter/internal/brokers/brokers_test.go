package brokers

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// A rig is a broker with a topic, and a Client.
type rig struct {
	*kafkatest.Broker
	cluster *kfake.Cluster
	topic   string
	ask     *Client
}

func newRig(t *testing.T, nodes int, partitions int32) *rig {
	t.Helper()
	kafkatest.EmbeddedOnly(t)
	r := &rig{Broker: kafkatest.Start(t, kafkatest.Options{Nodes: nodes})}
	r.cluster, r.topic = r.Cluster(t), r.CreateTopic(t, partitions, nil)
	r.ask = New(r.Client(t))
	return r
}

func (r *rig) partition(n int32) Partition { return Partition{r.topic, n} }

func (r *rig) look(t *testing.T) *Topic {
	t.Helper()
	topic, err := r.ask.Topic(t.Context(), r.topic)
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

// hold lets requests of a key wait that which selects, until the test ends or release is called.
// It counts all requests of the key.
func (r *rig) hold(t *testing.T, key kmsg.Key, which func(n int64) bool) (held <-chan struct{}, release func(), count *atomic.Int64) {
	first, released := make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() { close(first) })
	release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(release)
	count = &atomic.Int64{}
	r.cluster.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
		r.cluster.KeepControl()
		if which(count.Add(1)) {
			r.cluster.SleepControl(func() {
				begin()
				<-released
			})
		}
		return nil, nil, false
	})
	return first, release, count
}

func firstOnly(n int64) bool { return n == 1 }

func (r *rig) untilWaiting(t *testing.T, broker int32, n int) {
	b := r.ask.led(broker)
	kafkatest.Until(t, "questions that wait", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.waiting) == n
	})
}

type answer struct {
	log Log
	err error
}

func (r *rig) askLog(t *testing.T, topic *Topic, n int32) <-chan answer {
	got := make(chan answer, 1)
	go func() {
		log, err := r.ask.Log(t.Context(), topic, r.partition(n), 0)
		got <- answer{log, err}
	}()
	return got
}

func TestABrokerIsAskedOnceForAllPartitions(t *testing.T) {
	const partitions = 300
	r := newRig(t, 1, partitions)
	r.Produce(t, &kgo.Record{Topic: r.topic, Partition: 7, Value: []byte("a")}, &kgo.Record{Topic: r.topic, Partition: 7, Value: []byte("b")})
	r.DeleteRecords(t, r.topic, 7, 1)
	r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: r.topic, Partitions: []int32{8}, Err: kerr.NotLeaderForPartition, Count: -1})
	topic := r.look(t)
	held, release, count := r.hold(t, kmsg.ListOffsets, firstOnly)
	first := r.askLog(t, topic, 0)
	kafkatest.Receive(t, held)
	answers := make(map[int32]<-chan answer)
	for p := int32(1); p < partitions; p++ {
		answers[p] = r.askLog(t, topic, p)
	}
	twice := r.askLog(t, topic, 7) // a request names a partition once
	r.untilWaiting(t, topic.leaders[0].broker, partitions)
	release()
	kafkatest.Receive(t, first)
	for p, got := range answers {
		a := kafkatest.Receive(t, got)
		switch {
		case p == 8:
			if !errors.Is(a.err, kerr.NotLeaderForPartition) {
				t.Errorf("partition 8: %v", a.err)
			}
		case a.err != nil:
			t.Errorf("partition %d: %v", p, a.err)
		case p == 7 && (a.log.Start != 1 || a.log.End != 2 || a.log.Stable != 2 || a.log.EpochEnd != 2):
			t.Errorf("partition 7: %+v", a.log)
		}
	}
	if a := kafkatest.Receive(t, twice); a.err != nil || a.log.End != 2 {
		t.Errorf("partition 7 again: %+v", a)
	}
	if n := count.Load(); n != 9 {
		t.Errorf("%d requests were sent, want 3 for the first partition, 3 for all others, and 3 for one that was asked for twice", n)
	}
}

// A broker that does not answer delays only the partitions that it leads.
func TestSlowBrokerDelaysOnlyItsPartitions(t *testing.T) {
	const slow = 1
	r := newRig(t, 3, 12)
	topic := r.look(t)
	_, release, _ := r.hold(t, kmsg.ListOffsets, func(int64) bool { return r.cluster.CurrentNode() == slow })
	late, quick := make(map[int32]<-chan answer), make(map[int32]<-chan answer)
	var all []Partition
	for p := range int32(12) {
		all = append(all, r.partition(p))
		if topic.leaders[p].broker == slow {
			late[p] = r.askLog(t, topic, p)
		} else {
			quick[p] = r.askLog(t, topic, p)
		}
	}
	if len(late) == 0 || len(quick) == 0 {
		t.Fatalf("%d partitions are led by the slow broker, %d by others", len(late), len(quick))
	}
	for p, got := range quick {
		if a := kafkatest.Receive(t, got); a.err != nil {
			t.Errorf("partition %d: %v", p, a.err)
		}
	}
	reported := make(chan Partition, len(all))
	ended := make(chan error, 1)
	go func() { ended <- r.ask.Ends(t.Context(), all, func(p Partition, _ Log) { reported <- p }) }()
	for range quick {
		if p := kafkatest.Receive(t, reported); quick[p.Partition] == nil {
			t.Errorf("the ends of %v are reported", p)
		}
	}
	for p, got := range late {
		select {
		case a := <-got:
			if !errors.Is(a.err, context.DeadlineExceeded) {
				t.Errorf("partition %d of the slow broker: %+v", p, a)
			}
		default:
		}
	}
	release()
	kafkatest.Receive(t, ended)
}

// Any broker can describe a topic: if one does not answer, another is asked.
func TestSlowBrokerDoesNotHideATopic(t *testing.T) {
	r := newRig(t, 3, 2)
	held, release, _ := r.hold(t, kmsg.Metadata, firstOnly)
	topic := r.look(t)
	kafkatest.Receive(t, held)
	release()
	if topic.Partitions != 2 || topic.ID != r.TopicID(t, r.topic) {
		t.Errorf("%+v", topic)
	}
}

func TestLogIsFoundAtItsNewLeader(t *testing.T) {
	r := newRig(t, 2, 1)
	topic := r.look(t)
	other := 1 - topic.leaders[0].broker
	if err := r.cluster.MoveTopicPartition(r.topic, 0, other); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ask.Log(t.Context(), topic, r.partition(0), -1); !errors.Is(err, kerr.NotLeaderForPartition) {
		t.Errorf("the former leader answers: %v", err)
	}
	tries := 0
	err := Retry(t.Context(), func() error {
		if tries++; tries > 1 {
			topic = r.look(t)
		}
		_, err := r.ask.Log(t.Context(), topic, r.partition(0), -1)
		return err
	}, func(error) bool { return false })
	if err != nil || tries != 2 {
		t.Errorf("%d tries: %v", tries, err)
	}
	if err := Retry(t.Context(), func() error { return kerr.NotLeaderForPartition }, func(error) bool { return true }); !errors.Is(err, kerr.NotLeaderForPartition) {
		t.Error(err)
	}
}

func TestCommitsOfAGroup(t *testing.T) {
	r := newRig(t, 1, 3)
	group := kafkatest.Name(t)
	if all, err := r.ask.Commits(t.Context(), group); err != nil || len(all) != 0 {
		t.Errorf("an unknown group: %v, %v", all, err)
	}
	r.Commit(t, group, kadm.Offset{Topic: r.topic, Partition: 1, At: 5, LeaderEpoch: -1, Metadata: "mine"})
	want := Commit{5, -1, "mine"}
	if all, err := r.ask.Commits(t.Context(), group); err != nil || len(all) != 1 || *all[r.partition(1)] != want {
		t.Errorf("%v, %v", all, err)
	}
	id := r.TopicID(t, r.topic)
	if k, err := r.ask.Commit(t.Context(), group, r.partition(1), id); err != nil || k == nil || *k != want {
		t.Errorf("%v, %v", k, err)
	}
	if k, err := r.ask.Commit(t.Context(), group, r.partition(0), id); err != nil || k != nil {
		t.Errorf("a partition without a commit: %v, %v", k, err)
	}
	h := r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Topic: r.topic, Partitions: []int32{0}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	defer h.Remove()
	if _, err := r.ask.Commit(t.Context(), group, r.partition(0), id); !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Error(err)
	}
}

func TestUnknownPartitions(t *testing.T) {
	r := newRig(t, 1, 1)
	if _, err := r.ask.Topic(t.Context(), "none"); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Error(err)
	}
	if _, err := r.ask.Log(t.Context(), r.look(t), r.partition(1), -1); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Error(err)
	}
}
