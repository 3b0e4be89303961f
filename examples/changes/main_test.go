package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/versions"
)

// event returns a change event as Debezium's Postgres connector publishes it, without schemas.
func event(topic, op, id string, lsn int, name string) *kgo.Record {
	image := fmt.Sprintf(`{"tenant_id":"acme","id":%s,"name":%q}`, id, name)
	before, after := "null", image
	if op == "d" {
		before, after = image, "null"
	}
	return &kgo.Record{
		Topic: topic, Key: fmt.Appendf(nil, `{"tenant_id":"acme","id":%s}`, id),
		Value: fmt.Appendf(nil, `{"before":%s,"after":%s,"source":{"connector":"postgresql","ts_ms":%d,"db":"d","schema":"public","table":"records","lsn":%d},"op":%q,"ts_ms":%d}`,
			before, after, 1767225600000+int64(lsn), lsn, op, 1767225600500+int64(lsn)),
	}
}

// wrapped returns the same record with schemas (schemas.enable).
func wrapped(r *kgo.Record) *kgo.Record {
	r.Key = fmt.Appendf(nil, `{"schema":{"type":"struct"},"payload":%s}`, r.Key)
	r.Value = fmt.Appendf(nil, `{"schema":{"type":"struct"},"payload":%s}`, r.Value)
	return r
}

// A snapshot, changes, changes that are published again after a failover of the connector, and an
// invalid record.
func TestTheCopyFollowsTheTable(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 1, nil)
	b.CreateNamed(t, topic+"-dlt", 1, nil)
	first := []*kgo.Record{
		event(topic, "r", "1", 100, "snapshot"),
		event(topic, "r", "2", 100, "snapshot"),
		event(topic, "u", "1", 110, "ann"),
		event(topic, "u", "1", 120, "anne"),
		event(topic, "d", "2", 130, "snapshot"),
		{Topic: topic, Key: []byte(`{"tenant_id":"acme","id":2}`)}, // a tombstone
		wrapped(event(topic, "c", "3", 140, "carl")),
		{Topic: topic, Key: []byte(`{"schema":{"type":"struct"},"payload":{"tenant_id":"acme","id":2}}`)},
		{Topic: topic, Key: []byte(`{"schema":{"type":"struct"},"payload":{"tenant_id":"acme","id":2}}`), Value: []byte(`{"schema":null,"payload":null}`)},
		// a truncate, for which the example has no rule
		{Topic: topic, Key: []byte(`{}`), Value: []byte(`{"op":"t"}`)},
	}
	again := []*kgo.Record{
		event(topic, "u", "1", 110, "ann"),
		event(topic, "d", "2", 130, "snapshot"),
		event(topic, "r", "2", 100, "snapshot"),
		event(topic, "c", "4", 150, "dora"), // the last one
	}
	b.Produce(t, append(first, again...)...)
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()
	table, err := versions.New(eng, "records", versions.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- consume(ctx, eng, table, topic, b.ClientOptions()...) }()
	letters := b.ConsumeTopic(t, topic+"-dlt", 1)
	if string(letters[0].Value) != `{"op":"t"}` {
		t.Errorf("dead letter %s", letters[0].Value)
	}
	for {
		a, err := table.Get(t.Context(), "acme", []byte("4"))
		if err != nil {
			t.Fatal(err)
		}
		if a.Found {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}

	response := httptest.NewRecorder()
	serve(table).ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/tenants/acme", nil))
	var answer struct {
		LastApplied time.Time `json:"last_applied"`
		Rows        []struct {
			ID   int    `json:"id"`
			Name string `json:"name"`
		} `json:"rows"`
	}
	if err := json.Unmarshal(response.Body.Bytes(), &answer); err != nil {
		t.Fatal(err, response.Body)
	}
	if got := fmt.Sprint(answer.Rows); got != "[{1 anne} {3 carl} {4 dora}]" || answer.LastApplied.IsZero() {
		t.Error(got, answer.LastApplied)
	}
}
