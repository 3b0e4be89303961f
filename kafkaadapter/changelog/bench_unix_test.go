//go:build unix

package changelog

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// claim makes claims on UUIDs, 512 in a batch.
func claim(b *testing.B, s *replica.Store, n int) {
	b.Helper()
	eng, err := engine.Open(s, engine.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for now := time.Now(); n > 0; n -= 512 {
		events := make([]engine.Event, min(n, 512))
		for i := range events {
			id := uuid.New()
			events[i] = engine.Event{Scope: "billing", ID: id[:], Time: now, Origin: engine.Origin{Topic: "payments", Offset: int64(n - i)}}
		}
		if _, err := eng.TryClaimBatch(b.Context(), events); err != nil {
			b.Fatal(err)
		}
	}
	if err := eng.Close(); err != nil {
		b.Fatal(err)
	}
}

// cpu returns the processor time of this process.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkTakeOver restores a store of b.N claims from its log into an empty copy with Pebble and opens an
// engine. With KAFKA_BROKERS the processor time is that of the member alone; use -benchtime 1000000x.
func BenchmarkTakeOver(b *testing.B) {
	_, c, topic := preparedTopic(b, kafkatest.Options{}, 1)
	first, err := replica.Open(b.Context(), c.Log(topic, 0), newCopies(), replica.Options{})
	if err != nil {
		b.Fatal(err)
	}
	claim(b, first, b.N)
	records := 0
	bytes := 0
	l := c.Log(topic, 0)
	_, end, err := l.Bounds(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	if err := l.Read(b.Context(), 0, end, func(_ int64, value []byte) bool { records, bytes = records+1, bytes+len(value); return true }); err != nil {
		b.Fatal(err)
	}
	copies := pebble.Copies(b.TempDir(), pebble.Options{})(topic, 0, 0)
	used := cpu()
	b.ResetTimer()
	s, err := replica.Open(b.Context(), c.Log(topic, 0), copies, replica.Options{})
	if err != nil {
		b.Fatal(err)
	}
	eng, err := engine.Open(s, engine.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/(cpu()-used).Seconds(), "claims/CPU-s")
	b.ReportMetric(float64(bytes)/float64(b.N), "B/claim")
	b.ReportMetric(float64(records), "records")
	if err := eng.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkAppend appends records of the size of a batch of 512 claims.
func BenchmarkAppend(b *testing.B) {
	_, c, topic := preparedTopic(b, kafkatest.Options{}, 1)
	l := c.Log(topic, 0)
	record := make([]byte, 512*17)
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		if _, err := l.Append(b.Context(), record); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
}
