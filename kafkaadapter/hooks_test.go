package kafkaadapter

import (
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kprom"
)

// A once is a hook that panics for a second client while it has one.
type once struct{ clients atomic.Int32 }

func (o *once) OnNewClient(*kgo.Client) {
	if o.clients.Add(1) > 1 {
		panic("a duplicate registration")
	}
}

func (o *once) OnClientClosed(*kgo.Client) { o.clients.Add(-1) }

// Consumers share the hooks of one list of options, and are made again.
func TestHooksRegisterOnce(t *testing.T) {
	for name, hook := range map[string]kgo.Hook{
		"as kprom does": &once{},
		"kprom":         kprom.NewMetrics("kafka", kprom.Registry(prometheus.NewRegistry())),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2)
			hooked := func(o *Options) { o.Client = append(o.Client, kgo.WithHooks(hook)) }
			for i := range 2 {
				r.send(t, 0, numbered("a", i+1)[i])
				first := r.start(t, r.work(1, nil), hooked)
				second := r.start(t, r.work(1, nil), hooked)
				r.untilStored(t, 0, int64(i+1))
				first.stop(t)
				second.stop(t)
			}
			r.checkOnce(t, "a0", "a1")
		})
	}
}
