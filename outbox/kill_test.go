package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/correlation"
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/crashfs"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// A disk keeps a store, and a copy of what a power failure would leave of it.
type disk interface {
	open(t testing.TB) storage.Store
	crash(rng *rand.Rand) disk
}

type memDisk struct{ mem *storetest.Mem }

func newMemDisk() disk                           { return &memDisk{storetest.NewMem(storage.Identity{})} }
func (d *memDisk) open(testing.TB) storage.Store { return d.mem }
func (d *memDisk) crash(rng *rand.Rand) disk {
	return &memDisk{d.mem.CrashClone(rng.IntN(d.mem.Unsynced() + 1))}
}

type pebbleDisk struct{ fs *crashfs.FS }

func newPebbleDisk() disk { return &pebbleDisk{crashfs.New()} }

func (d *pebbleDisk) open(t testing.TB) storage.Store {
	s, err := pebble.Open("store", pebble.Options{FS: d.fs, SmallTables: true})
	if err != nil {
		t.Fatal("opening the store:", err)
	}
	return s
}

func (d *pebbleDisk) crash(rng *rand.Rand) disk {
	return &pebbleDisk{d.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * rng.IntN(3), RNG: rng})}
}

// A victim is a process that is killed at the n-th request of its relay to the broker: after that
// nothing of it reaches the broker, and its disk is as after a power failure.
type victim struct {
	disk  disk
	rng   *rand.Rand
	left  atomic.Int64
	dead  atomic.Bool
	after chan disk
}

var errDead = errors.New("this process is dead")

func (v *victim) point() error {
	if v.left.Add(-1) == 0 {
		v.dead.Store(true)
		v.after <- v.disk.crash(v.rng)
	}
	if v.dead.Load() {
		return errDead
	}
	return nil
}

// An aheadClock is ahead of the machine's. Pauses end: the relay makes some when a process was stopped
// for so long that a transaction has timed out.
type aheadClock struct{ by time.Duration }

func (c aheadClock) Now() time.Time { return time.Now().Add(c.by) }

func (aheadClock) After(d time.Duration) (<-chan time.Time, func()) { return machineClock{}.After(d) }

// A mortalClient is a client of a victim.
type mortalClient struct {
	*kgo.Client
	v *victim
}

func (c *mortalClient) Produce(ctx context.Context, r *kgo.Record, promise func(*kgo.Record, error)) {
	if err := c.v.point(); err != nil {
		promise(r, err)
		return
	}
	c.Client.Produce(ctx, r, promise)
}

func (c *mortalClient) ProducerID(ctx context.Context) (int64, int16, error) {
	if err := c.v.point(); err != nil {
		return 0, 0, err
	}
	return c.Client.ProducerID(ctx)
}

func (c *mortalClient) EndTransaction(ctx context.Context, how kgo.TransactionEndTry) error {
	if err := c.v.point(); err != nil {
		return err
	}
	err := c.Client.EndTransaction(ctx, how)
	return errors.Join(err, c.v.point())
}

// Flush, Close and other calls of a dead process do nothing.
func (c *mortalClient) Close() { c.Client.Close() }

// killRun publishes messages from one store through several processes, of which the first ones are
// killed. It returns the produced messages and how often each id can be read from the topic.
func killRun(t *testing.T, b *kafkatest.Broker, first disk, kills int, options func() Options) (topic string, produced int, seen map[string]int) {
	t.Helper()
	const each, batch = 60, 10
	topic = b.CreateTopic(t, 3, nil)
	d := first
	rng := rand.New(rand.NewPCG(7, 7))
	for k := range kills + 1 {
		eng, err := engine.Open(d.open(t), engine.Options{ExpectedPerWeek: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if err := eng.Update(ctx, func(tx *engine.Tx) error {
			for n := range each {
				if _, err := tx.Produce(engine.Message{ID: fmt.Sprint(k, "-", n), Topic: topic, Key: fmt.Append(nil, n%7)}); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		produced += each
		o := options()
		o.Client, o.Telemetry, o.Batch.Entries = b.ClientOptions(), quiet(), batch
		o.Lease = Lease{TTL: time.Minute, Margin: 15 * time.Second}
		o.Clock = aheadClock{time.Duration(k) * 24 * time.Hour} // it finds that the lease of the one before has expired
		v := &victim{disk: d, rng: rng, after: make(chan disk, 1)}
		if k < kills {
			v.left.Store(1 + rng.Int64N(each)) // one for each message
		}
		relay, err := New(eng, o)
		if err != nil {
			t.Fatal(err)
		}
		dial := relay.shared.dial
		relay.shared.dial = func(o ...kgo.Opt) (client, error) {
			c, err := dial(o...)
			if err != nil {
				return nil, err
			}
			return &mortalClient{c.(*kgo.Client), v}, nil
		}
		run, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- relay.Run(run) }()
		if k < kills {
			d = kafkatest.Receive(t, v.after)
		} else {
			until(t, "an empty outbox", func() bool { return pending(t, eng) == 0 })
		}
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := eng.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return topic, produced, readIDs(t, b, topic)
}

// readIDs counts the committed records of a topic by id.
func readIDs(t *testing.T, b *kafkatest.Broker, topic string) map[string]int {
	t.Helper()
	want := map[int32]int64{}
	for p := range int32(3) {
		l := b.Log(t, topic, p)
		kafkatest.Until(t, "the end of open transactions", func() bool { l = b.Log(t, topic, p); return l.Stable == l.End })
		if l.Start > 0 { // nothing is lost that the broker has removed
			t.Fatalf("%d records of partition %d of %s were removed before they were read", l.Start, p, topic)
		}
		if l.End > 0 {
			want[p] = l.End
		}
	}
	c := b.Client(t, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	seen := map[string]int{}
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for len(want) > 0 {
		fetches := c.PollFetches(limit)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		for r := range fetches.RecordsAll() {
			if !r.Attrs.IsControl() {
				seen[idOf(r)]++
			}
		}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			for _, r := range p.Records {
				if r.Offset+1 >= want[p.Partition] {
					delete(want, p.Partition)
				}
			}
		})
	}
	return seen
}

// consume reads a topic to its end with a consumer that claims, and counts how often it handles
// each id.
func consume(t *testing.T, b *kafkatest.Broker, topic string) map[string]int {
	t.Helper()
	eng := openEngine(t, storetest.NewMem(storage.Identity{}), nil)
	var mu sync.Mutex
	handled := map[string]int{}
	group := kafkatest.Name(t)
	b.CreateNamed(t, topic+"-dlt", 1, nil)
	c, err := kafkaadapter.New(eng, kafkaadapter.Options{
		Group: group, Client: b.ClientOptions(),
		Routes: []kafkaadapter.Route{{
			Topics:      []string{topic},
			DeadLetters: &deadletter.Options{},
			Mode: kafkaadapter.Transactional{MaxAttempts: 1, Handle: func(_ context.Context, _ *engine.Tx, r *kafkaadapter.Record) error {
				mu.Lock()
				defer mu.Unlock()
				handled[idOf(r.Record)]++
				return nil
			}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- c.Run(run) }()
	for p := range int32(3) {
		if end := b.Log(t, topic, p).End; end > 0 {
			b.UntilCommitted(t, group, topic, p, end)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return handled
}

// What a handler produces often has the headers of the record that it handles: a delayed retry, or
// several messages about one event. Each is an event of its own downstream.
func TestMessagesWithForwardedHeadersAreAllHandled(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 3, nil)
	eng := openEngine(t, newMemDisk().open(t), nil)
	forwarded := []engine.MessageHeader{
		{Key: correlation.MessageID, Value: []byte("of the event")}, {Key: correlation.MessageTime, Value: []byte("2020-01-01T00:00:00Z")},
		{Key: correlation.Header, Value: []byte("of the event")},
		{Key: "ce_id", Value: []byte("of the event")}, {Key: "ce_source", Value: []byte("shop")}, {Key: "ce_specversion", Value: []byte("1.0")},
		{Key: "idempotency-key", Value: []byte("of the request")}, {Key: "message_id", Value: []byte("of the event")},
	}
	send(t, eng,
		engine.Message{ID: "1", Topic: topic, Headers: forwarded}, engine.Message{ID: "2", Topic: topic, Headers: forwarded},
		engine.Message{ID: "3", Topic: topic, Headers: forwarded, Due: time.Now().Add(10 * time.Millisecond)},
		engine.Message{ID: "4", Topic: topic, Headers: forwarded, Time: time.Now()})
	_, stop := startRelay(t, eng, modes(t, b)["at least once"])
	defer stop()
	until(t, "an empty outbox", func() bool { return pending(t, eng) == 0 })
	want := map[string]int{"1": 1, "2": 1, "3": 1, "4": 1}
	if handled := consume(t, b, topic); !maps.Equal(handled, want) {
		t.Errorf("handled %v, want each of 4 once", handled)
	}
}

func tally(produced int, seen map[string]int) (lost, doubled int) {
	lost = produced - len(seen)
	for _, n := range seen {
		if n > 1 {
			doubled++
		}
	}
	return lost, doubled
}

const kills = 30

func TestExactlyOnceThroughKills(t *testing.T) {
	for name, d := range map[string]func() disk{"memory": newMemDisk, "pebble": newPebbleDisk} {
		t.Run(name, func(t *testing.T) {
			b := kafkatest.Start(t, kafkatest.Options{})
			progress := b.CreateTopic(t, 1, map[string]string{"cleanup.policy": "compact"})
			_, produced, seen := killRun(t, b, d(), kills, func() Options {
				return Options{ExactlyOnce: &ExactlyOnce{ProgressTopic: progress}}
			})
			lost, doubled := tally(produced, seen)
			t.Logf("%d kills, %d messages: %d lost, %d doubled", kills, produced, lost, doubled)
			if lost != 0 || doubled != 0 {
				t.Errorf("%d lost, %d doubled", lost, doubled)
			}
		})
	}
}

// A relay that finds an empty progress topic has not read its record of progress.
func TestExactlyOnceNeedsTheRecordOfProgress(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	_, produced, seen := killRun(t, b, newMemDisk(), kills, func() Options {
		return Options{ExactlyOnce: &ExactlyOnce{ProgressTopic: b.CreateTopic(t, 1, map[string]string{"cleanup.policy": "compact"})}}
	})
	lost, doubled := tally(produced, seen)
	t.Logf("%d kills, %d messages, progress unread: %d lost, %d doubled", kills, produced, lost, doubled)
	if lost != 0 || doubled == 0 {
		t.Errorf("%d lost, %d doubled: the kills do not need the record of progress", lost, doubled)
	}
}

// A message that the relay has published twice is handled once by a consumer that uses the engine.
func TestAtLeastOnceThroughKills(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic, produced, seen := killRun(t, b, newPebbleDisk(), kills, func() Options { return Options{} })
	lost, doubled := tally(produced, seen)
	t.Logf("%d kills, %d messages, at least once: %d lost, %d doubled", kills, produced, lost, doubled)
	if lost != 0 {
		t.Errorf("%d lost", lost)
	}
	if doubled > kills*10 {
		t.Errorf("%d doubled in %d kills: more than were in flight", doubled, kills)
	}
	if doubled == 0 {
		t.Error("nothing is doubled: the consumer has no copies to recognize")
	}
	handled := consume(t, b, topic)
	if lost, twice := tally(produced, handled); lost != 0 || twice != 0 {
		t.Errorf("the consumer: %d messages were not handled, %d twice", lost, twice)
	}
}
