package hapaxtest

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/keyspace"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/outbox"
	"github.com/hapax-dev/hapax/telemetry"
)

// maxBackoff is short: handlers that fail are called again soon.
const maxBackoff = 10 * time.Millisecond

// A life is a consumer and a relay, from the opening of the store until it is closed or fails.
type life struct {
	store    *storetest.Mem
	eng      *engine.Engine
	consumer *kafkaadapter.Consumer
	metrics  *prometheus.Registry
	stop     context.CancelFunc
	running  sync.WaitGroup

	mu  sync.Mutex // guards err
	err error      // of Run of the consumer or the relay
}

func begin(store *storetest.Mem, routes []kafkaadapter.Route, client []kgo.Opt, log *logs, clock func() time.Time) (l *life, err error) {
	eng, err := engine.Open(store, engine.Options{Clock: clock})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, eng.Close())
		}
	}()
	l = &life{store: store, eng: eng, metrics: prometheus.NewRegistry()}
	watched := telemetry.Options{Logger: slog.New(slog.NewTextHandler(log, nil)), Registerer: keeping{l.metrics}}
	l.consumer, err = kafkaadapter.New(eng, kafkaadapter.Options{
		Group: Group, Routes: routes, MaxBackoff: maxBackoff, Telemetry: watched,
		Client: slices.Concat(client, []kgo.Opt{kgo.FetchMaxWait(50 * time.Millisecond), kgo.HeartbeatInterval(100 * time.Millisecond)}),
	})
	if err != nil {
		return nil, err
	}
	relay, err := outbox.New(eng, outbox.Options{Telemetry: watched, Client: slices.Concat(client, []kgo.Opt{kgo.AllowAutoTopicCreation()})})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	l.running.Go(func() { l.failed(l.consumer.Run(ctx)) })
	l.running.Go(func() { l.failed(relay.Run(ctx)) })
	return l, nil
}

func (l *life) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

// failure returns the error with which the consumer or the relay has ended.
func (l *life) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// end stops the consumer and closes the store.
func (l *life) end() {
	l.stop()
	l.running.Wait()
	_ = l.eng.Close() // it reports the crash, if there was one
}

// stored returns the store's durable offset of a topic, 0 if there is none.
func (l *life) stored(t testing.TB, topic string) int64 {
	t.Helper()
	o, _, err := l.eng.Admin().Offset(background, offsetKey(topic))
	if err != nil {
		t.Fatal("hapaxtest: reading an offset: ", err)
	}
	return o.Next
}

// written returns the store's offset of a topic, which may not be durable.
func (l *life) written(topic string) int64 {
	var o engine.Offset
	_ = l.eng.Update(background, func(tx *engine.Tx) (err error) {
		o, _, err = tx.Offset(offsetKey(topic))
		return errors.Join(err, errRead)
	})
	return o.Next
}

// errRead rolls back a transaction that only reads, so that it need not wait for a sync.
var errRead = errors.New("hapaxtest: only read")

func offsetKey(topic string) engine.OffsetKey { return engine.OffsetKey{Group: Group, Topic: topic} }

// hasLetters reports whether the store has dead letters that are not published.
func (l *life) hasLetters(t testing.TB) bool {
	t.Helper()
	for _, err := range l.eng.Scan(background, engine.Range{Prefix: append([]byte(keyspace.KafkaKeys), keyspace.KafkaLetter)}) {
		if err != nil {
			t.Fatal("hapaxtest: reading dead letters: ", err)
		}
		return true
	}
	return false
}

// keeping is a registerer that still has the metrics of a consumer whose Run has returned.
type keeping struct{ prometheus.Registerer }

func (keeping) Unregister(prometheus.Collector) bool { return true }

// logs keeps a log.
type logs struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}
