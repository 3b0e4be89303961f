// Command changes keeps a copy of a Postgres table from the change events that Debezium publishes
// to Kafka. Rows commit in one transaction with the Kafka offset.
//
// A connector promises only the order in which it sends the events of a key to a partition. So the
// version of a row is the offset of its event: no field of an event orders it relative to the
// events of snapshots. An event that the connector sends again, for example after a failover, is a
// duplicate. Its id consists of the table, the key, the position and the transaction in the log of
// Postgres, and the kind of the change. A large value that did not change is absent from an event,
// and is taken from an earlier one. It stays absent if the primary key has changed: set REPLICA
// IDENTITY FULL for tables where that happens.
//
//	go run ./examples/changes -brokers 127.0.0.1:9092 -topic server.public.records -dir changes.store -listen 127.0.0.1:8080
//	curl http://127.0.0.1:8080/tenants/acme
//
// The primary key of the table is (tenant_id, id). The topics and TOPIC-dlt must exist. Do not add
// partitions, and give a topic that was created again a new directory: offsets order the events of
// one partition only.
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
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
	"github.com/hapax-dev/hapax/versions"
)

// apply puts the change of a record.
func apply(table versions.TxTable, rec *kgo.Record) error {
	c, key, err := decode(rec)
	if c == nil && err == nil {
		return nil
	}
	var row versions.Row
	if err == nil {
		row, err = c.row(rec, key)
	}
	if err != nil {
		return kafkaadapter.Permanent(err)
	}
	err = table.Put(row)
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
			Identify:    identify.Rules{Payload: identifyChange, IDHeaders: []string{}},
			// The first events of a topic may be old. Their order in the partition suffices.
			Policies: kafkaadapter.Policies{kafkaadapter.TooOld: kafkaadapter.Process, kafkaadapter.TooNew: kafkaadapter.Process},
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
			Incomplete  []json.RawMessage `json:"incomplete,omitempty"` // those of the rows that lack a large value
		}{LastApplied: rows.LastApplied}
		if err == nil {
			for row, scanErr := range rows.All {
				if err = scanErr; err != nil {
					break
				}
				answer.Rows = append(answer.Rows, row.Payload)
				if row.Partial {
					answer.Incomplete = append(answer.Incomplete, row.Key)
				}
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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
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
	table, err := versions.New(eng, *topic, versions.Options{KeepDeletions: 30 * 24 * time.Hour, Fill: fill})
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
