package kafkaadapter

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

func TestKilledBrokerComesBack(t *testing.T) {
	r := &rig{Broker: kafkatest.Start(t, kafkatest.Options{Durable: true}), group: kafkatest.Name(t), partitions: 1}
	r.topic = r.CreateTopic(t, 1, nil)
	r.CreateNamed(t, r.topic+"-dlt", 1, nil)
	r.open(t, storetest.NewMem(storage.Identity{}))
	before, after := numbered("a", 50), numbered("b", 50)
	r.send(t, 0, before...)
	// requested to end
	m := r.start(t, r.work(1, nil), func(o *Options) { o.Client = append(o.Client, kgo.SessionTimeout(6*time.Second)) })
	r.untilStored(t, 0, 50)
	r.Kill(t)
	kafkatest.Until(t, "the end of the group session", func() bool { return m.logs.has("the group session ended") })
	r.Revive(t)
	r.send(t, 0, after...)
	r.untilStored(t, 0, 100)
	m.stop(t)
	if ids := r.handledIDs(); !slices.Equal(ids, slices.Concat(before, after)) {
		t.Errorf("handled are %q", ids)
	}
}
