package simulation

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter"
)

const (
	group       = "simulation"
	topic       = "in"
	deadTopic   = "in-dlt"
	partitions  = 3
	accounts    = 4
	maxAttempts = 30 // above the number of attempts that recovering handlers and process deaths cause
)

// An event is an event of the producer, which may send it more than once.
type event struct {
	id      string
	account int
	amount  int64
	at      time.Time // zero: the records' own timestamps, which differ
	poison  poison
	hiccups int  // how often its handler will still fail before it succeeds
	adds    bool // its handler uses Tx.Add
	calls   int  // of its AtMostOnce handler
}

// A poison is the way in which the handler of an event always fails.
type poison uint8

const (
	healthy poison = iota
	failing
	panicking
	permanent
)

// A world is the environment of the machines: a broker, a producer, and the expected state of the
// events. It lives in one bubble of testing/synctest.
type world struct {
	seed    uint64
	network *kfake.VirtualNetwork
	cluster *kfake.Cluster
	out     *kgo.Client // the producer

	disk       disk
	mutate     mutant
	promised   atomic.Uint64
	atMostOnce bool
	form
	lost      int                   // how many were lost before
	signature string                // of the store, in its commits
	recovery  kafkaadapter.Recovery // of the next machine
	intrusion *intrusion            // what the next machine must detect; nil: nothing

	mu         sync.Mutex // guards what follows
	rng        *rand.Rand
	events     []*event
	byID       map[string]*event
	log        [partitions][]*event // by offset
	floor      [partitions]int64    // offsets seen in the store at a restart
	atRisk     int                  // how many events the last machine may have lost
	machines   int                  // so far
	last       bool                 // the last one is in progress
	owner      [partitions]*member  // the last owner of each partition
	violations []string
	tally      tally
	logger     *slog.Logger
}

// A form says which consumers run, and in which time.
type form struct {
	pace
	lives      int  // on one disk
	together   bool // several members on one engine, which come and go
	serverSide bool // KIP-848
	static     bool // the members have an InstanceID

	// pinned: one of several processes with a store and a part of the partitions each; 0: not
	// pinned
	ordinal, of int
}

// pods returns the number of independent processes.
func (f *form) pods() int { return max(1, f.of) }

// global returns the broker's number of one of the world's partitions; local is the reverse.
func (f *form) global(partition int) int32 { return int32(partition*f.pods() + f.ordinal) }
func (f *form) local(partition int32) int  { return int(partition) / f.pods() }

// single is one consumer in virtual time.
var single = form{pace: virtualTime}

// crew returns the number of members with which a machine begins.
func (w *world) crew() int {
	if !w.together {
		return 1
	}
	return 1 + w.pick(3)
}

// A tally has the totals of a run.
type tally struct {
	cuts                             map[moment]int
	faults                           map[string]int // of brokers, by request
	clean, records, events, poisoned int
	handled                          int // calls of the handler
	moves                            int // of leaders
	intrusions, lost                 int // foreign commits, events lost by AtMostOnce
	expelled                         int // how often the group revoked partitions at once
	left, muted, moved               int // members that left or lost their network, partitions that went to another member
	reaped                           int // members that the embedded broker had failed to remove
}

// add adds the totals of another run.
func (t *tally) add(o *tally) {
	for k, n := range o.cuts {
		t.cuts[k] += n
	}
	for k, n := range o.faults {
		t.faults[k] += n
	}
	for _, n := range []struct {
		sum *int
		add int
	}{
		{&t.clean, o.clean}, {&t.records, o.records}, {&t.events, o.events}, {&t.poisoned, o.poisoned}, {&t.handled, o.handled},
		{&t.moves, o.moves}, {&t.intrusions, o.intrusions}, {&t.lost, o.lost}, {&t.expelled, o.expelled}, {&t.left, o.left},
		{&t.muted, o.muted}, {&t.moved, o.moved}, {&t.reaped, o.reaped},
	} {
		*n.sum += n.add
	}
}

func (t *tally) total() (n int) {
	for _, k := range t.cuts {
		n += k
	}
	return n
}

func newWorld(seed uint64, d disk, f form, m mutation) (*world, error) {
	w := worldOf(seed, d, f)
	w.mutate, w.network = m.store, new(kfake.VirtualNetwork)
	var err error
	w.cluster, err = kfake.NewCluster(kfake.NumBrokers(brokers), kfake.Ports(9092, 9093, 9094), kfake.ListenFn(w.network.Listen),
		kfake.SeedTopics(int32(partitions*f.pods()), topic), kfake.SeedTopics(1, deadTopic), kfake.GroupMinSessionTimeout(f.session),
		kfake.BrokerConfigs(map[string]string{"group.consumer.session.timeout.ms": strconv.Itoa(int(f.session.Milliseconds()))}))
	if err != nil {
		return nil, err
	}
	if m.broker != nil {
		m.broker(w.cluster)
	}
	return w, w.startProducer()
}

// beside returns a world with the same brokers and another part of the partitions. Its machines
// have a disk of their own.
func (w *world) beside(d disk, ordinal int) (*world, error) {
	f := w.form
	f.ordinal = ordinal
	o := worldOf(w.seed, d, f)
	o.mutate, o.network, o.cluster = w.mutate, w.network, w.cluster
	return o, o.startProducer()
}

func worldOf(seed uint64, d disk, f form) *world {
	return &world{
		seed: seed, disk: d, form: f, atMostOnce: seed%3 == 0, logger: newLogger(), rng: rand.New(rand.NewPCG(seed, uint64(7+f.ordinal))),
		byID: make(map[string]*event), tally: tally{cuts: make(map[moment]int), faults: make(map[string]int)},
	}
}

func (w *world) startProducer() (err error) {
	w.out, err = kgo.NewClient(w.client(w.network.DialContext, kgo.ProducerLinger(0), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	return err
}

func (w *world) client(dial func(context.Context, string, string) (net.Conn, error), more ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{
		kgo.SeedBrokers(w.cluster.ListenAddrs()...), kgo.Dialer(dial),
		// they only take time
		kgo.DisableClientMetrics(), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.MetadataMinAge(10 * time.Millisecond), kgo.RetryBackoffFn(func(int) time.Duration { return 5 * time.Millisecond }),
	}, more...)
}

// violate records a broken promise.
func (w *world) violate(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
}

func (w *world) violated() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.violations) > 0
}

// chance returns true in the given percentage of cases.
func (w *world) chance(percent int) bool { return w.pick(100) < percent }

func (w *world) pick(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.IntN(n)
}

// upTo returns a duration from 0 to d.
func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.pick(int(d) + 1)) }

// produce sends n records: new events and copies of recent and old ones, some of them in parallel.
func (w *world) produce(n int) error {
	var sent []*event
	var records []*kgo.Record
	for range n {
		e := w.newOrAgain(sent)
		r := &kgo.Record{
			Topic: topic, Partition: w.global(w.pick(partitions)), Value: []byte(strconv.FormatInt(e.amount, 10)),
			Headers: []kgo.RecordHeader{{Key: "message_id", Value: []byte(e.id)}},
		}
		if !e.at.IsZero() {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: "event_time", Value: []byte(e.at.Format(time.RFC3339))})
		}
		sent, records = append(sent, e), append(records, r)
	}
	if err := w.out.ProduceSync(context.Background(), records...).FirstErr(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, r := range records {
		p := w.local(r.Partition)
		if int64(len(w.log[p])) != r.Offset {
			return fmt.Errorf("record of %s got offset %d, want %d", sent[i].id, r.Offset, len(w.log[p]))
		}
		w.log[p] = append(w.log[p], sent[i])
	}
	w.tally.records += n
	return nil
}

func (w *world) newOrAgain(sent []*event) *event {
	switch k := w.pick(100); {
	case k < 15 && len(sent) > 0:
		return sent[len(sent)-1]
	case k < 25 && len(sent) > 0:
		return sent[w.pick(len(sent))]
	case k < 35 && len(w.events) > 0:
		return w.events[w.pick(len(w.events))]
	}
	return w.newEvent()
}

func (w *world) newEvent() *event {
	e := &event{account: w.pick(accounts), amount: int64(1 + w.pick(1000)), adds: w.chance(50)}
	e.id = fmt.Sprintf("event-%d-%d", w.ordinal, len(w.events))
	if w.chance(30) {
		e.id = uuid.NewSHA1(uuid.NameSpaceOID, []byte(e.id)).String()
	}
	if w.chance(60) {
		e.at = time.Now().Add(-w.upTo(48 * time.Hour)).UTC().Truncate(time.Second)
	}
	switch {
	case w.chance(2):
		e.poison = poison(1 + w.pick(int(permanent)))
		w.tally.poisoned++
	case w.chance(6):
		e.hiccups = 1 + w.pick(2)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
	w.byID[e.id] = e
	w.tally.events++
	return e
}

func (w *world) event(id []byte) *event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.byID[string(id)]
}

// hiccup reports whether the handler of e fails this time.
func (w *world) hiccup(e *event) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.hiccups == 0 {
		return false
	}
	e.hiccups--
	return true
}

// ends returns the offsets after the last records.
func (w *world) ends() (ends [partitions]int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range ends {
		ends[p] = int64(len(w.log[p]))
	}
	return ends
}

func (w *world) position(p int) engine.OffsetKey {
	return engine.OffsetKey{Group: group, Topic: topic, Partition: w.global(p)}
}

// letters counts the dead letters of each event at the broker.
func (w *world) letters() (map[string]int, error) {
	c, err := kgo.NewClient(w.client(w.network.DialContext, kgo.ConsumeTopics(deadTopic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	end := w.cluster.PartitionInfo(deadTopic, 0).HighWatermark
	found := make(map[string]int)
	ctx, cancel := context.WithTimeout(context.Background(), w.patience)
	defer cancel()
	for next := int64(0); next < end; {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("at %d of %d: %w", next, end, ctx.Err())
		}
		fetches.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			for _, h := range r.Headers {
				if h.Key == "message_id" {
					found[string(h.Value)]++
				}
			}
		})
	}
	return found, nil
}
