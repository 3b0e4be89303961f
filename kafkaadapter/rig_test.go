package kafkaadapter

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/owner"
)

// A rig is a broker, a topic with its dead-letter topic, a group, and a store.
type rig struct {
	*kafkatest.Broker
	topic, group string
	partitions   int32
	newStore     newStore
	mem          *storetest.Mem // nil if the store is not in memory
	eng          *engine.Engine

	mu   sync.Mutex
	runs []run
}

// A run is one call of a handler.
type run struct {
	topic, id string
	partition int32
	offset    int64
	attempt   int
	verdict   engine.Verdict
	reopened  bool
	trace     string
}

// newRig makes a rig with a store in memory.
func newRig(t testing.TB, partitions int32) *rig {
	t.Helper()
	return newRigOn(t, inMemory, partitions)
}

// newRigOn makes a rig with the given kind of store.
func newRigOn(t testing.TB, s newStore, partitions int32) *rig {
	t.Helper()
	return newRigWith(t, s, kafkatest.Options{}, partitions)
}

// newRigAt makes a rig with a store in memory and the given kind of broker.
func newRigAt(t testing.TB, o kafkatest.Options, partitions int32) *rig {
	t.Helper()
	return newRigWith(t, inMemory, o, partitions)
}

func newRigWith(t testing.TB, s newStore, o kafkatest.Options, partitions int32) *rig {
	t.Helper()
	r := &rig{Broker: kafkatest.Start(t, o), group: kafkatest.Name(t), partitions: partitions, newStore: s}
	r.topic = r.CreateTopic(t, partitions, nil)
	r.CreateNamed(t, r.topic+"-dlt", 1, nil)
	r.replaceStore(t)
	return r
}

// A newStore makes an empty store.
type newStore func(testing.TB) storage.Store

func inMemory(testing.TB) storage.Store { return storetest.NewMem(storage.Identity{}) }

func onPebble(t testing.TB) storage.Store {
	s, err := pebble.Open("store", pebble.Options{FS: vfs.NewMem(), CacheBytes: 1 << 20, MemTableBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// onEachStore runs a test on the store in memory and on Pebble.
func onEachStore(t *testing.T, test func(*testing.T, newStore)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) { test(t, inMemory) })
	t.Run("Pebble", func(t *testing.T) { test(t, onPebble) })
}

// replaceStore gives the rig an empty store. The previous store stays open for its users.
func (r *rig) replaceStore(t testing.TB) {
	t.Helper()
	s := r.newStore(t)
	r.mem, _ = s.(*storetest.Mem)
	r.eng = openEngine(t, s, engine.Options{})
}

func (r *rig) open(t testing.TB, m *storetest.Mem) {
	t.Helper()
	r.mem, r.eng = m, openMem(t, m, engine.Options{})
}

// crash cuts the power of the store, and opens what has survived.
func (r *rig) crash(t testing.TB) {
	t.Helper()
	r.open(t, r.mem.Crash())
}

// event returns a record with an id, for a partition of the topic.
func (r *rig) event(partition int32, id string, headers ...kgo.RecordHeader) *kgo.Record {
	return &kgo.Record{
		Topic: r.topic, Partition: partition, Key: []byte("key-" + id), Value: []byte("value-" + id),
		Headers: append([]kgo.RecordHeader{{Key: "message_id", Value: []byte(id)}}, headers...),
	}
}

// send produces events with these ids to a partition.
func (r *rig) send(t testing.TB, partition int32, ids ...string) {
	t.Helper()
	recs := make([]*kgo.Record, len(ids))
	for i, id := range ids {
		recs[i] = r.event(partition, id)
	}
	r.Produce(t, recs...)
}

// numbered returns n ids.
func numbered(prefix string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return ids
}

// note records a call of a handler.
func (r *rig) note(ctx context.Context, rec *Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs = append(r.runs, run{rec.Topic, string(rec.Event.ID), rec.Partition, rec.Offset, rec.Attempt, rec.Verdict, rec.Reopened, traceOf(ctx)})
}

// handled returns the calls of handlers so far.
func (r *rig) handled() []run {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.runs)
}

// untilHandled waits for n calls of handlers. A consumer with AtMostOnce that ends earlier
// withdraws the claims in the store whose handlers have not begun.
func (r *rig) untilHandled(t testing.TB, n int) {
	t.Helper()
	kafkatest.Until(t, fmt.Sprintf("%d calls of handlers", n), func() bool { return len(r.handled()) >= n })
}

func (r *rig) handledIDs() (ids []string) {
	for _, x := range r.handled() {
		ids = append(ids, x.id)
	}
	return ids
}

// work is a mode whose handler records its calls, runs f if it is not nil, and counts its events in
// the store.
func (r *rig) work(attempts int, f func(context.Context, *engine.Tx, *Record) error) Transactional {
	return Transactional{MaxAttempts: attempts, Handle: func(ctx context.Context, tx *engine.Tx, rec *Record) error {
		r.note(ctx, rec)
		if err := count(tx, string(rec.Event.ID)); err != nil {
			return err
		}
		if f != nil {
			return f(ctx, tx, rec)
		}
		return nil
	}}
}

// failing is a handler that fails for these ids.
func failing(err error, ids ...string) func(context.Context, *engine.Tx, *Record) error {
	return func(_ context.Context, _ *engine.Tx, rec *Record) error {
		if slices.Contains(ids, string(rec.Event.ID)) {
			return err
		}
		return nil
	}
}

var errHandler = errors.New("the handler cannot")

func countKey(id string) []byte { return []byte("count/" + id) }

func count(tx *engine.Tx, id string) error {
	b, _, err := tx.Get(countKey(id))
	if err != nil {
		return err
	}
	n := uint64(0)
	if len(b) == 8 {
		n = binary.BigEndian.Uint64(b)
	}
	return tx.Put(countKey(id), binary.BigEndian.AppendUint64(nil, n+1))
}

// effects returns how often an event took effect in the store.
func (r *rig) effects(t testing.TB, id string) (n uint64) {
	t.Helper()
	if b := r.get(t, countKey(id)); len(b) == 8 {
		n = binary.BigEndian.Uint64(b)
	}
	return n
}

func (r *rig) get(t testing.TB, key []byte) (value []byte) {
	t.Helper()
	err := r.eng.Update(context.Background(), func(tx *engine.Tx) (err error) {
		value, _, err = tx.Get(key)
		return err
	}, engine.Retries(100))
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// checkOnce fails the test for each event that did not take effect exactly once.
func (r *rig) checkOnce(t testing.TB, ids ...string) {
	t.Helper()
	lost, more := 0, 0
	for _, id := range ids {
		switch n := r.effects(t, id); {
		case n == 0:
			lost++
			t.Logf("%s is lost", id)
		case n > 1:
			more++
			t.Logf("%s took effect %d times", id, n)
		}
	}
	if lost+more > 0 {
		t.Errorf("of %d events %d are lost and %d took effect more than once", len(ids), lost, more)
	}
}

func (r *rig) position(partition int32) engine.OffsetKey {
	return engine.OffsetKey{Group: r.group, Topic: r.topic, Partition: partition}
}

// stored returns the store's offset of a partition, -1 if there is none.
func (r *rig) stored(t testing.TB, partition int32) int64 {
	t.Helper()
	o, found, err := r.eng.Admin().Offset(context.Background(), r.position(partition))
	if err != nil {
		t.Fatal(err)
	}
	if !found {
		return -1
	}
	return o.Next
}

// untilStored waits for the store's offset of a partition, and for its dead letters to be
// published.
func (r *rig) untilStored(t testing.TB, partition int32, offset int64) {
	t.Helper()
	kafkatest.Until(t, fmt.Sprintf("offset %d of partition %d in the store", offset, partition), func() bool {
		return r.stored(t, partition) >= offset && r.get(t, append(letterKey(r.position(partition)), 0, 0)) == nil
	})
}

func (r *rig) attemptsAt(t testing.TB, partition int32) (a owner.Attempts) {
	t.Helper()
	if b := r.get(t, partitionKey(keyOwner, r.position(partition))); b != nil {
		o, err := parseOwner(b)
		if err != nil {
			t.Fatal(err)
		}
		a = o.Tries
	}
	return a
}

// letters polls n dead letters.
func (r *rig) letters(t testing.TB, n int) []*kgo.Record {
	t.Helper()
	return kafkatest.Consume(t, r.Client(t, kgo.ConsumeTopics(r.topic+"-dlt"), kgo.ConsumeStartOffset(kgo.NewOffset().AtStart())), n)
}

func (r *rig) letterCount(t testing.TB) int64 {
	t.Helper()
	return r.Log(t, r.topic+"-dlt", 0).End
}

// A member is a running consumer.
type member struct {
	*Consumer
	logs   *logs
	reg    *prometheus.Registry
	stops  chan *StopError
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid once done is closed
}

// options returns those of a member of the rig's group, with short pauses. Its session and its
// handlers' time limit are long, so that they survive a machine that stalls for some seconds.
func (r *rig) options(mode Mode) Options {
	route := Route{Topics: []string{r.topic}, Mode: mode, Policies: Policies{}}
	if route.transactional() {
		route.DeadLetters = &deadletter.Options{}
	} else {
		route.Policies = RejectUnclaimable()
	}
	return Options{
		Group: r.group, Routes: []Route{route},
		DrainTimeout: 45 * time.Second, shutdownTimeout: 45 * time.Second, backoff: pauseBounds{Min: time.Millisecond, Max: 5 * time.Millisecond},
		commitInterval: 20 * time.Millisecond,
		Client: append(r.ClientOptions(), kgo.FetchMaxWait(50*time.Millisecond), kgo.HeartbeatInterval(100*time.Millisecond),
			kgo.SessionTimeout(30*time.Second), kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond })),
	}
}

// withDeadLetters adds dead letters to AtMostOnce.
func withDeadLetters(o *Options) {
	o.Routes[0].DeadLetters, o.Routes[0].Policies[Undecodable] = &deadletter.Options{}, DeadLetter
}

// start runs a consumer until stop, or the end of the test.
func (r *rig) start(t testing.TB, mode Mode, change ...func(*Options)) *member {
	t.Helper()
	m := &member{logs: &logs{}, reg: prometheus.NewRegistry(), stops: make(chan *StopError, 100), done: make(chan struct{})}
	o := r.options(mode)
	o.Telemetry.Logger = slog.New(slog.NewTextHandler(m.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	o.Telemetry.Registerer = keeping{m.reg}
	o.OnStop = func(e *StopError) { m.stops <- e }
	for _, f := range change {
		f(&o)
	}
	var err error
	eng := r.eng
	if o.Changelog != nil {
		eng = nil
	}
	if m.Consumer, err = New(eng, o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() {
		defer close(m.done)
		if m.err = m.Run(ctx); m.err != nil {
			fmt.Fprintf(m.logs, "Run ended: %v\n", m.err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		defer func() {
			if t.Failed() {
				t.Logf("a member's log:\n%s", m.logs)
			}
		}()
		kafkatest.Receive(t, m.done)
	})
	return m
}

// keeping is a registerer that still has the metrics of a consumer whose Run has returned.
type keeping struct{ prometheus.Registerer }

func (keeping) Unregister(prometheus.Collector) bool { return true }

// stop ends the consumer and fails the test if Run returns an error.
func (m *member) stop(t testing.TB) {
	t.Helper()
	m.cancel()
	kafkatest.Receive(t, m.done)
	if m.err != nil {
		t.Errorf("Run: %v\n%s", m.err, m.logs)
	}
}

// stopped waits for the next stop of a partition.
func (m *member) stoppedOne(t testing.TB) *StopError {
	t.Helper()
	select {
	case e := <-m.stops:
		return e
	case <-m.done:
		t.Fatalf("Run ended: %v\n%s", m.err, m.logs)
	case <-time.After(90 * time.Second):
		t.Fatalf("no partition stops\n%s", m.logs)
	}
	return nil
}

// pause pauses a topic, and waits until its partitions have seen it: none of them begins a batch.
func (m *member) pause(t testing.TB, topic string) {
	t.Helper()
	if err := m.Pause(topic); err != nil {
		t.Fatal(err)
	}
	kafkatest.Until(t, "the pause", func() bool {
		return !slices.ContainsFunc(m.parts.all(), func(p *partition) bool { return p.pos.Topic == topic && p.status().state != paused })
	})
}

// logs keeps the log.
type logs struct {
	mu  sync.Mutex
	all []byte
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, b...)
	return len(b), nil
}

// count is how often a text was logged.
func (l *logs) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.all, []byte(text))
}

// has reports whether a text was logged.
func (l *logs) has(text string) bool { return l.count(text) > 0 }

// String returns the newest lines.
func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	const most = 8 << 10
	return string(l.all[max(0, len(l.all)-most):])
}

// offset is a commit to Kafka by another program.
func (r *rig) offset(partition int32, at int64, metadata string) kadm.Offset {
	return kadm.Offset{Topic: r.topic, Partition: partition, At: at, LeaderEpoch: -1, Metadata: metadata}
}

// metric returns the sum of a metric's values (the counts of a histogram) over the series with all
// of these label values.
func (m *member) metric(t testing.TB, name string, labels ...string) (sum float64) {
	t.Helper()
	families, err := m.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "dedup_kafka_"+name {
			continue
		}
		for _, x := range f.GetMetric() {
			has := func(value string) bool {
				return slices.ContainsFunc(x.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == value })
			}
			if !slices.ContainsFunc(labels, func(value string) bool { return !has(value) }) {
				sum += x.GetCounter().GetValue() + x.GetGauge().GetValue() + float64(x.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

// counts fails the test unless a metric reaches this value. Metrics count a batch a moment after
// its commit.
func (m *member) counts(t testing.TB, want float64, name string, labels ...string) {
	t.Helper()
	var got float64
	kafkatest.Until(t, fmt.Sprintf("%s%v to be %v", name, labels, want), func() bool {
		got = m.metric(t, name, labels...)
		// a gauge may return to the value
		return got == want || got > want && strings.HasSuffix(name, "_total")
	})
	if got != want {
		t.Errorf("%s%v is %v, want %v", name, labels, got, want)
	}
}
