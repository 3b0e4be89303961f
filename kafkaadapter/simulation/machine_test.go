package simulation

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter"
)

// lifetime bounds the virtual time of a machine whose power is not cut: whoever has not handled everything by then is
// stuck.
const lifetime = 30 * time.Minute

// longestSync is how long the disk takes at most.
const longestSync = 2 * time.Millisecond

// A machine is one life of the consumer's process, from the opening of its store until the power is cut or it is
// stopped.
type machine struct {
	w      *world
	p      *power
	wire   *wire
	eng    *engine.Engine
	after  disk     // what the cut has left
	faults *trouble // of the brokers; nil: none
}

// An ending says what ends a machine that has handled everything.
type ending uint8

const (
	cutWhenIdle ending = iota
	stopped
	stoppedLater // when there was time for everything that follows the last batch
)

// live runs a machine on the world's disk until its power is cut, at the latest when it has handled everything, and
// leaves the disk to the next one.
func (w *world) live(p *power, end ending) {
	m := &machine{w: w, p: p, wire: &wire{net: w.network, p: p}}
	if w.chance(70) {
		m.faults = w.troubled()
	}
	keep, seed := 50*w.pick(3), uint64(w.pick(1<<30))
	p.take = func() {
		m.after = w.disk.crash(keep, rand.New(rand.NewPCG(seed, 1)))
		m.wire.cut()
	}
	kind := m.run(end)
	m.faults.end()
	if p.off.Load() {
		w.atRisk += partitions * maxBatch
		<-p.dead
		w.disk = m.after
		w.mu.Lock()
		w.tally.cuts[kind]++
		w.mu.Unlock()
	}
}

// run returns the moment at which the power was cut.
func (m *machine) run(end ending) moment {
	w := m.w
	inner, err := w.disk.open(m.p)
	if err != nil {
		w.violate("opening the store: %v", err)
		return m.p.kind
	}
	if w.mutate == nil && inner.LastSeq() < w.promised.Load() {
		w.violate("the store has batches to %d, and %d were told to be durable", inner.LastSeq(), w.promised.Load())
	}
	if w.mutate != nil {
		inner = w.mutate(inner)
	}
	w.promised.Store(inner.LastSeq())
	s := &store{Store: inner, p: m.p, slow: func() time.Duration { return w.upTo(longestSync) }, promised: &w.promised}
	m.eng, err = engine.Open(s, engine.Options{ExpectedPerWeek: 1 << 8, RecentClaims: 1 << 6})
	if err != nil {
		if !m.p.off.Load() {
			w.violate("opening the engine: %v", err)
		}
		_ = s.Close()
		return m.p.kind
	}
	w.signature = fmt.Sprintf("hapax:%x:%d", m.eng.Identity().UUID, m.eng.Identity().Incarnation)
	a := audit{w: w, eng: m.eng, store: inner, off: &m.p.off}
	a.run()
	w.atRisk = 0
	if w.intrusion != nil {
		w.intrusion.check(w, a.offsets[w.intrusion.partition])
	}
	kind := m.consume(end)
	if err := m.eng.Close(); err != nil && !m.p.off.Load() {
		w.violate("closing the engine: %v", err)
	}
	return kind
}

// consume runs the consumer until the power is cut or everything is handled.
func (m *machine) consume(end ending) moment {
	w, kind := m.w, m.p.kind
	c, err := kafkaadapter.New(m.eng, m.options())
	if err != nil {
		w.violate("making the consumer: %v", err)
		return kind
	}
	running, stop := context.WithCancel(context.Background())
	defer stop()
	ran := make(chan error, 1)
	go func() { ran <- c.Run(running) }()
	ctx, over := context.WithCancel(context.Background())
	defer over()
	drained := m.drained(ctx, c)
	select {
	case <-m.p.dead:
	case err := <-ran:
		if !m.p.off.Load() {
			w.violate("the consumer has ended: %v", err)
		}
		ran <- nil
	case <-drained:
		switch {
		case m.p.off.Load():
		case end == cutWhenIdle:
			time.Sleep(w.upTo(40 * time.Millisecond))
			kind = atIdle
			m.p.cut()
		case end == stoppedLater:
			time.Sleep(10 * time.Second)
		}
	}
	over()
	stop()
	if err := <-ran; err != nil && !m.p.off.Load() {
		w.violate("the consumer was stopped: %v", err)
	}
	<-drained
	time.Sleep(longestSync) // Engine.Close waits for calls in a way that would stop the bubble's clock
	return kind
}

// drained is closed when the store has the offsets of all records, or the machine has ended. A machine that never gets
// there is a violation.
func (m *machine) drained(ctx context.Context, c *kafkaadapter.Consumer) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		began, limit := time.Now(), lifetime
		if m.w.intrusion != nil {
			limit = noticeTime
		}
		for !m.caughtUp(ctx) && !m.w.violated() {
			if time.Since(began) > limit {
				m.w.violate("after %v the store is at %v of %v; stopped: %v", limit, m.offsets(ctx), m.w.ends(), c.Stopped())
				return
			}
			select {
			case <-m.p.dead:
				return
			case <-ctx.Done():
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return done
}

func (m *machine) offsets(ctx context.Context) (all [partitions]int64) {
	for p := range all {
		o, _, _ := m.eng.Offset(ctx, position(p)) // for a message only
		all[p] = o.Next
	}
	return all
}

func (m *machine) caughtUp(ctx context.Context) bool {
	for p, end := range m.w.ends() {
		o, _, err := m.eng.Offset(ctx, position(p))
		if i := m.w.intrusion; err == nil && i != nil && i.partition == p {
			if i.check(m.w, o.Next); i.seen.Load() {
				continue
			}
			return false
		}
		if err != nil || o.Next < end {
			return false
		}
	}
	return true
}

var errHiccup = errors.New("the handler fails this time")

// handle counts the event and adds its amount to its account, in the transaction. What fails does so after it has
// written.
func (m *machine) handle(_ context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
	e := m.w.event(rec.Event.ID)
	if !m.p.tick(atHandler) {
		return errPower
	}
	m.w.mu.Lock()
	m.w.tally.handled++
	m.w.mu.Unlock()
	switch {
	case m.w.chance(10):
		time.Sleep(m.w.upTo(3 * time.Millisecond))
	case m.w.chance(1):
		time.Sleep(m.w.upTo(100 * time.Millisecond))
	}
	amount, err := strconv.ParseInt(string(rec.Value), 10, 64)
	if err != nil {
		return err
	}
	if err := add(tx, countKey(e.id), 1); err != nil {
		return err
	}
	put := add
	if e.adds {
		put = (*engine.Tx).Add
	}
	if err := put(tx, accountKey(e.account), amount); err != nil {
		return err
	}
	if !m.p.tick(atHandler) {
		return errPower
	}
	switch {
	case e.poison == failing:
		return errHiccup
	case e.poison == panicking:
		panic(errHiccup)
	case e.poison == permanent:
		return kafkaadapter.Permanent(errHiccup)
	case m.w.hiccup(e) && m.w.chance(30):
		panic(errHiccup)
	case m.w.hiccup(e):
		return errHiccup
	}
	return nil
}

// handleOnce is the handler of AtMostOnce. What it does is outside the store.
func (m *machine) handleOnce(_ context.Context, rec *kafkaadapter.Record) error {
	e := m.w.event(rec.Event.ID)
	if !m.p.tick(atHandler) {
		return errPower
	}
	m.w.mu.Lock()
	e.calls++
	m.w.tally.handled++
	m.w.mu.Unlock()
	if m.w.chance(10) {
		time.Sleep(m.w.upTo(3 * time.Millisecond))
	}
	m.p.tick(atHandler)
	switch {
	case e.poison == panicking:
		panic(errHiccup)
	case e.poison != healthy, m.w.hiccup(e):
		return errHiccup
	}
	return nil
}

// The host keys that handlers write: how often an event took effect, and the sum of the amounts of an account's events.
const (
	countPrefix   = "count/"
	accountPrefix = "account/"
)

func countKey(id string) []byte   { return []byte(countPrefix + id) }
func accountKey(a int) []byte     { return []byte(accountPrefix + strconv.Itoa(a)) }
func number(value []byte) int64   { return int64(binary.BigEndian.Uint64(value)) }
func encoded(number int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(number)) }

func add(tx *engine.Tx, key []byte, n int64) error {
	value, found, err := tx.Get(key)
	if err != nil {
		return err
	}
	if found {
		n += number(value)
	}
	return tx.Put(key, encoded(n))
}
