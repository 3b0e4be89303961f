package kafkaadapter

import (
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// A revoked partition commits its offset within the drain timeout, even while the broker does not
// answer the commit of another one.
func TestCommitDoesNotWaitLongerThanItsLimitForAnother(t *testing.T) {
	r := newRig(t, 2)
	m := r.start(t, r.work(1, nil), func(o *Options) { o.Membership.CommitInterval = time.Hour })
	for p := range r.partitions {
		r.send(t, p, "warm")
		r.untilStored(t, p, 1)
		pos := topicPartition{r.topic, p}
		kafkatest.Until(t, "an offset that is not committed", func() bool {
			changed, _, _ := pending([]*partition{m.parts.get(pos)})
			return len(changed) == 1
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
		if err := m.commits.commit(t.Context(), []*partition{m.parts.get(topicPartition{r.topic, 0})}, time.Hour); err != nil {
			t.Errorf("the commit fails: %v", err)
		}
	}()
	kafkatest.Receive(t, asked)
	second := make(chan error, 1)
	go func() {
		second <- m.commits.commit(t.Context(), []*partition{m.parts.get(topicPartition{r.topic, 1})}, time.Millisecond)
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
