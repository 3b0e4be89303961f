// Command changes keeps a copy of a Postgres table from the change events that Debezium publishes
// to Kafka. The version of a row is the position of its change in the log of Postgres (source.lsn),
// so that repeated, late or reordered events, as after a failover of the connector, give the same
// rows. Rows commit in one transaction with the Kafka offset.
//
//	go run ./examples/changes -brokers 127.0.0.1:9092 -topic server.public.records -dir changes.store -listen 127.0.0.1:8080
//	curl http://127.0.0.1:8080/tenants/acme
//
// The primary key of the table is (tenant_id, id). The topics and TOPIC-dlt must exist.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/versions"
)

// A change is the envelope of a Debezium event.
type change struct {
	Op     string          `json:"op"` // c: insert, u: update, r: read by the snapshot, d: delete
	After  json.RawMessage `json:"after"`
	Source struct {
		LSN uint64 `json:"lsn"`
		TS  int64  `json:"ts_ms"`
	} `json:"source"`
}

// A primaryKey is the key of a record.
type primaryKey struct {
	Tenant string          `json:"tenant_id"`
	ID     json.RawMessage `json:"id"`
}

// unwrap decodes JSON with or without the schema of Kafka Connect around it.
func unwrap(data []byte, into any) error {
	var wrapped struct {
		Payload json.RawMessage `json:"payload"`
	}
	if err := json.Unmarshal(data, &wrapped); err != nil {
		return err
	}
	if len(wrapped.Payload) > 0 {
		data = wrapped.Payload
	}
	return json.Unmarshal(data, into)
}

// apply puts the change of a record.
func apply(table versions.TxTable, rec *kgo.Record) error {
	if rec.Value == nil {
		return nil // the tombstone for Kafka's compaction, after a delete
	}
	var key primaryKey
	var c *change
	if err := errors.Join(unwrap(rec.Key, &key), unwrap(rec.Value, &c)); err != nil {
		return kafkaadapter.Permanent(err)
	}
	if c == nil {
		return nil // a tombstone too: older JSON converters publish a schema and a payload of null
	}
	var err error
	switch c.Op {
	case "c", "u", "r":
		err = table.Put(versions.Row{
			Tenant: key.Tenant, Key: key.ID, Version: c.Source.LSN, Time: time.UnixMilli(c.Source.TS), Payload: c.After,
		})
	case "d":
		err = table.Delete(key.Tenant, key.ID, c.Source.LSN)
	default:
		return kafkaadapter.Permanent(errors.New("no rule for op " + c.Op))
	}
	var refused *versions.RowError
	if errors.As(err, &refused) {
		return kafkaadapter.Permanent(err)
	}
	return err
}

// consume applies the changes of a topic until ctx ends, and removes replaced versions.
func consume(ctx context.Context, eng *engine.Engine, table *versions.Table, topic string, client ...kgo.Opt) error {
	consumer, err := kafkaadapter.New(eng, kafkaadapter.Options{
		Group:  "changes",
		Client: client,
		Routes: []kafkaadapter.Route{{
			Topics: []string{topic},
			Mode: kafkaadapter.Transactional{
				Handle: func(_ context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
					return apply(table.In(tx), rec.Record)
				},
				MaxAttempts: 5,
			},
			DeadLetters: &deadletter.Options{},
		}},
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	replaced := make(chan error, 1)
	go func() {
		defer stop()
		replaced <- table.Run(ctx)
	}()
	err = consumer.Run(ctx)
	stop()
	return errors.Join(err, <-replaced)
}

// serve returns a handler that answers /tenants/{tenant} with the rows of a tenant and the time of
// the last change.
func serve(table *versions.Table) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /tenants/{tenant}", func(w http.ResponseWriter, r *http.Request) {
		rows, err := table.Scan(r.Context(), versions.Selection{Tenant: r.PathValue("tenant")})
		answer := struct {
			LastApplied time.Time         `json:"last_applied"`
			Rows        []json.RawMessage `json:"rows"`
		}{LastApplied: rows.LastApplied}
		if err == nil {
			for row, scanErr := range rows.All {
				if err = scanErr; err != nil {
					break
				}
				answer.Rows = append(answer.Rows, row.Payload)
			}
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	})
	return mux
}

func main() {
	brokers := flag.String("brokers", "127.0.0.1:9092", "brokers, separated by commas")
	topic := flag.String("topic", "server.public.records", "topic of the change events")
	dir := flag.String("dir", "changes.store", "directory of the store")
	listen := flag.String("listen", "127.0.0.1:8080", "address to serve rows at")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	store, err := pebble.Open(*dir, pebble.Options{})
	if err != nil {
		log.Panic(err)
	}
	eng, err := engine.Open(store, engine.Options{})
	if err != nil {
		log.Panic(err)
	}
	defer func() {
		if err := eng.Close(); err != nil {
			log.Print(err)
		}
	}()
	go func() { log.Print(eng.RunNightly(ctx, 3*time.Hour, nil)) }() // drops expired weeks
	table, err := versions.New(eng, *topic, versions.Options{KeepDeletions: 30 * 24 * time.Hour})
	if err != nil {
		log.Panic(err)
	}
	server := &http.Server{Addr: *listen, Handler: serve(table), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			log.Print(err)
			stop()
		}
	}()
	defer func() { _ = server.Close() }()
	if err := consume(ctx, eng, table, *topic, kgo.SeedBrokers(strings.Split(*brokers, ",")...)); err != nil {
		log.Panic(err)
	}
}
