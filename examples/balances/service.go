package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kotel"
	"github.com/twmb/franz-go/plugin/kprom"
	"github.com/twmb/franz-go/plugin/kslog"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/telemetry"
)

// A service consumes transfers and serves balances. It uses the logger and the registry that it is
// given, and no globals.
type service struct {
	eng      *engine.Engine
	consumer *kafkaadapter.Consumer
	accounts accounts
	registry *prometheus.Registry
	end      []func()
}

// A config has the dependencies of a service.
type config struct {
	group, topic string
	client       []kgo.Opt
	log          *slog.Logger
	traces       trace.TracerProvider
}

// newService opens the engine on a store, which the service then owns, and connects the telemetry:
// the engine's own (telemetry), the adapter's (Options.Telemetry), and the client's (kprom, kotel,
// kslog).
func newService(store storage.Store, c config) (s *service, err error) {
	s = &service{registry: prometheus.NewRegistry(), accounts: accounts{c.traces.Tracer("balances")}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	tel := telemetry.Options{Logger: c.log, Registerer: s.registry, TracerProvider: func() trace.TracerProvider { return c.traces }}
	observer, err := telemetry.New(tel)
	if err != nil {
		return s, errors.Join(err, store.Close())
	}
	s.end = append(s.end, observer.Close)
	if s.eng, err = engine.Open(store, engine.Options{RetentionWeeks: 4, Observer: observer}); err != nil {
		return s, errors.Join(err, store.Close())
	}
	s.end = append(s.end, observer.Watch(s.eng))
	s.consumer, err = kafkaadapter.New(s.eng, kafkaadapter.Options{
		Group:  c.group,
		Client: append(c.client, s.clientTelemetry(c)...),
		Routes: []kafkaadapter.Route{{
			Topics:      []string{c.topic},
			Mode:        kafkaadapter.Transactional{Handle: s.accounts.book, MaxAttempts: 5},
			DeadLetters: &deadletter.Options{},
		}},
		Telemetry: tel,
	})
	return s, err
}

func (s *service) clientTelemetry(c config) []kgo.Opt {
	spans := kotel.NewTracer(kotel.TracerProvider(c.traces), kotel.TracerPropagator(propagation.TraceContext{}), kotel.ConsumerGroup(c.group))
	return []kgo.Opt{
		kgo.WithLogger(kslog.New(c.log)),
		kgo.WithHooks(kprom.NewMetrics("kafka_client", kprom.Registry(s.registry))),
		kgo.WithHooks(kotel.NewKotel(kotel.WithTracer(spans)).Hooks()...),
	}
}

// run consumes until ctx ends.
func (s *service) run(ctx context.Context) error { return s.consumer.Run(ctx) }

// close closes the engine and with it the store.
func (s *service) close() (err error) {
	if s.eng != nil {
		err = s.eng.Close()
	}
	for i := len(s.end) - 1; i >= 0; i-- {
		s.end[i]()
	}
	return err
}

// ServeHTTP answers /balance?account=x and /metrics.
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/metrics":
		promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	case "/balance":
		n, err := s.balance(r.Context(), r.URL.Query().Get("account"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, n)
	default:
		http.NotFound(w, r)
	}
}

func (s *service) balance(ctx context.Context, account string) (n int64, err error) {
	err = s.eng.Update(ctx, func(tx *engine.Tx) (err error) {
		n, err = s.accounts.balance(tx, account)
		return err
	}, engine.Retries(10))
	return n, err
}
