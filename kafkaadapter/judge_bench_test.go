package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/feed"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
	"github.com/hapax-dev/hapax/telemetry"
)

var errUndone = errors.New("undone")

// BenchmarkJudge judges one batch of new events with an empty handler, repeatedly. The claims are
// rolled back before they commit, so that the store is not measured. With telemetry, the tracer
// records nothing.
func BenchmarkJudge(b *testing.B) {
	for name, observer := range judgeObservers(b) {
		b.Run(name, func(b *testing.B) {
			judge, recs := judging(b, observer)
			b.ReportAllocs()
			for b.Loop() {
				judge()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*recs), "ns/record")
		})
	}
}

// Records are allocated a few at a time, because handlers may keep them. Apart from that, a record
// costs no allocation, also with telemetry that records no span; a batch does.
func TestJudgingAllocatesNothingForARecord(t *testing.T) {
	if raceDetector {
		t.Skip("under the race detector a sync.Pool drops values at random")
	}
	const mostOfABatch = DefaultMaxBatch / 8
	allocs := make(map[string]float64)
	for name, observer := range judgeObservers(t) {
		judge, _ := judging(t, observer)
		allocs[name] = allocations(10, judge)
	}
	for name, n := range allocs {
		if n > mostOfABatch {
			t.Errorf("%s: a batch of %d records allocates %v times", name, DefaultMaxBatch, n)
		}
	}
}

// allocations returns how often f allocates: the least of several measurements, because other
// goroutines allocate too.
func allocations(runs int, f func()) float64 {
	least := math.Inf(1)
	for range 10 {
		least = min(least, testing.AllocsPerRun(runs, f))
	}
	return least
}

func judgeObservers(t testing.TB) map[string]engine.Observer {
	unsampled := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	observer, err := telemetry.New(telemetry.Options{
		Registerer: prometheus.NewRegistry(), TracerProvider: func() trace.TracerProvider { return unsampled },
	})
	if err != nil {
		t.Fatal(err)
	}
	return map[string]engine.Observer{"telemetry=off": nil, "telemetry=on": observer}
}

// judging returns a function that judges a batch, and the number of its records.
func judging(b testing.TB, observer engine.Observer) (judge func(), records int) {
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{Observer: observer})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = eng.Close() })
	mode := Transactional{
		MaxAttempts: 1,
		Handle:      func(context.Context, *engine.Tx, *Record) error { return nil },
	}
	c, err := New(eng, Options{
		Group: "g", Routes: []Route{{Topics: []string{"t"}, Mode: mode, DeadLetters: &deadletter.Options{}, Scope: "s"}},
		// a batch may take any time
		Client: []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")}, batchTime: time.Hour,
	})
	if err != nil {
		b.Fatal(err)
	}
	v := &resume.Facts{End: math.MaxInt64}
	p := c.assign.newWorker(topicPartition{"t", 0}, nil, 0)
	b.Cleanup(func() { p.partition.cancel(nil) })
	if err := eng.Update(b.Context(), func(tx *engine.Tx) error { return p.finder.occupy(tx, v, resume.Beginning{Epoch: -1}) }); err != nil {
		b.Fatal(err)
	}
	recs := make([]*kgo.Record, DefaultMaxBatch)
	for i := range recs {
		recs[i] = &kgo.Record{Topic: "t", Offset: int64(i), Value: make([]byte, 200), Headers: []kgo.RecordHeader{
			{Key: "message_id", Value: []byte(uuid.NewString())},
			{Key: "event_time", Value: time.Now().UTC().AppendFormat(nil, time.RFC3339Nano)},
		}}
	}
	var fetched []kgo.Record
	size := int64(0)
	for _, rec := range recs {
		fetched, size = append(fetched, *rec), size+feed.RecordBytes(rec)
	}
	return func() {
		for i, rec := range recs {
			*rec = fetched[i]
		}
		p.partition.handlers.hands.begin(size, len(recs))
		err := eng.Update(b.Context(), func(tx *engine.Tx) error {
			o := &batch{p: p.state, tx: tx, result: result{epoch: -1}, began: time.Now(), low: math.MaxInt64}
			if err := errors.Join(o.judge(recs), o.writeState(recs, nil)); err != nil {
				return err
			}
			if o.result.done != len(recs) || int(o.result.tally.verdicts[engine.Claimed]) != len(recs) {
				return fmt.Errorf("%d records are done, %d claimed", o.result.done, o.result.tally.verdicts[engine.Claimed])
			}
			return errUndone
		})
		if !errors.Is(err, errUndone) {
			b.Fatal(err)
		}
	}, len(recs)
}
