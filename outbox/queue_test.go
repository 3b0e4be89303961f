package outbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/entry"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// refuse lets the broker fail all messages whose id begins with prefix.
func (r *rig) refuse(prefix string, err error) {
	r.broker.setAnswer(func(rec *kgo.Record, _ int) error {
		if strings.HasPrefix(idOf(rec), prefix) {
			return err
		}
		return nil
	})
}

func (r *rig) published(prefix string) (n int) {
	for _, id := range r.broker.ids() {
		if strings.HasPrefix(id, prefix) {
			n++
		}
	}
	return n
}

var exactlyOnce = &ExactlyOnce{ProgressTopic: "progress"}

// A Kafka transaction fails as a whole. Messages that fail each time come all the time, each with a
// key of its own.
func TestFailingMessagesStopNoOthersExactlyOnce(t *testing.T) {
	for name, err := range map[string]error{"refused": errBad, "unreachable": errDown} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.refuse("bad", err)
			s := r.session(r.relay(Options{ExactlyOnce: exactlyOnce, Retry: Retry{Attempts: 1000, Max: 5 * time.Second}}))
			const steps, each = 100, 20
			for n := range steps {
				messages := []string{fmt.Sprint("bad", n)}
				for i := range each {
					messages = append(messages, fmt.Sprintf("good%d-%d", n, i))
				}
				r.produce(messages...)
				r.step(s)
				r.clock.advance(time.Second)
			}
			if n := r.published("good"); n < (steps-5)*each {
				t.Errorf("%d of %d messages are published", n, steps*each)
			}
		})
	}
}

// Messages that have failed once are retried although others of the same retry fail again each time.
func TestFailingRetriesStopNoOthersExactlyOnce(t *testing.T) {
	r := newRig(t)
	r.refuse("", errBad)
	s := r.session(r.relay(Options{ExactlyOnce: exactlyOnce, Retry: Retry{Attempts: 1000, Max: time.Second}}))
	r.produce(append(ids("bad", 5), ids("good", 5)...)...)
	r.step(s)
	r.refuse("bad", errBad)
	for range 4 {
		r.clock.advance(2 * time.Second)
		r.step(s)
	}
	if n := r.published("good"); n != 5 {
		t.Errorf("%d of 5 messages are published", n)
	}
	r.refuse("none", nil)
	for range 4 {
		r.clock.advance(2 * time.Second)
		r.step(s)
	}
	if n := r.published("bad"); n != 5 {
		t.Errorf("%d of 5 messages that had failed before are published", n)
	}
}

// A silentClient gets no answers for one topic, as if its partitions had no leaders. gaveUp is called
// when the relay has closed the client because of that.
type silentClient struct {
	*kgo.Client
	topic  string
	gaveUp func()

	mu    sync.Mutex
	stuck []func()
}

func (c *silentClient) Produce(ctx context.Context, r *kgo.Record, promise func(*kgo.Record, error)) {
	if r.Topic != c.topic {
		c.Client.Produce(ctx, r, promise)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stuck = append(c.stuck, func() { promise(r, kgo.ErrClientClosed) })
}

func (c *silentClient) Close() {
	c.mu.Lock()
	stuck := c.stuck
	c.mu.Unlock()
	if len(stuck) > 0 {
		c.gaveUp()
	}
	for _, f := range stuck {
		f()
	}
	c.Client.Close()
}

// After each transaction that fails because a topic does not answer, there is one more message to
// that topic.
func TestTopicWithoutAnswersStopsNoOthersExactlyOnce(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	o := modes(t, b)["exactly once"]
	o.Batch = Batch{Time: time.Second}
	topic, silent := b.CreateTopic(t, 3, nil), b.CreateTopic(t, 1, nil)
	eng := openEngine(t, newMemDisk().open(t), nil)
	given := new(atomic.Int64)
	toSilent := func() {
		if err := eng.Update(ctx, func(tx *engine.Tx) error {
			_, err := tx.Produce(engine.Message{Topic: silent})
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	toSilent()
	produceN(t, eng, topic, 0, 100)
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
		return &silentClient{Client: c.(*kgo.Client), topic: silent, gaveUp: func() { given.Add(1); toSilent() }}, nil
	}
	run, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- relay.Run(run) }()
	others := func() (n int) {
		for _, prefix := range prefixes {
			for _, e := range entries(t, eng, prefix) {
				if e.Topic == topic {
					n++
				}
			}
		}
		return n
	}
	until(t, "the other topic", func() bool { return others() == 0 || given.Load() > 15 })
	if n := others(); n > 0 {
		t.Errorf("%d messages of the other topic are not published after %d transactions", n, given.Load())
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if lost, doubled := tally(100, readIDs(t, b, topic)); lost != 0 || doubled != 0 {
		t.Errorf("%d lost, %d doubled", lost, doubled)
	}
}

func TestGroupsThatWaitNoLongerTakeTurns(t *testing.T) {
	var b backoffs
	groups := []*group{{notBefore: atOnce}, {notBefore: atOnce}, {notBefore: atOnce}}
	for _, g := range groups {
		b.push(g)
	}
	for n := range 9 {
		g := b.due(1)
		if g != groups[n%3] {
			t.Fatalf("turn %d", n)
		}
		b.remove(g)
		b.push(g)
	}
}

// At least once: more messages than a batch has fail each time. There are batches of one message, in
// which retries and new messages take turns.
func TestFailingRetriesLeaveRoomForOthers(t *testing.T) {
	for name, err := range map[string]error{"refused": errBad, "unreachable": errDown} {
		for _, size := range []int{1, 10} {
			t.Run(fmt.Sprint(name, ", batch of ", size), func(t *testing.T) { failingRetriesLeaveRoom(t, err, size) })
		}
	}
}

func failingRetriesLeaveRoom(t *testing.T, err error, size int) {
	r := newRig(t)
	r.refuse("bad", err)
	s := r.session(r.relay(Options{Batch: Batch{Entries: size}, Retry: Retry{Attempts: 1000, Max: time.Second}}))
	r.produce(ids("bad", 3*size)...)
	for len(s.queue.groups) < 3*size {
		r.step(s)
		r.clock.advance(s.connection.shared.opt.Interval)
	}
	const steps = 20
	share := (size + 1) / 2
	for n := range steps {
		r.clock.advance(2 * time.Second)
		r.produce(ids(fmt.Sprint("good", n, "-"), share)...)
		r.step(s)
		if size == 1 {
			r.step(s)
		}
	}
	if n := r.published("good"); n < (steps-1)*share {
		t.Errorf("%d of %d messages are published", n, steps*share)
	}
	for _, e := range entries(t, r.eng, entry.HeldPrefix) {
		if e.Attempts < 2 {
			t.Errorf("%s was tried %d times", e.ID, e.Attempts)
		}
	}
}

// A message of a key has failed once, and many of the same key have come meanwhile.
func TestBacklogOfOneKeyLeavesRoomForOthers(t *testing.T) {
	for mode, once := range map[string]*ExactlyOnce{"at least once": nil, "exactly once": exactlyOnce} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t)
			r.refuse("hot", errBad)
			s := r.session(r.relay(Options{ExactlyOnce: once, Batch: Batch{Entries: 10}, Retry: Retry{Max: time.Second}}))
			var hot []string
			for _, id := range ids("hot", 100) {
				hot = append(hot, id+"@k")
			}
			r.produce(hot...)
			for len(entries(t, r.eng, entry.HeldPrefix)) < 100 {
				r.step(s)
			}
			r.refuse("none", nil)
			r.clock.advance(2 * time.Second)
			r.step(s) // the backoff has ended
			r.produce(ids("other", 5)...)
			r.step(s)
			if n := r.published("other"); n != 5 {
				t.Errorf("%d of 5 messages of other keys are published, and %d of the hot one", n, r.published("hot"))
			}
			for range 100 {
				r.step(s)
			}
			if n := r.published("hot"); n != 100 {
				t.Errorf("%d messages of the hot key are published", n)
			}
		})
	}
}

// Two keys have failed once. As many messages of one of them come as are published.
// A batch lasts as long as its messages of one key, which are published one by one.
func TestColdKeyDoesNotWaitForAHotOne(t *testing.T) {
	for name, n := range map[string]int{"some": 2500, "more than wait in memory": maxAhead + 2500} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := r.session(r.relay(Options{}))
			hot := ids("hot", n)
			for part := range slices.Chunk(hot, 1000) {
				messages := make([]string, len(part))
				for i, id := range part {
					messages[i] = id + "@k"
				}
				r.produce(messages...)
			}
			r.produce("cold")
			steps := 0
			for r.published("cold") == 0 {
				r.step(s)
				steps++
			}
			if steps > 1 && n < maxAhead {
				t.Errorf("the cold message is published in batch %d, after %d others", steps, r.published("hot"))
			}
			if r.published("hot") == n {
				t.Error("the cold message is published last")
			}
			for len(r.broker.ids()) <= n {
				r.step(s)
			}
			var got []string
			for _, id := range r.broker.ids() {
				if id != "cold" {
					got = append(got, id)
				}
			}
			if !slices.Equal(got, hot) {
				t.Error("the hot messages are not published in their order, each once")
			}
		})
	}
}

func TestBacklogOfOneKeyStopsNoRetriesOfOthers(t *testing.T) {
	for mode, once := range map[string]*ExactlyOnce{"at least once": nil, "exactly once": exactlyOnce} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t)
			r.refuse("", errBad)
			s := r.session(r.relay(Options{ExactlyOnce: once, Batch: Batch{Entries: 10}, Retry: Retry{Max: time.Second}}))
			hot := func(n int) {
				for range n {
					r.produce("@hot")
				}
			}
			r.produce("hot@hot", "other@other")
			r.step(s)
			hot(100)
			for len(entries(t, r.eng, entry.HeldPrefix)) < 100 {
				r.step(s)
			}
			r.refuse("none", nil)
			r.clock.advance(2 * time.Second)
			for range 10 {
				hot(10)
				r.step(s)
			}
			if n := r.published("other"); n != 1 {
				t.Error("the message of the other key is not published")
			}
		})
	}
}

func TestEndedBackoffRemainsEndedWhenTheClockIsSetBack(t *testing.T) {
	var b backoffs
	ended, running := &group{notBefore: 900}, &group{notBefore: 1100}
	b.push(running)
	b.push(ended)
	b.bound(1000, 500, 600)
	if g := b.due(500); g != ended || running.notBefore != 600 {
		t.Errorf("%+v, %+v", ended, running)
	}
}

func TestRetriesTakeTheWholeBatchWithoutNewMessages(t *testing.T) {
	r := newRig(t)
	r.refuse("", errBad)
	s := r.session(r.relay(Options{Batch: Batch{Entries: 10}, Retry: Retry{Max: time.Second}}))
	r.produce(ids("m", 10)...)
	r.step(s)
	r.refuse("none", nil)
	r.clock.advance(2 * time.Second)
	r.step(s)
	if n := r.published("m"); n != 10 {
		t.Errorf("%d of 10 messages are published in one batch", n)
	}
}
