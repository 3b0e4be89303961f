package outbox

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kprom"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// The hook of kprom panics when it is told of a second client. Two relays have one list of options;
// an exactly-once relay has three clients, and makes one of them again when a transaction fails.
func TestMetricsHookInTheClientOptions(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	for how, o := range modes(t, b) {
		t.Run(how, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			o.Client = append(o.Client, kgo.WithHooks(kprom.NewMetrics("kafka", kprom.Registry(registry))))
			topic := b.CreateTopic(t, 3, nil)
			for range 2 { // also after the end of those before
				eng := openEngine(t, newMemDisk().open(t), nil)
				_, stop := startRelay(t, eng, o)
				_, stopOther := startRelay(t, openEngine(t, newMemDisk().open(t), nil), o)
				send(t, eng, engine.Message{ID: "no partition", Topic: topic, Partition: new(int32(7))})
				produceN(t, eng, topic, 0, 100)
				until(t, "the other messages", func() bool { return pending(t, eng) <= 1 })
				if n, err := families(registry); n == 0 || err != nil {
					t.Errorf("%d metrics of the client, %v", n, err)
				}
				stop()
				stopOther()
				if n, err := families(registry); n != 0 || err != nil {
					t.Errorf("%d metrics of the client after the end, %v", n, err)
				}
			}
		})
	}
}

func families(registry *prometheus.Registry) (int, error) {
	all, err := registry.Gather()
	return len(all), err
}
