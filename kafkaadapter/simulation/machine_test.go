package simulation

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/kafkaadapter"
)

// longestSync is the maximum time of a sync.
const longestSync = 2 * time.Millisecond

// A machine is one run of a process with consumers, from the opening of its store until the power
// fails or it is stopped.
type machine struct {
	w      *world
	life   int // the number of the machine in its world
	p      *power
	wires  *wires
	joined []*member // guarded by world.mu
	store  *store
	eng    *engine.Engine
	after  disk     // the disk after the power failure
	faults *trouble // of the brokers; nil: none

	working atomic.Int64 // running calls of handlers, also of those that were cut off

	reached [partitions]int64 // offsets that batches have set, in the order of batches
}

// An ending is how a machine ends that has handled all records.
type ending uint8

const (
	cutWhenIdle ending = iota
	stopped
	stoppedLater // after a time in which everything after the last batch is done
)

// live runs a machine on the world's disk until its power fails, at the latest when it has handled
// all records, and passes the disk to the next one.
func (w *world) live(p *power, end ending) {
	w.machines++
	m := &machine{w: w, life: w.machines, p: p, wires: &wires{net: w.network, p: p}}
	if w.chance(70) {
		m.faults = w.troubled()
	}
	keep, seed := 50*w.pick(3), uint64(w.pick(1<<30))
	p.take = func() {
		m.after = w.disk.crash(keep, rand.New(rand.NewPCG(seed, 1)))
		m.wires.cut()
	}
	kind := m.run(end)
	m.faults.end()
	if p.off.Load() {
		w.risk(partitions)
		<-p.dead
		w.disk = m.after
		w.mu.Lock()
		w.tally.cuts[kind]++
		w.mu.Unlock()
	}
}

// run returns the moment at which the power failed.
func (m *machine) run(end ending) moment {
	w := m.w
	inner, err := w.disk.open(m.p)
	if err != nil {
		w.violate("opening the store: %v", err)
		return m.p.kind
	}
	if w.mutate == nil && inner.LastSeq() < w.promised.Load() {
		w.violate("the store has batches up to %d, and %d were reported as durable", inner.LastSeq(), w.promised.Load())
	}
	if w.mutate != nil {
		inner = w.mutate(inner)
	}
	w.promised.Store(inner.LastSeq())
	m.store = &store{Store: inner, p: m.p, slow: func() time.Duration { return w.upTo(longestSync) }, promised: &w.promised, watch: m.watch}
	m.eng, err = engine.Open(m.store, engine.Options{ExpectedPerWeek: 1 << 8, RecentClaims: 1 << 6})
	if err != nil {
		if !m.p.off.Load() {
			w.violate("opening the engine: %v", err)
		}
		_ = m.store.Close()
		return m.p.kind
	}
	m.reached = w.floor
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

// consume runs consumers until the power fails or all records are handled.
func (m *machine) consume(end ending) moment {
	w, kind := m.w, m.p.kind
	if w.together && w.pace == realTime {
		m.reap(context.Background()) // to save time
	}
	for range w.crew() {
		if _, err := m.join(); err != nil {
			w.violate("making the consumer: %v", err)
			return kind
		}
	}
	ctx, over := context.WithCancel(context.Background())
	defer over()
	drained := m.drained(ctx)
	select {
	case <-m.p.dead:
	case <-drained:
		switch {
		case m.p.off.Load():
		case end == cutWhenIdle:
			time.Sleep(w.upTo(40 * time.Millisecond))
			kind = atIdle
			m.p.cut()
		case end == stoppedLater:
			m.settle()
		}
	}
	over()
	<-drained // no member joins any more
	for _, b := range m.joined {
		b.end()
	}
	for _, b := range m.joined {
		<-b.exited
	}
	for m.working.Load() > 0 {
		time.Sleep(longestSync)
	}
	// The goroutine of a partition that was cut off may still release it, in a batch after others.
	// Engine.Close waits for such calls in a way that stops the bubble's clock.
	time.Sleep(10 * longestSync)
	return kind
}

// settle waits for what follows the last batch: for dead letters that the store has and the broker
// has not acknowledged, and for handlers of AtMostOnce, whose claims an orderly end would withdraw.
func (m *machine) settle() {
	for began := time.Now(); m.hasLetters(); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > m.w.patience {
			m.w.violate("after %v the store still has dead letters to publish; stopped: %v; states: %s", m.w.patience, m.stops(), m.states())
			return
		}
	}
	for quiet := 0; quiet < 10; quiet++ {
		time.Sleep(m.w.settle / 10)
		if m.working.Load() > 0 {
			quiet = 0
		}
	}
}

// hasLetters reports whether the store has pending dead letters.
func (m *machine) hasLetters() (yes bool) {
	const letters = string(hostKind) + kafkaadapter.KeyPrefix + "l"
	err := m.store.ScanState(storage.Span{Prefix: []byte(letters)}, func([]byte, []byte) error {
		yes = true
		return nil
	})
	if err != nil {
		m.w.violate("looking for dead letters: %v", err)
	}
	return yes
}

// drained returns a channel that is closed when the store has the offsets of all records, or the
// machine has ended. A machine that makes no progress is a violation.
func (m *machine) drained(ctx context.Context) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if m.w.together && m.w.intrusion == nil {
			m.direct(ctx)
		}
		reapAt := time.Now().Add(4 * m.w.session)
		began, limit, was := time.Now(), m.w.patience, [partitions]int64{}
		if m.w.intrusion != nil {
			limit = noticeTime
		}
		for !m.caughtUp(ctx) && !m.w.violated() {
			if now := m.offsets(ctx); now != was {
				began, was = time.Now(), now
			}
			if m.w.together && time.Now().After(reapAt) {
				reapAt = time.Now().Add(4 * m.w.session)
				m.reap(ctx)
			}
			if time.Since(began) > limit {
				m.w.violate("after %v without progress the store is at %v of %v; stopped: %v; states: %s", limit, was, m.w.ends(), m.stops(), m.states())
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

func (m *machine) stops() (all []*kafkaadapter.StopError) {
	for _, b := range m.joined {
		all = append(all, b.c.Stopped()...)
	}
	return all
}

// states describes the states of the members, for a message.
func (m *machine) states() string {
	s := ""
	for _, b := range m.joined {
		b.mu.Lock()
		s += fmt.Sprintf("%s: exited %v, owns %v; ", b.clientID(), b.hasExited(), b.owned)
		b.mu.Unlock()
	}
	if g := m.w.cluster.GroupInfo(group); g != nil {
		s += fmt.Sprintf("group: %+v", *g)
	}
	return s
}

func (m *machine) offsets(ctx context.Context) (all [partitions]int64) {
	for p := range all {
		o, _, _ := m.eng.Admin().Offset(ctx, m.w.position(p)) // for a message only
		all[p] = o.Next
	}
	return all
}

func (m *machine) caughtUp(ctx context.Context) bool {
	for p, end := range m.w.ends() {
		o, _, err := m.eng.Admin().Offset(ctx, m.w.position(p))
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

// handle counts the event and adds its amount to its account, in the transaction. If it fails, it
// fails after its writes.
func (m *machine) handle(ctx context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
	e := m.w.event(rec.Event.ID)
	if !m.p.tick(atHandler) {
		return errPower
	}
	m.w.mu.Lock()
	m.w.tally.handled++
	m.w.mu.Unlock()
	m.work(ctx)
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

// handleOnce is the handler of AtMostOnce. Its effect is outside the store.
func (m *machine) handleOnce(ctx context.Context, rec *kafkaadapter.Record) error {
	e := m.w.event(rec.Event.ID)
	if !m.p.tick(atHandler) {
		return errPower
	}
	m.w.mu.Lock()
	e.calls++
	m.w.tally.handled++
	m.w.mu.Unlock()
	m.work(ctx)
	m.p.tick(atHandler)
	switch {
	case e.poison == panicking:
		panic(errHiccup)
	case e.poison != healthy, m.w.hiccup(e):
		return errHiccup
	}
	return nil
}

// work waits for the duration of a handler. Where members exchange partitions, some handlers are so
// slow that the group, or the drain timeout, does not wait for them, and some of these do not watch
// their context.
func (m *machine) work(ctx context.Context) {
	w := m.w
	m.working.Add(1)
	defer m.working.Add(-1)
	switch {
	case w.together && !w.last && w.chance(1):
		d := w.upTo(w.away)
		if w.chance(50) {
			ctx = context.Background()
		}
		select {
		case <-ctx.Done():
		case <-m.p.dead:
		case <-time.After(d):
		}
	case w.together && w.chance(30), w.chance(10):
		time.Sleep(w.upTo(3 * time.Millisecond))
	case w.chance(1):
		time.Sleep(w.upTo(100 * time.Millisecond))
	}
}

// The application keys of handlers: how often an event took effect, and the sum of the amounts of
// an account's events.
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
