package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter"
)

// consumeChild is the process of a consumer.
func consumeChild(order []byte, say *voice) error {
	var o consumeOrder
	if err := json.Unmarshal(order, &o); err != nil {
		return err
	}
	if o.Kind == adapterOwn || o.Kind == adapterWork {
		return o.consumeWithAdapter(say)
	}
	return o.consumePlain(say)
}

// An adapterConsumer is what the adapter is for: a host with an engine and a handler.
type adapterConsumer struct {
	consumeOrder
	say  *voice
	gate gate
	e    *opened

	effects  *effects
	returned io.WriteCloser
	metrics  *prometheus.Registry
	first    firstFetch
	seconds  float64 // until the end was reached
}

func (o consumeOrder) consumeWithAdapter(say *voice) (err error) {
	c := &adapterConsumer{consumeOrder: o, say: say, gate: gate{gateOrder: o.gateOrder, say: say}, metrics: prometheus.NewRegistry()}
	if c.e, err = c.openStore(); err != nil {
		return err
	}
	if err := c.prepare(); err != nil {
		return err
	}
	adapter, err := kafkaadapter.New(c.e.Engine, c.mode(), c.options())
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(context.Background())
	go c.watch(ctx, stop)
	if err := adapter.Run(ctx); err != nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, errAtEnd) {
		return cause
	}
	return c.finish()
}

// prepare says how many events are claimed, and opens the files.
func (c *adapterConsumer) prepare() error {
	claims, err := c.claims()
	if err != nil {
		return err
	}
	if c.Effects != "" {
		if c.effects, err = openEffects(c.Effects); err != nil {
			return err
		}
		if c.returned, err = os.OpenFile(c.Returned, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
			return err
		}
	}
	c.gate.open(claims)
	return nil
}

// claims counts what the engine holds.
func (c *adapterConsumer) claims() (claims uint64, err error) {
	weeks, err := keptWeeks(context.Background(), c.e)
	for _, w := range weeks {
		claims += w.Claims
	}
	return claims, err
}

// mostAttempts is more than the kills of any run: a record whose handler is killed has to be tried again.
const mostAttempts = 1 << 20

func (c *adapterConsumer) mode() kafkaadapter.Mode {
	letters := &kafkaadapter.DeadLetters{}
	if c.Kind == adapterOwn {
		return kafkaadapter.OwnCommit{Handle: c.handleOwn, DeadLetters: letters}
	}
	return kafkaadapter.WithWork{Handle: c.handleWork, DeadLetters: letters, MaxAttempts: mostAttempts}
}

func (c *adapterConsumer) options() kafkaadapter.Options {
	return kafkaadapter.Options{
		Group: c.Group, Topics: []string{c.Topic}, Scope: DefaultScope, InstanceID: instance, MaxBatch: c.Batch,
		Client:     []kgo.Opt{kgo.SeedBrokers(c.Seeds...), kgo.WithHooks(&c.first)},
		Logger:     slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Registerer: keeping{c.metrics},
		OnStop:     func(stopped *kafkaadapter.StopError) { c.giveUp(stopped) },
	}
}

// giveUp ends the process, saying why.
func (c *adapterConsumer) giveUp(err error) {
	c.say.line("fail %s", oneLine(err))
	os.Exit(1)
}

// number tells which event a handler was given. Tried again, a record of somebody else would still be one.
func (c *adapterConsumer) number(rec *kafkaadapter.Record) uint64 {
	number, err := numberOf(rec.Record, c.Limit)
	if err == nil && rec.Verdict != engine.Claimed {
		err = fmt.Errorf("the event of offset %d of partition %d is %v, and was handled", rec.Offset, rec.Partition, rec.Verdict)
	}
	if err != nil {
		c.giveUp(err)
	}
	return number
}

// handleOwn writes the event down as it starts, and a byte more as it returns.
func (c *adapterConsumer) handleOwn(_ context.Context, rec *kafkaadapter.Record) error {
	if c.Measure {
		return nil
	}
	number := c.number(rec)
	if err := c.effects.add(number, idOf(rec.Record)); err != nil {
		return err
	}
	c.gate.pass()
	_, err := c.returned.Write([]byte{'.'})
	return err
}

// handleWork counts the event in the transaction that claims it.
func (c *adapterConsumer) handleWork(_ context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
	if c.Measure {
		return nil
	}
	err := addToState(tx, rec.Partition, c.number(rec))
	c.gate.pass()
	return err
}

var errAtEnd = errors.New("all is read")

// watch ends the run when the store's offsets are at the topic's ends, and says how far it is until then.
func (c *adapterConsumer) watch(ctx context.Context, stop context.CancelCauseFunc) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var told time.Time
	for range tick.C {
		at, err := c.position(ctx)
		switch {
		case err != nil:
			stop(err)
			return
		case at == sum(c.Ends):
			c.seconds = c.first.since()
			stop(errAtEnd)
			return
		}
		if time.Since(told) > tellEvery {
			told = time.Now()
			if !c.Measure { // its handler passes no gate
				at = c.gate.passed()
			}
			c.say.line("at %d", at)
		}
	}
}

// position is the sum of the next offsets that the store has.
func (c *adapterConsumer) position(ctx context.Context) (at uint64, err error) {
	for p := range c.Ends {
		o, _, err := c.e.Offset(ctx, engine.Position{Group: c.Group, Topic: c.Topic, Partition: int32(p)})
		if err != nil {
			return 0, err
		}
		at += uint64(o.Next)
	}
	return at, nil
}

// finish says what was measured: events by the adapter's count of those that it has handled and committed.
func (c *adapterConsumer) finish() error {
	if c.Measure {
		m := measurement{Seconds: c.seconds}
		var err error
		if m.Claims, err = c.claims(); err != nil {
			return err
		}
		if m.Handled, err = c.committed(); err != nil {
			return err
		}
		c.say.line("measured %s", &m)
	}
	if c.effects != nil {
		if err := errors.Join(c.effects.close(), c.returned.Close()); err != nil {
			return err
		}
	}
	return c.e.Close()
}

// A keeping registerer still has the adapter's counts when Run has returned, which is when they are final.
type keeping struct{ prometheus.Registerer }

func (keeping) Unregister(prometheus.Collector) bool { return true }

// committed is how many events were handled in batches that the adapter has committed.
func (c *adapterConsumer) committed() (n uint64, err error) {
	families, err := c.metrics.Gather()
	for _, f := range families {
		if f.GetName() != "dedup_kafka_records_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "outcome" && l.GetValue() == engine.Claimed.String() {
					n += uint64(m.GetCounter().GetValue())
				}
			}
		}
	}
	return n, err
}
