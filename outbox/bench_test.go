package outbox

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// BenchmarkRelay publishes messages of 200 bytes that wait in the outbox of a Pebble store on the
// disk, to the embedded broker: go test ./outbox -run '^$' -bench Relay -benchtime 300000x
func BenchmarkRelay(b *testing.B) {
	for _, mode := range []struct {
		name string
		keys int
		due  time.Duration
		eos  bool
	}{
		{"keys=10000", 10_000, 0, false}, {"no-keys", 0, 0, false}, {"due-later", 10_000, time.Second, false},
		{"exactly-once", 10_000, 0, true}, {"exactly-once/one-key", 1, 0, true},
	} {
		b.Run(mode.name, func(b *testing.B) { benchmarkRelay(b, mode.keys, mode.due, mode.eos) })
	}
}

func benchmarkRelay(b *testing.B, keys int, due time.Duration, exactlyOnce bool) {
	broker := kafkatest.Start(b, kafkatest.Options{})
	topic := broker.CreateTopic(b, 8, nil)
	store, err := pebble.Open(filepath.Join(b.TempDir(), "store"), pebble.Options{})
	if err != nil {
		b.Fatal(err)
	}
	eng, err := engine.Open(store, engine.Options{ExpectedPerWeek: 1000})
	if err != nil {
		b.Fatal(err)
	}
	defer eng.Close()
	value := make([]byte, 200)
	const each = 5000
	for n := 0; n < b.N; n += each {
		if err := eng.Update(ctx, func(tx *engine.Tx) error {
			for i := n; i < min(n+each, b.N); i++ {
				m := engine.Message{Topic: topic, Value: value, Due: time.Now().Add(due)}
				if keys > 0 {
					m.Key = fmt.Append(nil, i%keys)
				}
				if _, err := tx.Produce(m); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
	o := Options{Client: broker.ClientOptions(), Telemetry: quiet(), Batch: Batch{Entries: 5000}}
	if exactlyOnce {
		o.ExactlyOnce = &ExactlyOnce{ProgressTopic: broker.CreateTopic(b, 1, map[string]string{"cleanup.policy": "compact"})}
	}
	relay, err := New(eng, o)
	if err != nil {
		b.Fatal(err)
	}
	run, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	b.ResetTimer()
	go func() { done <- relay.Run(run) }()
	for {
		f, err := relay.shared.figures(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if f.pending == 0 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
	stop()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
