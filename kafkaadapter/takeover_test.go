package kafkaadapter

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/owner"
)

// holdFirst holds the first request of a kind: asked is closed when it has arrived, and it is
// executed when answer is closed.
func holdFirst(c *kfake.Cluster, key kmsg.Key) (asked, answer chan struct{}) {
	asked, answer = make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	c.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
		if first.CompareAndSwap(false, true) {
			c.SleepControl(func() { close(asked); <-answer })
		}
		return nil, nil, false
	})
	return asked, answer
}

// expel removes the only member from the group. The member learns it with its next heartbeat.
func (r *rig) expel(t *testing.T) {
	t.Helper()
	cl := r.Client(t)
	groups, err := kadm.NewClient(cl).DescribeGroups(t.Context(), r.group)
	if err != nil || len(groups[r.group].Members) != 1 {
		t.Fatal(err, groups)
	}
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Group = r.group
	gone := kmsg.NewLeaveGroupRequestMember()
	gone.MemberID = groups[r.group].Members[0].MemberID
	leave.Members = append(leave.Members, gone)
	if _, err := leave.RequestWith(t.Context(), cl); err != nil {
		t.Fatal(err)
	}
}

// ignorant lets a member not notice that it was expelled.
func ignorant(o *Options) {
	rarely(o)
	o.Client = append(o.Client, kgo.HeartbeatInterval(time.Minute), kgo.SessionTimeout(5*time.Minute))
}

// The log's end is older than the store's offset then, which would look like a store that is ahead
// of the log.
func TestTakeOverWhileTheEarlierOwnerCommits(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 1)
	a := r.start(t, r.work(1, nil), ignorant)
	r.send(t, 0, "a", "b", "c", "d", "e")
	r.untilStored(t, 0, 5)
	asked, answer := holdFirst(r.Cluster(t), kmsg.OffsetForLeaderEpoch)
	r.expel(t)
	b := r.start(t, r.work(1, nil))
	kafkatest.Receive(t, asked) // b knows the log's end
	r.send(t, 0, "f")
	r.untilStored(t, 0, 6) // by a
	close(answer)
	untilReady(t, b)
	r.send(t, 0, "g")
	r.untilStored(t, 0, 7)
	if len(b.stops) > 0 {
		t.Errorf("stopped: %v", <-b.stops)
	}
	r.checkOnce(t, "a", "f", "g")
	a.cancel()
	b.stop(t)
}

// After an unclean stop, a has stored its attempt at x, and its handler runs when b takes the partition
// over: that attempt has not failed.
func TestAttemptOfAnOwnerThatRunsIsNotCounted(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 1)
	r.send(t, 0, "x")
	died := owner.Record{Token: [16]byte{1}, Width: 8}
	err := r.eng.Update(t.Context(), func(tx *engine.Tx) error {
		return own(tx).Put(partitionKey(keyOwner, r.position(0)), encodeOwner(died))
	})
	if err != nil {
		t.Fatal(err)
	}
	began, release := make(chan struct{}), make(chan struct{})
	a := r.start(t, r.work(1, func(context.Context, *engine.Tx, *Record) error {
		close(began)
		<-release
		return nil
	}), ignorant)
	kafkatest.Receive(t, began)
	if a := r.attemptsAt(t, 0); a != (owner.Attempts{N: 1}) {
		t.Errorf("a has stored %+v", a)
	}
	r.expel(t)
	b := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 1)
	close(release)
	r.checkOnce(t, "x")
	if n := r.letterCount(t); n != 0 {
		t.Errorf("%d dead letters of handlers that never failed", n)
	}
	a.cancel()
	b.stop(t)
}

// b has lost the partition, and does not know it when it takes the partition from a, which runs: no
// process died, so that b does not count an attempt at a record before its handler runs.
func TestOwnerThatIsReplacedWhileItRunsDidNotDie(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 1)
	r.send(t, 0, "a")
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 1)
	r.UntilCommitted(t, r.group, r.topic, 0, 1)
	m.stop(t)

	asked, answer := holdFirst(r.Cluster(t), kmsg.OffsetForLeaderEpoch)
	began, release := make(chan struct{}), make(chan struct{})
	b := r.start(t, r.work(1, func(context.Context, *engine.Tx, *Record) error {
		close(began)
		<-release
		return nil
	}), ignorant)
	kafkatest.Receive(t, asked)
	r.expel(t)
	a := r.start(t, r.work(1, nil))
	untilReady(t, a)
	close(answer)
	kafkatest.Until(t, "b to be the owner", func() bool {
		o, err := parseOwner(r.get(t, partitionKey(keyOwner, r.position(0))))
		p := b.parts.get(topicPartition{r.topic, 0})
		return err == nil && p != nil && p.fence.Owns(o)
	})
	r.send(t, 0, "x")
	kafkatest.Receive(t, began)
	if a := r.attemptsAt(t, 0); a != (owner.Attempts{}) {
		t.Errorf("b has stored %+v before its handler has returned", a)
	}
	r.untilStored(t, 0, 2) // by a, which has taken the partition over again
	close(release)
	r.checkOnce(t, "x")
	if n := r.letterCount(t); n != 0 {
		t.Errorf("%d dead letters of handlers that never failed", n)
	}
	b.cancel()
	a.stop(t)
}
