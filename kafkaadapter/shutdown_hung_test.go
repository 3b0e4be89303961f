package kafkaadapter

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

func TestRunEndsAlthoughTheBrokerDoesNotAnswer(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 1)
	r.send(t, 0, "a")
	m := r.start(t, r.work(2, nil))
	r.untilStored(t, 0, 1)
	silent := make(chan struct{})
	r.Cluster(t).ControlKey(int16(kmsg.LeaveGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		r.Cluster(t).SleepControl(func() { <-silent })
		return nil, nil, false
	})
	m.cancel()
	select {
	case <-m.done:
	case <-time.After(90 * time.Second):
		t.Error("Run does not end")
	}
	close(silent)
	kafkatest.Receive(t, m.done)
}
