package outbox

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/telemetry"
)

// A syncBuffer is a buffer for concurrent use.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// connectionState returns the states whose gauge is 1.
func connectionState(t *testing.T, reg *prometheus.Registry) (states string) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "dedup_outbox_connection" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetGauge().GetValue() == 1 {
				states += m.GetLabel()[0].GetValue()
			}
		}
	}
	return states
}

func TestRelayThatCannotConnectSaysWhy(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("PLAIN", "user", "right"), kfake.SeedTopics(1, "out"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	for password, tt := range map[string]struct{ state, text string }{
		"wrong": {"authentication_failed", "check user, password"},
		"right": {"connected", ""},
	} {
		t.Run(password, func(t *testing.T) {
			log, reg, eng := &syncBuffer{}, prometheus.NewRegistry(), openEngine(t, newMemDisk().open(t), nil)
			relay, err := New(eng, Options{
				Client:    []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.SASL(plain.Auth{User: "user", Pass: password}.AsMechanism())},
				Telemetry: telemetry.Options{Registerer: reg, Logger: slog.New(slog.NewTextHandler(log, nil))},
			})
			if err != nil {
				t.Fatal(err)
			}
			if s := connectionState(t, reg); s != "" {
				t.Errorf("the state is %s before the first attempt", s)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- relay.Run(ctx) }()
			err = eng.Update(ctx, func(tx *engine.Tx) error {
				_, err := tx.Produce(engine.Message{Topic: "out", Value: []byte("message")})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			kafkatest.Until(t, "the state "+tt.state, func() bool { return connectionState(t, reg) == tt.state })
			const line = "outbox: no connection to Kafka"
			if tt.text != "" {
				kafkatest.Until(t, "the log", func() bool { return strings.Contains(log.String(), line) && strings.Contains(log.String(), tt.text) })
			} else if strings.Contains(log.String(), line) {
				t.Errorf("%s", log)
			}
			cancel()
			if err := kafkatest.Receive(t, done); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
}
