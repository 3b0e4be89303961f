package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestEachTransferIsBookedOnce(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 3, nil)
	b.CreateNamed(t, topic+"-dlt", 1, nil)
	const accounts, n = 5, 300
	want := map[string]int64{}
	var sent []*kgo.Record
	for i := range n { // each is sent twice, to two partitions
		from, to := fmt.Sprintf("a%d", i%accounts), fmt.Sprintf("a%d", (i*7+1)%accounts)
		want[from] -= int64(i + 1)
		want[to] += int64(i + 1)
		value := []byte(fmt.Sprintf(`{"from":%q,"to":%q,"amount":%d}`, from, to, i+1))
		for again := range 2 {
			sent = append(sent, message(topic, (i+again)%3, fmt.Sprint(i), value))
		}
	}
	b.Produce(t, append(sent, message(topic, 0, "poison", []byte(`{"from":"a1"}`)))...)

	spans := tracetest.NewSpanRecorder()
	var log syncBuffer
	s, stop := serve(t, config{
		group: kafkatest.Name(t), topic: topic, client: b.ClientOptions(), log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		traces: trace.NewTracerProvider(trace.WithSpanProcessor(spans)),
	})
	for partition := range int32(3) {
		b.UntilCommitted(t, s.group, topic, partition, b.Log(t, topic, partition).End)
	}
	b.ConsumeTopic(t, topic+"-dlt", 1)
	for account, balance := range want {
		if got := get(s, "/balance?account="+account); got != fmt.Sprintln(balance) {
			t.Errorf("balance of %s is %s, want %d", account, got, balance)
		}
	}
	metrics := get(s, "/metrics")
	duplicates := fmt.Sprintf("dedup_kafka_records_total{group=%q,member=\"\",outcome=\"duplicate\",topic=%q} %d\n", s.group, topic, n)
	for _, name := range []string{"kafka_client_fetch_bytes_total", duplicates, "dedup_synced_claims_total"} {
		if !strings.Contains(metrics, name) {
			t.Errorf("no metric %s in\n%s", name, metrics)
		}
	}
	stop()
	if !strings.Contains(log.String(), "duplicate skipped") || !strings.Contains(log.String(), "beginning to manage the group lifecycle") {
		t.Errorf("the log has no duplicates, or nothing of the client:\n%s", log.String())
	}
	names := map[string]bool{}
	for _, span := range spans.Ended() {
		if span.SpanContext().TraceID().String() == "0af7651916cd43dd8448eb211c80319c" {
			names[span.Name()] = true
		}
	}
	if !names["book transfer"] || !names[topic+" receive"] {
		t.Errorf("spans in the producer's trace: %v", names)
	}
}

func message(topic string, partition int, id string, value []byte) *kgo.Record {
	return &kgo.Record{Topic: topic, Partition: int32(partition), Value: value, Headers: []kgo.RecordHeader{
		{Key: "message_id", Value: []byte(id)}, {Key: "traceparent", Value: []byte(parent)},
	}}
}

type served struct {
	*service
	group string
}

// serve runs a service on a store in memory until stop is called.
func serve(t *testing.T, c config) (s served, stop func()) {
	t.Helper()
	service, err := newService(storetest.NewMem(storage.Identity{}), c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- service.run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := service.close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return served{service, c.group}, stop
}

func get(s served, path string) string {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	body, _ := io.ReadAll(w.Result().Body)
	return string(body)
}

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
