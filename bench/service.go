package bench

import (
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/kafkaadapter"
)

// mostAttempts exceeds the number of kills of any run: a record whose handler is killed must be
// retried.
const mostAttempts = 1 << 20

// consumerOptions are those of a consumer that is its group's only member.
func consumerOptions(seeds []string, group string, routes ...kafkaadapter.Route) kafkaadapter.Options {
	return kafkaadapter.Options{
		Group: group, Routes: routes, Client: []kgo.Opt{kgo.SeedBrokers(seeds...)},
		Membership: kafkaadapter.Membership{InstanceID: instance},
		Telemetry:  kafkaadapter.Telemetry{Logger: warnings()},
	}
}

func warnings() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// A keeping registerer still has the adapter's counts after Run has returned, when they are final.
type keeping struct{ prometheus.Registerer }

func (keeping) Unregister(prometheus.Collector) bool { return true }

// eachMetric calls do with each metric of a name.
func eachMetric(from prometheus.Gatherer, name string, do func(*dto.Metric)) error {
	families, err := from.Gather()
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				do(m)
			}
		}
	}
	return err
}
