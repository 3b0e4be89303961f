package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kgo"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/hapax-dev/hapax/bench/internal/runner"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/telemetry"
)

// An adapterConsumer is a typical user of the adapter: an application with an engine, a handler,
// and telemetry.
type adapterConsumer struct {
	order *consumer
	say   *runner.Voice
	gate  *runner.Gate
	e     *opened

	metrics  *prometheus.Registry
	observer *observer
	from     uint64        // claims of the engine when it started
	calls    atomic.Uint64 // calls of the handler
	first    *firstFetch
	began    time.Time     // when Run was called
	stops    atomic.Uint64 // of partitions, to be tried again
	running  time.Duration // from then until all partitions were read
	measured measurement   // set when the end was reached
}

func (c *consumer) consumeWithAdapter(say *runner.Voice) error {
	return (&adapterConsumer{order: c, say: say, gate: runner.NewGate(c.Gate, say), metrics: prometheus.NewRegistry(), first: newFirstFetch()}).consume()
}

func (c *adapterConsumer) consume() (err error) {
	if c.observer, err = newObserver(c.metrics); err != nil {
		return err
	}
	if c.e, err = c.order.openStore(c.observer); err != nil {
		return err
	}
	defer c.observer.watch(c.e.Engine)()
	claims, err := c.claims()
	if err != nil {
		return err
	}
	c.from = claims
	c.gate.Open(claims)
	adapter, err := kafkaadapter.New(c.e.Engine, c.options())
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(context.Background())
	c.began = time.Now()
	go c.watch(ctx, adapter, stop)
	if err := adapter.Run(ctx); err != nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, errAtEnd) {
		return cause
	}
	return c.finish()
}

// An observer is the telemetry of a service, with a tracer that records nothing; it counts
// conflicts.
type observer struct {
	engine.Observer
	watch     func(e *engine.Engine) (stop func())
	conflicts atomic.Uint64
}

func newObserver(r prometheus.Registerer) (*observer, error) {
	none := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	o, err := telemetry.New(telemetry.Options{Registerer: r, TracerProvider: func() trace.TracerProvider { return none }})
	return &observer{Observer: o, watch: func(e *engine.Engine) func() { return o.Watch(e) }}, err
}

// Updating implements engine.Observer.
func (o *observer) Updating(ctx context.Context) engine.TxObserver {
	tx := o.Observer.Updating(ctx)
	ended := tx.Ended
	tx.Ended = func(judged []engine.VerdictCounts, committed bool, err error) {
		if errors.Is(err, engine.ErrConflict) {
			o.conflicts.Add(1)
		}
		ended(judged, committed, err)
	}
	return tx
}

// A keeping registerer still has the adapter's counts after Run has returned, when they are final.
type keeping struct{ prometheus.Registerer }

func (keeping) Unregister(prometheus.Collector) bool { return true }

// claims counts the claims of the engine.
func (c *adapterConsumer) claims() (claims uint64, err error) {
	weeks, err := c.e.keptWeeks(context.Background())
	for _, w := range weeks {
		claims += w.Claims
	}
	return claims, err
}

func (c *adapterConsumer) mode() kafkaadapter.Mode {
	if c.order.Kind == adapterOwn {
		return kafkaadapter.AtMostOnce(c.handleOwn)
	}
	m := kafkaadapter.Transactional{Handle: c.handleWork, MaxAttempts: mostAttempts}
	if c.order.Workload.decodes() {
		m.Decode = func(_ context.Context, rec *kgo.Record) (any, error) { return decodePayment(rec) }
	}
	return m
}

func (c *adapterConsumer) options() kafkaadapter.Options {
	o := consumerOptions(c.order.Seeds, c.order.Group, kafkaadapter.Route{
		Topics: []string{c.order.Topic}, Mode: c.mode(), DeadLetters: &deadletter.Options{}, Scope: traffic.DefaultScope,
	})
	o.Client = append(o.Client, kgo.WithHooks(&c.first.clock))
	o.MaxBatch = c.order.Batch
	o.Telemetry.Registerer = keeping{c.metrics}
	o.OnStop = func(stopped *kafkaadapter.StopError) {
		switch stopped.Reason {
		case "unreachable", "silent", "offset_commit":
			c.stops.Add(1)
		default:
			c.giveUp(stopped)
		}
	}
	return o
}

// giveUp ends the process with a reason.
func (c *adapterConsumer) giveUp(err error) {
	c.say.Fail(err)
	os.Exit(1)
}

// number returns the number of the event that a handler got. An error is permanent, because only a
// record of another program has no number.
func (c *adapterConsumer) number(rec *kafkaadapter.Record) uint64 {
	number, err := traffic.NumberOf(rec.Record, c.order.Limit)
	if err == nil && rec.Verdict != engine.Claimed {
		err = fmt.Errorf("the event of offset %d of partition %d is %v, and was handled", rec.Offset, rec.Partition, rec.Verdict)
	}
	if err != nil {
		c.giveUp(err)
	}
	return number
}

// handleOwn reports when it starts and when it returns.
func (c *adapterConsumer) handleOwn(_ context.Context, rec *kafkaadapter.Record) error {
	c.calls.Add(1)
	if c.order.Measure {
		return c.order.Workload.handle(nil, rec)
	}
	c.say.Line("handling", c.number(rec))
	c.gate.Pass(1)
	if err := c.order.Workload.handle(nil, rec); err != nil {
		return err
	}
	c.say.Line("returned", nil)
	return nil
}

// handleWork does the work of the event and counts it, in the transaction that claims the event.
func (c *adapterConsumer) handleWork(_ context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
	c.calls.Add(1)
	if c.order.Measure {
		return c.order.Workload.handle(tx, rec)
	}
	err := addToState(tx, rec.Partition, c.number(rec))
	if err == nil {
		err = c.order.Workload.handle(tx, rec)
	}
	c.gate.Pass(1)
	return err
}

var errAtEnd = errors.New("all is read")

// watch ends the run when the store's offsets are at the topic's ends, and reports the progress
// until then. With a slow partition 0, only the others count.
func (c *adapterConsumer) watch(ctx context.Context, adapter *kafkaadapter.Consumer, stop context.CancelCauseFunc) {
	tick := time.NewTicker(max(5*time.Millisecond, time.Duration(len(c.order.Ends))*20*time.Microsecond))
	defer tick.Stop()
	from := 0
	if c.order.Workload.Slow > 0 {
		from = 1
	}
	for ticks := 0; ; ticks++ {
		<-tick.C
		if c.running == 0 && c.allRead(adapter) {
			c.running = time.Since(c.began)
		}
		next, err := c.positions(ctx)
		at, end := sum(next[from:]), sum(c.order.Ends[from:])
		switch {
		case err != nil:
			stop(err)
			return
		case at == end && c.allBegun() && (c.running > 0 || c.order.Idle == 0):
			spread := c.measured.Spread
			c.measured = c.first.since()
			c.measured.Spread = spread
			c.idle()
			stop(errAtEnd)
			return
		case c.measured.Spread == 0 && at >= end/2:
			c.measured.Spread = spread(next[from:], c.order.Ends[from:])
		}
		if !c.order.Measure || ticks%20 == 19 {
			c.tell(at)
		}
	}
}

// allRead reports whether all partitions are read.
func (c *adapterConsumer) allRead(adapter *kafkaadapter.Consumer) bool {
	if c.order.Idle == 0 || adapter.Ready() != nil {
		return false
	}
	assigned := 0 // without partitions, a member is ready, too
	err := eachMetric(c.metrics, "dedup_kafka_lag_records", func(*dto.Metric) { assigned++ })
	return err == nil && assigned == len(c.order.Ends)
}

// idle measures and reports the processor time of the process while there are no records.
func (c *adapterConsumer) idle() {
	if c.order.Idle == 0 {
		return
	}
	used := processTime()
	time.Sleep(c.order.Idle)
	c.say.Line("idle", idling{c.running.Seconds(), c.stops.Load(), (processTime() - used).Seconds() / c.order.Idle.Seconds() * 100})
}

// allBegun reports whether the handlers of all claims have started. In mode own the offset commits
// before the handlers run, and a clean end withdraws the claims whose handlers have not started.
func (c *adapterConsumer) allBegun() bool {
	if c.order.Kind != adapterOwn || c.order.Workload.Slow > 0 { // the slow partition is left unfinished
		return true
	}
	claims, err := c.claims() // unlike Stats, it includes the claims of every earlier offset
	return err != nil || c.calls.Load() >= less(claims, c.from)
}

// tell reports the consumer's progress. If its handler passes no gate, the progress is the offset.
func (c *adapterConsumer) tell(at uint64) {
	now := progress{at, c.calls.Load(), c.observer.conflicts.Load()}
	if !c.order.Measure {
		now.At = c.gate.Passed()
	}
	c.say.Line("at", now)
}

// positions returns the next offsets in the store, by partition.
func (c *adapterConsumer) positions(ctx context.Context) ([]int64, error) {
	next := make([]int64, len(c.order.Ends))
	for p := range next {
		o, _, err := c.e.Engine.Admin().Offset(ctx, engine.OffsetKey{Group: c.order.Group, Topic: c.order.Topic, Partition: int32(p)})
		if err != nil {
			return next, err
		}
		next[p] = o.Next
	}
	return next, nil
}

// spread returns the progress of the fastest partition divided by that of the slowest, each as a
// share of its records. A partition without progress counts as if its first record were done.
func spread(next, ends []int64) float64 {
	least, most := 1.0, 0.0
	for p, end := range ends {
		if end > 0 {
			share := float64(max(next[p], 1)) / float64(end)
			least, most = min(least, share), max(most, share)
		}
	}
	return most / least
}

// finish reports the measurement. The number of events is the adapter's count of handled and
// committed events.
func (c *adapterConsumer) finish() (err error) {
	c.tell(sum(c.order.Ends))
	if c.order.Measure {
		m := &c.measured
		if m.Claims, err = c.claims(); err != nil {
			return err
		}
		err = eachMetric(c.metrics, "dedup_kafka_records_total", func(r *dto.Metric) {
			for _, l := range r.GetLabel() {
				if l.GetName() == "outcome" && l.GetValue() == engine.Claimed.String() {
					m.Handled += uint64(r.GetCounter().GetValue())
				}
			}
		})
		if err != nil {
			return err
		}
		c.say.Line("measured", m)
	}
	return c.e.Engine.Close()
}
