package kafkaadapter

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// A cutLog makes the brokers answer as after an unclean election: the log of leader epoch 0 ends at
// end.
type cutLog struct {
	end   atomic.Int64
	asked atomic.Int64
}

func (r *rig) cutLog(t *testing.T, end int64) *cutLog {
	t.Helper()
	l := &cutLog{}
	l.end.Store(end)
	c := r.Cluster(t)
	c.ControlKey(int16(kmsg.OffsetForLeaderEpoch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := kreq.(*kmsg.OffsetForLeaderEpochRequest)
		resp := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		for _, rt := range req.Topics {
			st := kmsg.NewOffsetForLeaderEpochResponseTopic()
			st.Topic = rt.Topic
			for _, rp := range rt.Partitions {
				if rp.LeaderEpoch != 0 {
					return nil, nil, false
				}
				sp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
				sp.Partition, sp.EndOffset = rp.Partition, l.end.Load()
				st.Partitions = append(st.Partitions, sp)
			}
			resp.Topics = append(resp.Topics, st)
		}
		l.asked.Add(1)
		return resp, nil, true
	})
	return l
}

// raiseEpoch moves the leader of partition 0, so that its epoch rises.
func (r *rig) raiseEpoch(t *testing.T) {
	t.Helper()
	c := r.Cluster(t)
	if err := c.MoveTopicPartition(r.topic, 0, c.LeaderFor(r.topic, 0)); err != nil {
		t.Fatal(err)
	}
}

// A busyPoll blocks the poll loop while it is armed, as a full queue does.
type busyPoll struct {
	armed   atomic.Bool
	once    sync.Once
	blocked chan struct{}
	open    chan struct{}
}

func (g *busyPoll) OnPollStart(context.Context) {
	if g.armed.Load() {
		g.once.Do(func() { close(g.blocked) })
		<-g.open
	}
}

// The client reports the lost records only in the fetch that follows, and forgets it if it fetches
// again before the poll loop has taken it.
func TestDivergedLogIsNoticedWhileThePollLoopIsBusy(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 1)
	g := &busyPoll{blocked: make(chan struct{}), open: make(chan struct{})}
	client := &logs{}
	m := r.start(t, r.work(1, nil), func(o *Options) {
		o.Client = append(o.Client, kgo.WithHooks(g), kgo.WithLogger(kgo.BasicLogger(client, kgo.LogLevelInfo, nil)))
	})
	r.send(t, 0, "a", "b", "c", "d", "e")
	r.untilStored(t, 0, 5)
	g.armed.Store(true)
	kafkatest.Receive(t, g.blocked)
	r.cutLog(t, 3)
	r.raiseEpoch(t)
	r.send(t, 0, "f", "g")
	kafkatest.Until(t, "the client's report", func() bool { return client.has("injecting fake fetch") })
	time.Sleep(200 * time.Millisecond) // the client fetches again meanwhile
	g.armed.Store(false)
	close(g.open)
	r.wantDiverged(t, m, 5)
}

// wantDiverged checks that the partition has stopped because its log was rewritten, with the store at
// the given offset.
func (r *rig) wantDiverged(t *testing.T, m *member, at int64) {
	t.Helper()
	if e := m.stoppedOne(t); !errors.Is(e, ErrLogDiverged) {
		t.Errorf("stopped: %v", e)
	}
	m.stop(t)
	if n := r.stored(t, 0); n != at {
		t.Errorf("the store is at %d, want %d", n, at)
	}
}

func TestDivergedLogIsNoticedBeforeAnythingWasRead(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 1)
	r.send(t, 0, "a", "b", "c", "d", "e")
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 5)
	m.stop(t)
	m = r.start(t, r.work(1, nil)) // it reads no record of the first leader
	untilReady(t, m)
	r.cutLog(t, 3)
	r.raiseEpoch(t)
	r.send(t, 0, "f", "g")
	r.wantDiverged(t, m, 5)
}

// The records that were replaced are fetched and not handled yet: they are dropped and read again,
// and no policy is needed.
func TestReplacedRecordsThatWereNotHandledAreReadAgain(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 1)
	m := r.start(t, r.work(1, nil))
	r.send(t, 0, "a")
	r.untilStored(t, 0, 1)
	m.pause(t, r.topic)
	p := m.parts.get(topicPartition{r.topic, 0})
	fetched := func(n int) func() bool {
		return func() bool { queued, _ := p.queue.Size(); return queued >= n }
	}
	r.send(t, 0, "b", "c")
	kafkatest.Until(t, "b and c", fetched(2))
	r.raiseEpoch(t)
	r.send(t, 0, "d")
	kafkatest.Until(t, "d", fetched(3))
	l := r.cutLog(t, 2) // c was replaced
	if err := m.Resume(r.topic); err != nil {
		t.Fatal(err)
	}
	kafkatest.Until(t, "the comparison with the log", func() bool { return l.asked.Load() > 2 })
	if n := r.stored(t, 0); n != 1 {
		t.Errorf("the store is at %d, want 1", n)
	}
	if !m.logs.has("the log was rewritten") {
		t.Error("nothing in the log says why the partition is not read")
	}
	l.end.Store(3)
	r.untilStored(t, 0, 4)
	m.stop(t)
	r.checkOnce(t, "a", "b", "c", "d")
}

// fetchedInANewEpoch returns a consumer that is paused: it has handled a, and fetched b, with which a new
// epoch begins.
func fetchedInANewEpoch(t *testing.T) (*rig, *member) {
	t.Helper()
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 1)
	m := r.start(t, r.work(1, nil))
	r.send(t, 0, "a")
	r.untilStored(t, 0, 1)
	m.pause(t, r.topic)
	p := m.parts.get(topicPartition{r.topic, 0})
	r.raiseEpoch(t)
	r.send(t, 0, "b")
	kafkatest.Until(t, "b", func() bool { return !p.queue.IsIdle() })
	return r, m
}

func TestEpochThatCannotBeComparedStopsForAWhile(t *testing.T) {
	r, m := fetchedInANewEpoch(t)
	c := r.Cluster(t)
	var down atomic.Bool
	down.Store(true)
	c.ControlKey(int16(kmsg.OffsetForLeaderEpoch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if !down.Load() {
			return nil, nil, false
		}
		return nil, errHandler, true // it cuts the connection
	})
	if err := m.Resume(r.topic); err != nil {
		t.Fatal(err)
	}
	if e := m.stoppedOne(t); e.Reason != "unreachable" {
		t.Errorf("stopped: %v", e)
	}
	down.Store(false)
	r.untilStored(t, 0, 2)
	m.stop(t)
	r.checkOnce(t, "a", "b")
}

// The leader may not be ready when its epoch has just begun.
func TestTransientErrorOfTheNewLeaderStopsNothing(t *testing.T) {
	r, m := fetchedInANewEpoch(t)
	r.Cluster(t).Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetForLeaderEpoch}, Topic: r.topic, Err: kerr.LeaderNotAvailable, Count: 3})
	if err := m.Resume(r.topic); err != nil {
		t.Fatal(err)
	}
	r.untilStored(t, 0, 2)
	m.stop(t)
	if len(m.stops) > 0 {
		t.Errorf("stopped: %v", <-m.stops)
	}
}
