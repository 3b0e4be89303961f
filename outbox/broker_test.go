package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/bolt"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// modes are the two ways to publish.
func modes(t *testing.T, b *kafkatest.Broker) map[string]Options {
	t.Helper()
	progress := b.CreateTopic(t, 1, map[string]string{"cleanup.policy": "compact"})
	o := Options{
		Client: b.ClientOptions(), Telemetry: quiet(), Batch: Batch{Entries: 50, Time: 2 * time.Second},
		Retry: Retry{Min: 10 * time.Millisecond, Max: 500 * time.Millisecond},
	}
	once := o
	once.ExactlyOnce = &ExactlyOnce{ProgressTopic: progress}
	return map[string]Options{"at least once": o, "exactly once": once}
}

// startRelay runs a relay against the broker.
func startRelay(t *testing.T, eng *engine.Engine, o Options) (relay *Relay, stop func()) {
	t.Helper()
	relay, err := New(eng, o)
	if err != nil {
		t.Fatal(err)
	}
	run, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- relay.Run(run) }()
	return relay, func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func produceN(t *testing.T, eng *engine.Engine, topic string, from, to int) {
	t.Helper()
	for n := from; n < to; n += 20 {
		if err := eng.Update(ctx, func(tx *engine.Tx) error {
			for i := n; i < min(n+20, to); i++ {
				if _, err := tx.Produce(engine.Message{ID: fmt.Sprint(i), Topic: topic, Key: fmt.Append(nil, i%9), Value: fmt.Append(nil, i)}); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// Records arrive whole, in the order of each key, from both stores and in both ways, also when the
// store is closed and opened in between.
func TestMessagesArriveFromBothStores(t *testing.T) {
	stores := map[string]func(dir string) (storage.Store, error){
		"pebble": func(dir string) (storage.Store, error) { return pebble.Open(dir, pebble.Options{}) },
		"bolt":   func(dir string) (storage.Store, error) { return bolt.Open(dir, bolt.Options{}) },
	}
	b := kafkatest.Start(t, kafkatest.Options{})
	for how, o := range modes(t, b) {
		for name, open := range stores {
			t.Run(how+"/"+name, func(t *testing.T) {
				topic, dir := b.CreateTopic(t, 3, nil), filepath.Join(t.TempDir(), "store")
				at := func(fn func(eng *engine.Engine)) {
					store, err := open(dir)
					if err != nil {
						t.Fatal(err)
					}
					eng := openEngine(t, store, nil)
					fn(eng)
					if err := eng.Close(); err != nil {
						t.Fatal(err)
					}
				}
				// retried messages may be there twice
				o.Batch.Time, o.Lease.TTL = time.Minute, 2*time.Minute
				at(func(eng *engine.Engine) { produceN(t, eng, topic, 0, 200) })
				at(func(eng *engine.Engine) {
					_, stop := startRelay(t, eng, o)
					produceN(t, eng, topic, 200, 400)
					until(t, "an empty outbox", func() bool { return pending(t, eng) == 0 })
					stop()
				})
				last := map[string]int{}
				for _, r := range kafkatest.Consume(t, b.Client(t, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted())), 400) {
					var n int
					if _, err := fmt.Sscan(string(r.Value), &n); err != nil || idOf(r) != fmt.Sprint(n) || string(r.Key) != fmt.Sprint(n%9) {
						t.Fatalf("record %q %q %q", r.Key, r.Value, idOf(r))
					}
					if before, found := last[string(r.Key)]; found && n != before+9 || !found && n != n%9 {
						t.Fatalf("key %s: %d after %d", r.Key, n, before)
					}
					last[string(r.Key)] = n
				}
			})
		}
	}
}

func TestUnreachableBrokerLosesNothing(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{Durable: true})
	for how, o := range modes(t, b) {
		t.Run(how, func(t *testing.T) {
			topic := b.CreateTopic(t, 3, nil)
			eng := openEngine(t, newMemDisk().open(t), nil)
			hangs := newWatch(ErrHangingTransaction)
			o.Telemetry.Logger = slog.New(hangs)
			relay, stop := startRelay(t, eng, o)
			defer stop()
			produceN(t, eng, topic, 0, 500)
			until(t, "some messages", func() bool { return pending(t, eng) < 400 })
			b.Kill(t)
			produceN(t, eng, topic, 500, 600)
			kafkatest.Until(t, "the end of the listener", func() bool {
				c, err := net.Dial("tcp", b.Addrs()[0])
				if err == nil {
					_ = c.Close()
				}
				return err != nil
			})
			b.Revive(t)
			until(t, "an empty outbox", func() bool {
				if hangs.seen() {
					t.Logf("the broker left out %d markers of a transaction", b.CommitLost(t, topic, o.ExactlyOnce.ProgressTopic))
				}
				return pending(t, eng) == 0
			})
			lost, doubled := tally(600, readIDs(t, b, topic))
			t.Logf("%d lost, %d doubled", lost, doubled)
			if lost != 0 || o.ExactlyOnce != nil && doubled != 0 {
				t.Errorf("%d lost, %d doubled", lost, doubled)
			}
			if n := len(parkedIDs(t, relay)); n != 0 {
				t.Errorf("%d are parked", n)
			}
		})
	}
}

// A watch is a log handler that watches for an error.
type watch struct {
	slog.Handler
	target error
	found  atomic.Bool
}

func newWatch(target error) *watch { return &watch{Handler: slog.DiscardHandler, target: target} }

func (*watch) Enabled(context.Context, slog.Level) bool { return true }

func (w *watch) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok && errors.Is(err, w.target) {
			w.found.Store(true)
		}
		return true
	})
	return nil
}

// seen reports whether the error was logged since the last call.
func (w *watch) seen() bool { return w.found.Swap(false) }

// begin begins a transaction with one record of the topic, and returns the client and the offset.
func begin(t *testing.T, b *kafkatest.Broker, topic string) (*kgo.Client, int64) {
	t.Helper()
	c := b.Client(t, kgo.TransactionalID(kafkatest.Name(t)))
	if err := c.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	r := &kgo.Record{Topic: topic, Key: []byte("k"), Value: []byte("v")}
	if err := c.ProduceSync(ctx, r).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return c, r.Offset
}

// A transaction of another relay that is open in the progress topic is waited for, since it hides
// the records after it. If it stays open, that is an error that says where it began.
func TestOpenTransactionInTheProgressTopicIsAwaited(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	o := modes(t, b)["exactly once"]
	topic := o.ExactlyOnce.ProgressTopic
	p, client := &progress{topic: topic}, b.Client(t)
	if err := client.ProduceSync(ctx, &kgo.Record{Topic: topic, Key: []byte("k"), Value: []byte("first")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := p.awaitStable(ctx, client, 0, time.Minute); err != nil {
		t.Fatal(err)
	}
	other, at := begin(t, b, topic)
	_, own := begin(t, b, topic)
	for recorded, acknowledged := range map[int64]bool{
		0: false, own + 1: false, // what this store has recorded is not about the first open transaction
		at + 1: true,
	} {
		p.next = recorded
		var err error
		for limit := 100 * time.Millisecond; !errors.Is(err, ErrHangingTransaction) && limit < patience; limit *= 2 { // a busy machine does not answer within the first
			err = p.awaitStable(ctx, client, own, limit)
		}
		if !errors.Is(err, ErrHangingTransaction) || !strings.Contains(err.Error(), fmt.Sprintf("offset %d of partition 0", at)) {
			t.Errorf("an open transaction: %v", err)
		}
		if strings.Contains(err.Error(), "acknowledged") != acknowledged {
			t.Errorf("recorded up to %d: %v", recorded, err)
		}
	}
	if err := other.EndTransaction(ctx, kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of the first one", func() bool {
		err := p.awaitStable(ctx, client, at, time.Millisecond)
		return err == nil
	})
}

// The limit ends a request to a slow broker, and the earlier answers count; an error of the broker is
// not a transaction.
func TestTransactionsAreAwaitedAtASlowBroker(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := modes(t, b)["exactly once"].ExactlyOnce.ProgressTopic
	p := &progress{topic: topic}
	begin(t, b, topic)
	c, answers := b.Cluster(t), new(atomic.Int64)
	c.ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if answers.Add(-1) < 0 {
			c.SleepControl(func() { time.Sleep(time.Second) })
		}
		return nil, nil, false
	})
	for hung, n := range map[bool]int64{false: 0, true: 2} {
		answers.Store(n)
		if err := p.awaitStable(ctx, b.Client(t), 0, 300*time.Millisecond); err == nil || errors.Is(err, ErrHangingTransaction) != hung {
			t.Errorf("after %d answers: %v", n, err)
		}
	}
	answers.Store(math.MaxInt64)
	b.DeleteTopic(t, topic)
	if err := p.awaitStable(ctx, b.Client(t), 0, 300*time.Millisecond); err == nil || errors.Is(err, ErrHangingTransaction) {
		t.Errorf("a topic that was deleted: %v", err)
	}
}

// readProgress reads the progress topic to its end.
func readProgress(c *connection) (*progress, error) {
	r, err := c.openProgress(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer r.close()
	for err == nil && !r.ended {
		_, err = r.read(ctx)
	}
	return r.progress, err
}

// A broker that takes a record for a copy does not say where it is. The progress topic is then not read
// at all: without its end, entries would be missing.
func TestProgressIsNotReadWithoutItsEnd(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	o := modes(t, b)["exactly once"]
	topic := o.ExactlyOnce.ProgressTopic
	client := b.Client(t)
	for range 2 {
		if err := client.ProduceSync(ctx, &kgo.Record{Topic: topic, Key: []byte("k"), Value: []byte("v")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	relay, err := New(openEngine(t, newMemDisk().open(t), nil), o)
	if err != nil {
		t.Fatal(err)
	}
	c := &connection{shared: relay.shared}
	if p, err := readProgress(c); err != nil || p.next != 3 {
		t.Fatalf("%+v, %v", p, err)
	}
	b.Cluster(t).ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		answer := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, asked := range req.(*kmsg.ProduceRequest).Topics {
			t := kmsg.NewProduceResponseTopic()
			t.Topic, t.TopicID = asked.Topic, asked.TopicID
			p := kmsg.NewProduceResponseTopicPartition()
			p.ErrorCode, p.BaseOffset = kerr.DuplicateSequenceNumber.Code, -1
			t.Partitions = append(t.Partitions, p)
			answer.Topics = append(answer.Topics, t)
		}
		return answer, nil, true
	})
	if p, err := readProgress(c); err == nil || !strings.Contains(err.Error(), "without its offset") {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := readProgress(c); err != nil || p.next != 4 {
		t.Errorf("afterwards %+v, %v", p, err)
	}
}

// Messages that one topic rejects are parked; other topics do not wait for them.
func TestRejectionsOfARealTopicArePerMessage(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	for how, o := range modes(t, b) {
		t.Run(how, func(t *testing.T) {
			topic := b.CreateTopic(t, 2, nil)
			o.Retry.Attempts = 2
			eng := openEngine(t, newMemDisk().open(t), nil)
			relay, stop := startRelay(t, eng, o)
			defer stop()
			send := func(m engine.Message) {
				if err := eng.Update(ctx, func(tx *engine.Tx) error { _, err := tx.Produce(m); return err }); err != nil {
					t.Fatal(err)
				}
			}
			send(engine.Message{ID: "no topic", Topic: kafkatest.Name(t)})
			send(engine.Message{ID: "no partition", Topic: topic, Partition: new(int32(7))})
			send(engine.Message{ID: "too large", Topic: topic, Value: make([]byte, 3<<20)})
			send(engine.Message{ID: "partition 1", Topic: topic, Partition: new(int32(1)), Key: []byte("k"), Headers: []engine.MessageHeader{{Key: "h", Value: []byte("v")}}})
			produceN(t, eng, topic, 0, 10)
			until(t, "three parked messages", func() bool { return len(parkedIDs(t, relay)) == 3 })
			until(t, "an empty outbox", func() bool { return pending(t, eng) == 0 })
			for _, r := range b.ConsumeTopic(t, topic, 11) {
				if idOf(r) == "partition 1" && (r.Partition != 1 || r.Headers[0].Key != "h" || string(r.Headers[0].Value) != "v") {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

func TestProgressTopicIsChecked(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	eng := openEngine(t, newMemDisk().open(t), nil)
	for what, topic := range map[string]string{
		kerr.UnknownTopicOrPartition.Message: kafkatest.Name(t),
		"cleanup.policy=delete":              b.CreateTopic(t, 1, map[string]string{"cleanup.policy": "delete"}),
		"cleanup.policy=compact,delete":      b.CreateTopic(t, 1, map[string]string{"cleanup.policy": "compact,delete"}),
	} {
		relay, err := New(eng, Options{Client: b.ClientOptions(), Telemetry: quiet(), ExactlyOnce: &ExactlyOnce{ProgressTopic: topic}})
		if err != nil {
			t.Fatal(err)
		}
		s := &session{connection: connection{shared: relay.shared}}
		_, err = readProgress(&s.connection)
		if err == nil || !errors.Is(err, ErrProgressTopic) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The relay sets the acks, whatever those of Options.Client are.
func TestProgressIsReadWithOtherAcks(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	eng := openEngine(t, newMemDisk().open(t), nil)
	o := modes(t, b)["exactly once"]
	o.Client = append(o.Client, kgo.RequiredAcks(kgo.LeaderAck()))
	relay, err := New(eng, o)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{connection: connection{shared: relay.shared}}
	if _, err := readProgress(&s.connection); err != nil {
		t.Error(err)
	}
}

// A lyingClient reports for every third transaction that its end has failed: half of these have
// committed.
type lyingClient struct {
	*kgo.Client
	ends *atomic.Int64
}

func (c *lyingClient) EndTransaction(ctx context.Context, how kgo.TransactionEndTry) error {
	switch c.ends.Add(1) % 6 {
	case 3:
		return errors.Join(c.Client.EndTransaction(ctx, how), errDown)
	case 0:
		return errDown
	}
	return c.Client.EndTransaction(ctx, how)
}

func TestTransactionOfUnknownOutcomeIsLookedUp(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 3, nil)
	eng := openEngine(t, newMemDisk().open(t), nil)
	produceN(t, eng, topic, 0, 300)
	o := modes(t, b)["exactly once"]
	o.Batch.Entries = 20
	relay, err := New(eng, o)
	if err != nil {
		t.Fatal(err)
	}
	dial, ends := relay.shared.dial, new(atomic.Int64)
	relay.shared.dial = func(o ...kgo.Opt) (client, error) {
		c, err := dial(o...)
		if err != nil {
			return nil, err
		}
		return &lyingClient{c.(*kgo.Client), ends}, nil
	}
	run, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- relay.Run(run) }()
	until(t, "an empty outbox", func() bool { return pending(t, eng) == 0 })
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if lost, doubled := tally(300, readIDs(t, b, topic)); lost != 0 || doubled != 0 || ends.Load() < 15 {
		t.Errorf("%d lost, %d doubled in %d transactions", lost, doubled, ends.Load())
	}
}
