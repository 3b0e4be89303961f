package outbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// noCopy has no copy to begin with.
type noCopy struct{ disk *storetest.Disk }

func (noCopy) Open() (storage.Store, error) { return nil, fs.ErrNotExist }

func (c noCopy) Create(id storage.Identity) (storage.Store, error) { return c.disk.Open("copy", id) }

func (noCopy) Remove() error { return nil }

// A member has an engine whose store is in a log, and a relay.
type member struct {
	eng   *engine.Engine
	relay *Relay
	ended chan error
	stop  context.CancelFunc
}

// newMember makes a member the owner of the log. Its relay begins with start. Leases last for an hour, so a
// test in which one is waited for does not end.
func newMember(t *testing.T, log replica.Log, o Options) *member {
	t.Helper()
	store, err := replica.Open(t.Context(), log, noCopy{storetest.NewDisk()}, replica.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o.Lease.TTL = time.Hour
	m := &member{eng: openEngine(t, store, nil), ended: make(chan error, 1)}
	if m.relay, err = New(m.eng, o); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *member) start(t *testing.T) {
	run, cancel := context.WithCancel(context.Background())
	m.stop = cancel
	t.Cleanup(cancel)
	go func() { m.ended <- m.relay.Run(run) }()
}

// onceOptions returns a broker, options of an exactly-once relay on it, and a topic.
func onceOptions(t *testing.T) (b *kafkatest.Broker, o Options, topic string) {
	b = kafkatest.Start(t, kafkatest.Options{})
	return b, modes(t, b)["exactly once"], b.CreateTopic(t, 1, nil)
}

// expectValues reads all committed records of a topic.
func expectValues(t *testing.T, b *kafkatest.Broker, topic string, want ...string) {
	t.Helper()
	b.Produce(t, &kgo.Record{Topic: topic, Value: []byte("end")})
	c := b.Client(t, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	var got []string
	for !slices.Contains(got, "end") {
		for _, r := range kafkatest.Consume(t, c, 1) {
			got = append(got, string(r.Value))
		}
	}
	if want = append(want, "end"); !slices.Equal(got, want) {
		t.Errorf("published: %q, want %q", got, want)
	}
}

// A relay that was stopped before it got its producer id continues when another member has the log, has
// published and removed the message, and compaction has removed the record of progress that lists it.
func TestFencedRelayPublishesNothingThatItsSuccessorHasRemoved(t *testing.T) {
	b, o, topic := onceOptions(t)
	b.Cluster(t) // a real Kafka deletes no records of a compacted topic on request
	log := &replica.Memory{}
	first := newMember(t, log, o)
	produceN(t, first.eng, topic, 0, 1)
	_, stop := startRelay(t, first.eng, o)
	until(t, "a first message", func() bool { return pending(t, first.eng) == 0 })
	stop()
	produceN(t, first.eng, topic, 1, 2)
	dialed, wake := make(chan struct{}), make(chan struct{})
	dial := first.relay.shared.dial
	first.relay.shared.dial = func(opts ...kgo.Opt) (client, error) {
		dialed <- struct{}{}
		<-wake
		return dial(opts...)
	}
	first.start(t)
	kafkatest.Receive(t, dialed)

	second := newMember(t, log, o)
	second.start(t)
	until(t, "the message of the former owner", func() bool { return pending(t, second.eng) == 0 })
	produceN(t, second.eng, topic, 2, 3)
	until(t, "another message", func() bool { return pending(t, second.eng) == 0 })
	second.stop()
	if err := kafkatest.Receive(t, second.ended); err != nil {
		t.Error(err)
	}
	progress := o.ExactlyOnce.ProgressTopic
	b.DeleteRecords(t, progress, 0, b.Log(t, progress, 0).End-2) // as compaction: the last record and its marker remain
	close(wake)
	if err := kafkatest.Receive(t, first.ended); !errors.Is(err, replica.ErrFenced) {
		t.Errorf("the former owner's relay: %v", err)
	}
	expectValues(t, b, topic, "0", "1", "2")
}

// stuckClient stops before or after the end of its first transaction.
type stuckClient struct {
	client
	before bool
	at     chan struct{}
	wake   chan struct{}
}

func (c *stuckClient) EndTransaction(ctx context.Context, how kgo.TransactionEndTry) error {
	stop := func() {
		c.at <- struct{}{}
		<-c.wake
	}
	if c.before {
		stop()
		return c.client.EndTransaction(ctx, how)
	}
	err := c.client.EndTransaction(ctx, how)
	stop()
	return err
}

// A relay that was stopped before or after it has committed its transaction continues when another member has
// the log. The successor ends the transaction, does not wait for the lease, and publishes nothing again.
func TestSuccessorOfARelayReadsItsProgress(t *testing.T) {
	t.Run("stopped before the commit", func(t *testing.T) { succeed(t, true) })
	t.Run("stopped after the commit", func(t *testing.T) { succeed(t, false) })
}

func succeed(t *testing.T, before bool) {
	b, o, topic := onceOptions(t)
	log := &replica.Memory{}
	first := newMember(t, log, o)
	produceN(t, first.eng, topic, 0, 3)
	stuck := stuckClient{before: before, at: make(chan struct{}), wake: make(chan struct{})}
	dial := first.relay.shared.dial
	first.relay.shared.dial = func(opts ...kgo.Opt) (client, error) {
		c, err := dial(opts...)
		if err != nil {
			return nil, err
		}
		connected := stuck // the former client may still be closing
		connected.client = c
		return &connected, nil
	}
	first.start(t)
	kafkatest.Receive(t, stuck.at)

	second := newMember(t, log, o)
	second.start(t)
	produceN(t, second.eng, topic, 3, 4)
	until(t, "all messages", func() bool { return pending(t, second.eng) == 0 })
	close(stuck.wake)
	if err := kafkatest.Receive(t, first.ended); !errors.Is(err, replica.ErrFenced) {
		t.Errorf("the former owner's relay: %v", err)
	}
	expectValues(t, b, topic, fmt.Sprint(0), "1", "2", "3")
}
