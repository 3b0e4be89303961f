package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/bench/internal/topics"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/telemetry"
)

func runHapax(ctx context.Context, o Order, progress func(uint64)) (Result, error) {
	return (&hapax{order: &o}).run(ctx, progress)
}

func runHapaxAdd(ctx context.Context, o Order, progress func(uint64)) (Result, error) {
	return (&hapax{order: &o, add: true}).run(ctx, progress)
}

// hapax is an application as the documentation shows it.
type hapax struct {
	order *Order
	add   bool
	eng   *engine.Engine
	clock topics.Clock
}

var errAtEnd = errors.New("all is read")

func (h *hapax) run(ctx context.Context, progress func(uint64)) (r Result, err error) {
	store, err := pebble.Open(h.order.Dir, pebble.Options{})
	if err != nil {
		return r, err
	}
	if h.eng, err = engine.Open(store, engine.Options{}); err != nil {
		return r, errors.Join(err, store.Close())
	}
	defer func() { err = errors.Join(err, h.eng.Close()) }()
	consumer, err := kafkaadapter.New(h.eng, h.options())
	if err != nil {
		return r, err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	seconds := make(chan float64, 1)
	go func() { seconds <- h.watch(ctx, stop, progress) }()
	if err := consumer.Run(ctx); err != nil {
		return r, err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, errAtEnd) {
		return r, cause
	}
	if r, err = h.state(); err == nil {
		r.Seconds = <-seconds
	}
	return r, err
}

const scope = "peers"

func (h *hapax) options() kafkaadapter.Options {
	return kafkaadapter.Options{
		Group: h.order.Group,
		Routes: []kafkaadapter.Route{{
			Topics: []string{h.order.Topic}, Scope: scope, DeadLetters: &deadletter.Options{},
			Mode: kafkaadapter.Transactional{Handle: h.handle, Decode: decode, MaxAttempts: 1 << 20},
		}},
		Client:     []kgo.Opt{kgo.SeedBrokers(h.order.Brokers...), kgo.WithHooks(&h.clock)},
		Membership: kafkaadapter.Static(topics.Instance), // it takes the place of a killed process at once
		Telemetry:  telemetry.Options{Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))},
	}
}

// decode is called before the turn of a partition, so that the turns of shared accounts are short.
func decode(_ context.Context, r *kgo.Record) (any, error) {
	p, err := decodePayment(r.Value)
	if err != nil {
		return nil, kafkaadapter.Permanent(err)
	}
	return p, nil
}

func (h *hapax) handle(_ context.Context, tx *engine.Tx, r *kafkaadapter.Record) error {
	p := r.Decoded.(traffic.Payment)
	if h.order.Work == Claims {
		return nil
	}
	if err := h.move(tx, h.order.account(r.Partition, p.From), -p.Amount); err != nil {
		return err
	}
	return h.move(tx, h.order.account(r.Partition, p.To), p.Amount)
}

func (h *hapax) move(tx *engine.Tx, account int, amount int64) error {
	key := strconv.AppendInt([]byte("account/"), int64(account), 10)
	if h.add {
		return tx.Add(key, amount)
	}
	balance, err := readBalance(tx, key)
	if err != nil {
		return err
	}
	return tx.Put(key, engine.EncodeInt64(balance+amount))
}

func readBalance(tx *engine.Tx, key []byte) (int64, error) {
	v, found, err := tx.Get(key)
	if err != nil || !found {
		return 0, err
	}
	return engine.DecodeInt64(v)
}

// watch ends the run when the store's offsets are at the topic's ends, and returns the time of
// that.
func (h *hapax) watch(ctx context.Context, stop context.CancelCauseFunc, progress func(uint64)) float64 {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		var done, end int64
		for p := range h.order.Ends {
			o, _, err := h.eng.Admin().Offset(ctx, engine.OffsetKey{Group: h.order.Group, Topic: h.order.Topic, Partition: int32(p)})
			if err != nil {
				stop(err)
				return 0
			}
			done += o.Next
			end += h.order.Ends[p]
		}
		progress(uint64(done))
		if done == end && !h.order.Hold {
			seconds := h.clock.Seconds()
			stop(errAtEnd)
			return seconds
		}
	}
	return 0
}

func (h *hapax) state() (Result, error) {
	ctx := context.Background()
	var r Result
	weeks, err := h.weeks(ctx)
	if err != nil {
		return r, err
	}
	for _, w := range weeks {
		r.Claims += w.Claims
	}
	kept := make(map[int]int64)
	err = h.eng.Update(ctx, func(tx *engine.Tx) error {
		for n := range h.order.all() {
			balance, err := readBalance(tx, strconv.AppendInt([]byte("account/"), int64(n), 10))
			if err != nil {
				return fmt.Errorf("account %d: %w", n, err)
			}
			kept[n] = balance
		}
		return nil
	})
	r.Balances = h.order.fold(kept)
	return r, err
}

// weeks waits until the counts are available: after a kill they are rebuilt.
func (h *hapax) weeks(ctx context.Context) ([]engine.WeekInfo, error) {
	for {
		weeks, err := h.eng.Weeks(ctx)
		if !errors.Is(err, engine.ErrRebuilding) {
			return weeks, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
