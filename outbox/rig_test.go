package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/correlation"
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/entry"
	"github.com/hapax-dev/hapax/telemetry"
)

var (
	ctx     = context.Background()
	errDown = &kgo.ErrFirstReadEOF{} // the client's error for an unreachable broker
	errBad  = fmt.Errorf("bad message: %w", kerr.InvalidRecord)
)

// patience bounds the waits of tests: a busy machine may take long.
const patience = 5 * time.Minute

// A fakeClock is a clock that the test moves.
type fakeClock struct {
	mu     sync.Mutex
	now    time.Time
	timers map[*fakeTimer]struct{}
	set    *sync.Cond // a timer was set
}

type fakeTimer struct {
	at time.Time
	c  chan time.Time
}

func newFakeClock() *fakeClock {
	c := &fakeClock{now: time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC), timers: map[*fakeTimer]struct{}{}}
	c.set = sync.NewCond(&c.mu)
	return c
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) After(d time.Duration) (<-chan time.Time, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &fakeTimer{c.now.Add(d), make(chan time.Time, 1)}
	if d <= 0 {
		t.c <- c.now
		return t.c, func() {}
	}
	c.timers[t] = struct{}{}
	c.set.Broadcast()
	return t.c, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.timers, t)
	}
}

func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	for t := range c.timers {
		if !t.at.After(c.now) {
			delete(c.timers, t)
			t.c <- c.now
		}
	}
}

// setBack sets the clock back. Timers fire when their time has passed, whatever the clock says.
func (c *fakeClock) setBack(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(-d)
	for t := range c.timers {
		t.at = t.at.Add(-d)
	}
}

// next waits until a timer is set and advances to the first one.
func (c *fakeClock) next() {
	c.mu.Lock()
	for len(c.timers) == 0 {
		c.set.Wait()
	}
	var first time.Time
	for t := range c.timers {
		if first.IsZero() || t.at.Before(first) {
			first = t.at
		}
	}
	d := first.Sub(c.now)
	c.mu.Unlock()
	c.advance(d)
}

// A fakeBroker accepts records of fake clients. answer returns its error for a record, nil accepts
// it; a record gets no answer until release if hold is true, or if it is of the topic holdTopic.
type fakeBroker struct {
	mu      sync.Mutex
	log     []*kgo.Record
	tries   int
	answer  func(r *kgo.Record, try int) error
	held    []func()
	hold    bool
	arrived *sync.Cond

	holdTopic string
	silent    func(ctx context.Context, r *kgo.Record) bool // whether a record never gets an answer
}

func newFakeBroker() *fakeBroker {
	b := &fakeBroker{}
	b.arrived = sync.NewCond(&b.mu)
	return b
}

type fakeClient struct {
	b    *fakeBroker
	open bool          // in a transaction
	tx   []*kgo.Record // of the transaction
}

func (c *fakeClient) Produce(ctx context.Context, r *kgo.Record, promise func(*kgo.Record, error)) {
	c.b.mu.Lock()
	c.b.tries++
	if c.b.silent != nil && c.b.silent(ctx, r) {
		c.b.mu.Unlock()
		return
	}
	try := c.b.tries
	answer := c.b.answer
	finish := func() {
		r.ProducerID, r.ProducerEpoch = 1, 1 // those of ProducerID
		var err error
		if answer != nil {
			err = answer(r, try)
		}
		switch {
		case err != nil:
		case c.open:
			c.tx = append(c.tx, r)
		default:
			c.b.take(r)
		}
		promise(r, err)
	}
	if c.b.hold || r.Topic == c.b.holdTopic {
		c.b.held = append(c.b.held, finish)
		c.b.arrived.Broadcast()
		c.b.mu.Unlock()
		return
	}
	c.b.mu.Unlock()
	finish()
}

func (c *fakeClient) Close() {}

func (*fakeClient) ProducerID(context.Context) (int64, int16, error) { return 1, 1, nil }

func (c *fakeClient) BeginTransaction() error {
	c.open, c.tx = true, nil
	return nil
}

func (c *fakeClient) EndTransaction(_ context.Context, how kgo.TransactionEndTry) error {
	if how == kgo.TryCommit {
		c.b.take(c.tx...)
	}
	c.open = false
	return nil
}

func (b *fakeBroker) take(records ...*kgo.Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range records {
		if idOf(r) == "" {
			continue // of the progress topic
		}
		r.Offset = int64(len(b.log))
		b.log = append(b.log, r)
	}
	b.arrived.Broadcast()
}

func (b *fakeBroker) setAnswer(f func(r *kgo.Record, try int) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = f
}

func (b *fakeBroker) setHold(hold bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hold = hold
}

func (b *fakeBroker) setHoldTopic(topic string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holdTopic = topic
}

// awaitHeld waits until n records are held.
func (b *fakeBroker) awaitHeld(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.held) < n {
		b.arrived.Wait()
	}
}

// release answers the held records.
func (b *fakeBroker) release() {
	b.mu.Lock()
	held := b.held
	b.held = nil
	b.mu.Unlock()
	for _, f := range held {
		f()
	}
}

// ids returns the ids of the accepted records, in order.
func (b *fakeBroker) ids() (ids []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.log {
		ids = append(ids, idOf(r))
	}
	return ids
}

func idOf(r *kgo.Record) string {
	for _, h := range slices.Backward(r.Headers) {
		if h.Key == correlation.MessageID {
			return string(h.Value)
		}
	}
	return ""
}

// await waits until the broker has accepted n records.
func (b *fakeBroker) await(t testing.TB, n int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.log) < n {
		b.arrived.Wait()
	}
}

func (b *fakeBroker) tried() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tries
}

// openEngine opens an engine on a store, with the clock.
func openEngine(t testing.TB, store storage.Store, c *fakeClock) *engine.Engine {
	t.Helper()
	o := engine.Options{ExpectedPerWeek: 1000}
	if c != nil {
		o.Clock = c.Now
	}
	e, err := engine.Open(store, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

type rig struct {
	t      testing.TB
	mem    *storetest.Mem
	eng    *engine.Engine
	clock  *fakeClock
	broker *fakeBroker
}

func newRig(t testing.TB) *rig {
	r := &rig{t: t, mem: storetest.NewMem(storage.Identity{}), clock: newFakeClock(), broker: newFakeBroker()}
	r.eng = openEngine(t, r.mem, r.clock)
	return r
}

func quiet() telemetry.Options { return telemetry.Options{Logger: slog.New(slog.DiscardHandler)} }

// relay makes a relay that publishes to the fake broker.
func (r *rig) relay(o Options) *Relay {
	r.t.Helper()
	o.Client = []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")}
	o.Clock = r.clock
	if o.Telemetry.Logger == nil {
		o.Telemetry.Logger = quiet().Logger
	}
	relay, err := New(r.eng, o)
	if err != nil {
		r.t.Fatal(err)
	}
	relay.shared.dial = func(...kgo.Opt) (client, error) { return &fakeClient{b: r.broker}, nil }
	relay.shared.limits.read = func(context.Context, []string) (map[string]int32, map[string]error) { return nil, nil }
	return relay
}

// run runs a relay until the test ends or stop is called.
func (r *rig) run(relay *Relay) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	var once sync.Once
	var result error
	stop = func() error {
		once.Do(func() {
			cancel()
			result = <-done
		})
		return result
	}
	r.t.Cleanup(func() {
		r.broker.setHold(false)
		r.broker.setHoldTopic("")
		r.broker.release()
		_ = stop()
	})
	return stop
}

// produce commits messages, each in the form id or id@ordering key, in one transaction.
func (r *rig) produce(messages ...string) {
	r.t.Helper()
	r.produceDue(time.Time{}, messages...)
}

func (r *rig) produceDue(due time.Time, messages ...string) {
	r.t.Helper()
	err := r.eng.Update(ctx, func(tx *engine.Tx) error {
		for _, m := range messages {
			id, key, _ := strings.Cut(m, "@")
			if _, err := tx.Produce(engine.Message{ID: id, Topic: "out", OrderingKey: []byte(key), Due: due, Value: []byte(id)}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		r.t.Fatal("producing:", err)
	}
}

// send commits messages in one transaction.
func send(t testing.TB, eng *engine.Engine, messages ...engine.Message) {
	t.Helper()
	if err := eng.Update(ctx, func(tx *engine.Tx) error {
		for _, m := range messages {
			if _, err := tx.Produce(m); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal("producing:", err)
	}
}

// until waits for a condition that other goroutines bring about.
func until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited for:", what)
		}
	}
}

// entries reads the entries of the outbox under a prefix.
func entries(t testing.TB, eng *engine.Engine, prefix []byte) (all []entry.Entry) {
	t.Helper()
	for kv, err := range driver.In(eng, entry.Space).Scan(ctx, engine.Range{Prefix: prefix}) {
		if err != nil {
			t.Fatal(err)
		}
		e, err := entry.Parse(kv.Value)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

// prefixes are those of the entries that are neither published nor parked.
var prefixes = [][]byte{entry.ReadyPrefix, entry.DelayedPrefix, entry.HeldPrefix}

// pending counts the entries that are neither published nor parked.
func pending(t testing.TB, eng *engine.Engine) (n int) {
	t.Helper()
	for _, prefix := range prefixes {
		n += len(entries(t, eng, prefix))
	}
	return n
}

func (r *rig) drained() {
	r.t.Helper()
	until(r.t, "an empty outbox", func() bool { return pending(r.t, r.eng) == 0 })
}

func wantIDs(t testing.TB, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("published %q, want %q", got, want)
	}
}

func ids(prefix string, n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint(prefix, i))
	}
	return ids
}

var start = newFakeClock().now

// waiting reports whether a goroutine waits for the clock.
func (c *fakeClock) waiting() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers) > 0
}

// timed returns the number of timers that are set.
func (c *fakeClock) timed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}

// A hookedClock calls hook each time that it is read.
type hookedClock struct {
	*fakeClock
	hook func()
}

func (c *hookedClock) Now() time.Time {
	c.hook()
	return c.fakeClock.Now()
}

// session begins a session of a relay, which makes one batch at each step.
func (r *rig) session(relay *Relay) *session {
	r.t.Helper()
	s := &session{connection: connection{shared: relay.shared}, queue: newQueue(relay.shared)}
	if relay.shared.opt.ExactlyOnce != nil {
		s.connection.progress = &progress{topic: "progress", store: "store"}
	}
	if _, err := s.connection.shared.lease.take(ctx, r.eng); err != nil {
		r.t.Fatal(err)
	}
	if err := s.queue.load(ctx, nil); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// step makes one batch, if there is anything to publish.
func (r *rig) step(s *session) {
	r.t.Helper()
	err := s.connection.shared.lease.ensure(s.connection.shared.eng, s.connection.shared.opt.Batch.Time)
	var w *work
	if err == nil {
		w, err = s.collect(ctx, r.clock.Now().UnixMilli())
	}
	if err == nil && !w.empty() {
		if err = s.connection.connect(); err == nil {
			err = s.batch(ctx, w)
		}
	}
	if err != nil {
		r.t.Fatal(err)
	}
}
