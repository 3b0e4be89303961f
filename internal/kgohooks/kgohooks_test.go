package kgohooks_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kprom"

	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/internal/kgohooks"
)

// A recorder notes the calls that it gets.
type recorder struct {
	mu    sync.Mutex
	calls []string
}

func (r *recorder) note(call string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, call)
}

func (r *recorder) OnNewClient(*kgo.Client)                          { r.note("new") }
func (r *recorder) OnProduceRecordBuffered(*kgo.Record)              { r.note("buffered") }
func (r *recorder) OnProduceRecordUnbuffered(_ *kgo.Record, _ error) { r.note("unbuffered") }

func (r *recorder) want(t *testing.T, calls ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.calls, calls) {
		t.Errorf("the hook was called %q, want %q", r.calls, calls)
	}
	r.calls = nil
}

// A closer is a recorder that can be registered again.
type closer struct{ recorder }

func (c *closer) OnClientClosed(*kgo.Client) { c.note("closed") }

func newClient(t *testing.T, o *kgohooks.Owner, b *kafkatest.Broker, hooks ...kgo.Hook) *kgo.Client {
	t.Helper()
	c, err := o.NewClient(append(b.ClientOptions(), kgo.WithHooks(hooks...))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func produce(t *testing.T, c *kgo.Client, topic string) {
	t.Helper()
	if err := c.ProduceSync(t.Context(), &kgo.Record{Topic: topic}).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func TestHookIsToldOfOneClient(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 1, nil)
	forever, again := &recorder{}, &closer{}
	for _, begins := range []bool{true, false} {
		owners := [2]kgohooks.Owner{}
		for i := range owners {
			for range 2 { // it connects again
				c := newClient(t, &owners[i], b, forever, again)
				produce(t, c, topic)
				c.Close()
			}
		}
		calls := slices.Repeat([]string{"buffered", "unbuffered"}, 4)
		again.want(t, append([]string{"new"}, calls...)...)
		if begins {
			calls = append([]string{"new"}, calls...)
		}
		forever.want(t, calls...)
		owners[0].Close()
		again.want(t)
		owners[1].Close()
		again.want(t, "closed")
	}
}

// A slow hook is one that is still being told of its first client.
type slow struct {
	recorder
	began, finish chan struct{}
}

func (s *slow) OnNewClient(*kgo.Client) {
	close(s.began)
	<-s.finish
	s.note("new")
}

// A hook that is used before OnNewClient has returned may end the process, as kprom does.
func TestOtherClientWaitsUntilTheHookIsToldOfTheFirst(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 1, nil)
	h := &slow{began: make(chan struct{}), finish: make(chan struct{})}
	owners := [2]kgohooks.Owner{}
	var both sync.WaitGroup
	for i := range owners {
		both.Go(func() { produce(t, newClient(t, &owners[i], b, h), topic) })
		if i == 0 {
			<-h.began
		}
	}
	time.Sleep(50 * time.Millisecond) // that nothing happens cannot be awaited
	h.want(t)
	close(h.finish)
	both.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.calls) != 5 || h.calls[0] != "new" {
		t.Errorf("the hook was called %q", h.calls)
	}
}

func TestProbeCallsNoHook(t *testing.T) {
	r := &closer{}
	c, err := kgohooks.Probe(kgo.SeedBrokers("127.0.0.1:1"), kgo.WithHooks(r), kgo.ClientID("probed"))
	if err != nil {
		t.Fatal(err)
	}
	if id := c.OptValue(kgo.ClientID); id != "probed" {
		t.Errorf("the client id is %v", id)
	}
	c.Close()
	r.want(t)
}

// The hook of kprom panics when it is told of a second client.
func TestMetricsOfSeveralClients(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 1, nil)
	registry := prometheus.NewRegistry()
	metrics := kprom.NewMetrics("kafka", kprom.Registry(registry), kprom.FetchAndProduceDetail(kprom.Records))
	func() {
		defer func() {
			if recover() == nil {
				t.Error("kprom accepts a second client")
			}
		}()
		other := kprom.NewMetrics("kafka", kprom.Registry(prometheus.NewRegistry()))
		for range 2 {
			c, err := kgo.NewClient(append(b.ClientOptions(), kgo.WithHooks(other))...)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
	}()
	var o kgohooks.Owner
	defer o.Close()
	for range 2 {
		first, second := newClient(t, &o, b, metrics), newClient(t, &o, b, metrics)
		produce(t, first, topic)
		produce(t, second, topic)
		first.Close()
		second.Close()
	}
	kafkatest.Until(t, "the metrics of 4 records", func() bool { // kprom is told of them later
		n, err := sum(registry, "kafka_produce_records_total")
		if err != nil {
			t.Fatal(err)
		}
		return n == 4
	})
}

func sum(registry *prometheus.Registry, name string) (n float64, err error) {
	families, err := registry.Gather()
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n, err
}
