package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/versions"
)

const start = 1767225600000 // the time of the first event, in milliseconds

// event returns a change event as Debezium's Postgres connector publishes it, without schemas.
func event(topic, op, id string, lsn int, name string) *kgo.Record {
	image := fmt.Sprintf(`{"tenant_id":"acme","id":%s,"name":%q}`, id, name)
	before, after := "null", image
	if op == "d" {
		before, after = image, "null"
	}
	return &kgo.Record{
		Topic: topic, Key: fmt.Appendf(nil, `{"tenant_id":"acme","id":%s}`, id),
		Value: fmt.Appendf(nil, `{"before":%s,"after":%s,"source":{"connector":"postgresql","ts_ms":%d,"db":"d","schema":"public","table":"records","txId":%d,"lsn":%d},"op":%q,"ts_ms":%d}`,
			before, after, start+int64(lsn), 700+lsn, lsn, op, start+500+int64(lsn)),
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
	table, run := openTable(t, start)
	stop := run(topic, b.ClientOptions()...)
	letters := b.ConsumeTopic(t, topic+"-dlt", 1)
	if string(letters[0].Value) != `{"op":"t"}` {
		t.Errorf("dead letter %s", letters[0].Value)
	}
	waitFor(t, table, "4")
	stop()

	answer := rowsOf(t, table)
	if got := fmt.Sprint(answer.names()); got != "[1 anne 3 carl 4 dora]" || answer.LastApplied.IsZero() {
		t.Error(got, answer.LastApplied)
	}
}

// openTable returns a table in a new store, and a function that starts to consume a topic and returns
// one that ends it. The engine's clock says the time of the events.
func openTable(t *testing.T, millis int64) (table *versions.Table, run func(topic string, client ...kgo.Opt) (stop func())) {
	t.Helper()
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{Clock: func() time.Time { return time.UnixMilli(millis) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	if table, err = versions.New(eng, "records", versions.Options{Fill: fill}); err != nil {
		t.Fatal(err)
	}
	return table, func(topic string, client ...kgo.Opt) func() {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- consume(ctx, eng, table, topic, client...) }()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
}

// waitFor waits until a row is visible.
func waitFor(t *testing.T, table *versions.Table, id string) {
	t.Helper()
	for {
		a, err := table.Get(t.Context(), "acme", []byte(id))
		if err != nil {
			t.Fatal(err)
		}
		if a.Found {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

type answer struct {
	LastApplied time.Time   `json:"last_applied"`
	Rows        []answerRow `json:"rows"`
	Incomplete  []int       `json:"incomplete"`
}

type answerRow struct {
	ID   int    `json:"id"`
	Name string `json:"name"`
	Big  string `json:"big"`
}

func (a *answer) names() (names []any) {
	for _, r := range a.Rows {
		names = append(names, r.ID, r.Name)
	}
	return names
}

// rowsOf returns what the service answers.
func rowsOf(t *testing.T, table *versions.Table) (a answer) {
	t.Helper()
	response := httptest.NewRecorder()
	serve(table).ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/tenants/acme", nil))
	if err := json.Unmarshal(response.Body.Bytes(), &a); err != nil {
		t.Fatal(err, response.Body)
	}
	return a
}

// events returns the records of a log of a real connector.
func events(t *testing.T, name, topic string) (records []*kgo.Record) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "debezium", name+".tsv"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		key, value, _ := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte("\t"))
		records = append(records, &kgo.Record{Topic: topic, Key: key, Value: value})
	}
	return records
}

// The copy ends as Postgres does after snapshots that overlap open transactions. Events that the
// connector then sends again, as after a failover, change nothing, not even for a moment.
func TestTheCopyFollowsARealConnector(t *testing.T) {
	const at = 1795694190000 // the time of the logs
	for name, want := range map[string]string{
		"blocking-snapshot":    "[1 new 2 TWO 3 three 99 the end]",
		"incremental-snapshot": "[1 new 2 TWO 3 three 99 the end]",
		"restart-snapshot":     "[1 new 2 two 3 three 4 four 99 the end]",
	} {
		t.Run(name, func(t *testing.T) {
			b := kafkatest.Start(t, kafkatest.Options{})
			topic := b.CreateTopic(t, 1, nil)
			b.CreateNamed(t, topic+"-dlt", 1, nil)
			sent := events(t, name, topic)
			n := uint64(len(sent))
			b.Produce(t, sent...)
			table, run := openTable(t, at)
			stop := run(topic, b.ClientOptions()...)
			defer func() { stop() }()
			check := func(when string) {
				t.Helper()
				a := rowsOf(t, table)
				if got := fmt.Sprint(a.names()); got != want || a.Incomplete != nil {
					t.Errorf("%s: %s %v, want %s", when, got, a.Incomplete, want)
				}
				if !slices.ContainsFunc(a.Rows, func(r answerRow) bool { return r.ID == 2 && len(r.Big) == 9000 }) {
					t.Errorf("%s: the large value of row 2 is lost", when)
				}
			}
			waitFor(t, table, "99")
			check("at the end")
			b.Produce(t, append(events(t, name, topic), event(topic, "c", "100", 1<<20, "after"))...)
			waitFor(t, table, "100")
			rows, err := table.ScanWithOlderVersions(t.Context(), versions.Selection{})
			if err != nil {
				t.Fatal(err)
			}
			for row, err := range rows.All {
				if err != nil || row.Version >= n && string(row.Key) != "100" {
					t.Errorf("version %d of row %s, %v, is a repeat", row.Version, row.Key, err)
				}
			}
			want = strings.Replace(want, " 2", " 100 after 2", 1)
			check("after repeats")
		})
	}
}

// A snapshot that reads a row again, at another time, is not a repeat: it repairs the copy.
func TestAnotherSnapshotIsApplied(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 1, nil)
	b.CreateNamed(t, topic+"-dlt", 1, nil)
	snapshot := func(name string, at int64) *kgo.Record {
		rec := event(topic, "r", "1", 0, name)
		rec.Value = fmt.Appendf(nil, `{"after":{"tenant_id":"acme","id":1,"name":%q},"source":{"ts_ms":%d,"table":"records","txId":null,"lsn":null},"op":"r"}`, name, at)
		return rec
	}
	b.Produce(t, snapshot("wrong", start+1), event(topic, "u", "1", 120, "wrong too"), snapshot("repaired", start+200), event(topic, "c", "2", 300, "last"))
	table, run := openTable(t, start)
	stop := run(topic, b.ClientOptions()...)
	waitFor(t, table, "2")
	stop()
	answer := rowsOf(t, table)
	if got := fmt.Sprint(answer.names()); got != "[1 repaired 2 last]" {
		t.Error(got)
	}
}

// A dead letter that is sent back does not replace newer changes.
func TestReplayedLetterKeepsItsPosition(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 1, nil)
	b.CreateNamed(t, topic+"-dlt", 1, nil)
	late := event(topic, "u", "1", 110, "older")
	for name, value := range map[string]string{"topic": topic, "partition": "0", "offset": "0"} {
		late.Headers = append(late.Headers, kgo.RecordHeader{Key: "hapax_dlt_original_" + name, Value: []byte(value)})
	}
	b.Produce(t, event(topic, "c", "2", 100, "first"), event(topic, "u", "1", 120, "newer"), late, event(topic, "c", "3", 130, "last"))
	table, run := openTable(t, start)
	stop := run(topic, b.ClientOptions()...)
	waitFor(t, table, "3")
	stop()
	answer := rowsOf(t, table)
	if got := fmt.Sprint(answer.names()); got != "[1 newer 2 first 3 last]" {
		t.Error(got)
	}
}

// Each form in which the connector sends an unchanged large value is completed, and nothing else is.
func TestUnavailableValues(t *testing.T) {
	const older = `{"id":1,"text":"t","bytes":"AAA=","list":["a"],"numbers":[1],"map":{"a":"b"},"uuids":["u"]}`
	for newer, want := range map[string]string{
		`{"id":2,"text":"__debezium_unavailable_value"}`:                                 `{"id":2,"text":"t"}`,
		`{"id":2,"bytes":"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="}`:                    `{"bytes":"AAA=","id":2}`,
		`{"id":2,"list":[ "__debezium_unavailable_value" ]}`:                             `{"id":2,"list":["a"]}`,
		`{"id":2,"map":{"__debezium_unavailable_value":"__debezium_unavailable_value"}}`: `{"id":2,"map":{"a":"b"}}`,
		`{"id":2,"uuids":["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]}`:                      `{"id":2,"uuids":["u"]}`,
		`{"id":2,"text":"about __debezium_unavailable_value"}`:                           "",
		`{"id":2,"text":null}`:                            "",
		`{"id":2,"other":"__debezium_unavailable_value"}`: `{"id":2,"other":"__debezium_unavailable_value"}`,
		`{"id":2,"numbers":[95,95,100,101,98,101,122,105,117,109,95,117,110,97,118,97,105,108,97,98,108,101,95,118,97,108,117,101]}`: `{"id":2,"numbers":[1]}`,
	} {
		partial, err := isPartial([]byte(newer))
		if err != nil || partial != (want != "") {
			t.Errorf("%s is partial: %v, %v", newer, partial, err)
		}
		if !partial {
			continue
		}
		filled, partial := fill([]byte(newer), []byte(older))
		if string(filled) != want || partial != (newer == want) {
			t.Errorf("%s is completed to %s, %v", newer, filled, partial)
		}
	}
}
