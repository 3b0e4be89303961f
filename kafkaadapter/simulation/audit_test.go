package simulation

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
)

// An audit compares the contents of a store with the world's knowledge, before a consumer runs on
// it. It reads the store directly, even if the power is off, and its findings count only if the
// power stayed on.
type audit struct {
	w     *world
	eng   *engine.Engine
	store storage.Store
	off   *atomic.Bool

	offsets [partitions]int64
	claims  map[string]claim
	counts  map[string]int64
}

// A claim is a claim that the audit has found in the store.
type claim struct {
	bucket storage.Bucket
	state  engine.State
}

// run checks the promises that hold at every restart.
func (a *audit) run() {
	steps := []func() error{a.readClaims, a.readOffsets, a.readCounts, a.checkOrigins}
	for _, step := range steps {
		if err := step(); err != nil {
			if !a.off.Load() {
				a.w.violate("reading the store after a restart: %v", err)
			}
			return
		}
	}
	if a.w.atMostOnce {
		a.checkCalls()
	} else {
		a.checkEffects()
	}
	a.checkCoupling()
}

// checkCalls: no handler of AtMostOnce is called twice, or before its claim is durable; and only a
// power cut loses events.
func (a *audit) checkCalls() {
	lost := 0
	for _, e := range a.w.events {
		_, claimed := a.claims[e.id]
		switch {
		case e.calls > 1:
			a.w.violate("%s was handled %d times", e.id, e.calls)
		case e.calls == 1 && !claimed:
			a.w.violate("%s was handled and is not claimed", e.id)
		case e.calls == 0 && claimed:
			lost++
		}
	}
	if n := lost - a.w.lost; n > a.w.atRisk {
		a.w.violate("%d events were lost, and %d were at risk", n, a.w.atRisk)
	}
	a.w.lost, a.w.tally.lost = lost, lost
}

func (a *audit) readClaims() error {
	a.claims = make(map[string]claim)
	return a.store.Scan(context.Background(), storage.Span{}, func() {}, func(key, record []byte) error {
		bucket, id, err := storage.ParseKey(key)
		if err != nil {
			return err
		}
		if _, twice := a.claims[string(id)]; twice {
			a.w.violate("%s is claimed in two weeks", id)
		}
		a.claims[string(id)] = claim{bucket, stateOf(record)}
		return nil
	})
}

// stateOf returns the state of a claim from its record (docs/format.md): the short form has none.
func stateOf(record []byte) engine.State {
	if record[0]&0x80 != 0 {
		return engine.Done
	}
	return engine.State(record[0] & 0x0f)
}

// readOffsets reads the offsets, which never decrease.
func (a *audit) readOffsets() error {
	for p := range a.offsets {
		o, _, err := a.eng.Admin().Offset(context.Background(), a.w.position(p))
		if err != nil {
			return err
		}
		a.offsets[p] = o.Next
		if o.Next < a.w.floor[p] {
			a.w.violate("partition %d was set back from %d to %d", p, a.w.floor[p], o.Next)
		}
		a.w.floor[p] = o.Next
	}
	return nil
}

// readCounts reads how often each event took effect, and compares the accounts with these counts.
func (a *audit) readCounts() error {
	var want, got [accounts]int64
	a.counts = make(map[string]int64)
	err := a.scan(countPrefix, func(id string, n int64) error {
		a.counts[id] = n
		e := a.w.event([]byte(id))
		want[e.account] += n * e.amount
		return nil
	})
	if err != nil {
		return err
	}
	err = a.scan(accountPrefix, func(name string, n int64) error {
		i, err := strconv.Atoi(name)
		got[i] = n
		return err
	})
	if err == nil && got != want {
		a.w.violate("the accounts are %v, their events add up to %v", got, want)
	}
	return err
}

// hostKind is the first byte of the engine's keys for application keys.
const hostKind = 'h'

// scan reads the numbers that handlers have stored under keys with a prefix.
func (a *audit) scan(prefix string, fn func(name string, n int64) error) error {
	whole := append([]byte{hostKind}, prefix...)
	return a.store.ScanState(storage.Span{Prefix: whole}, func(key, value []byte) error {
		return fn(string(key[len(whole):]), number(value))
	})
}

// checkEffects: an event is claimed if and only if it took effect once, or is dead-lettered; an
// event is dead-lettered only if its handler always fails.
func (a *audit) checkEffects() {
	for _, e := range a.w.events {
		c, claimed := a.claims[e.id]
		n := a.counts[e.id]
		switch {
		case n > 1:
			a.w.violate("%s took effect %d times", e.id, n)
		case e.poison != healthy && n != 0:
			a.w.violate("%s took effect although its handler fails", e.id)
		case e.poison != healthy && claimed && c.state != engine.DeadLettered:
			a.w.violate("%s is claimed, has no effect and is no dead letter", e.id)
		case e.poison == healthy && claimed && c.state != engine.Done:
			a.w.violate("%s is a dead letter although its handler succeeds", e.id)
		case e.poison == healthy && claimed && n == 0:
			a.w.violate("%s is claimed and has no effect", e.id)
		case !claimed && n != 0:
			a.w.violate("%s took effect and is not claimed", e.id)
		}
	}
}

// checkOrigins looks up some claims through the engine: the owner that made a claim has an offset
// beyond it.
func (a *audit) checkOrigins() error {
	left := 20
	for id, c := range a.claims {
		if left--; left < 0 {
			break
		}
		rec, found, err := a.eng.Admin().Lookup(context.Background(), c.bucket.Scope, []byte(id), c.bucket.Week.Start())
		if err != nil {
			return err
		}
		if next := a.offsets[a.w.local(rec.Origin.Partition)]; !found || rec.State != c.state || rec.Origin.Offset >= next {
			a.w.violate("%s is claimed: %v, %v by %v, whose next offset is %d", id, found, rec.State, rec.Origin, next)
		}
	}
	return nil
}

// checkCoupling: all records below the store's offsets have been judged. With AtMostOnce, the claim
// may have been withdrawn after a copy in another partition was acknowledged: then the record that
// made the claim is still unread.
func (a *audit) checkCoupling() {
	for p, next := range a.offsets {
		if next > int64(len(a.w.log[p])) {
			a.w.violate("partition %d is at %d of %d", p, next, len(a.w.log[p]))
			return
		}
		for offset, e := range a.w.log[p][:next] {
			if _, claimed := a.claims[e.id]; !claimed && (!a.w.atMostOnce || !a.unread(e)) {
				a.w.violate("partition %d is at %d, and its record %d, %s, has neither a claim nor an effect", p, next, offset, e.id)
			}
		}
	}
}

// unread reports whether a record of the event is at or above the store's offset.
func (a *audit) unread(e *event) bool {
	for p, next := range a.offsets {
		if slices.Contains(a.w.log[p][next:], e) {
			return true
		}
	}
	return false
}

// finish checks what must hold when all records are handled: each event has taken effect, or is a
// dead letter that the broker has acknowledged.
func (a *audit) finish() {
	a.run()
	for p, end := range a.w.ends() {
		if a.offsets[p] != end {
			a.w.violate("partition %d is at %d of %d", p, a.offsets[p], end)
		}
	}
	if a.w.atMostOnce {
		return // claimed as all are, and handled or lost
	}
	letters, err := a.w.letters()
	if err != nil {
		a.w.violate("reading the dead letters: %v", err)
	}
	for _, e := range a.w.events {
		switch n := letters[e.id]; {
		case e.poison == healthy && a.counts[e.id] != 1:
			a.w.violate("%s took effect %d times in the end", e.id, a.counts[e.id])
		case e.poison != healthy && n == 0:
			a.w.violate("%s is a dead letter that was not published", e.id)
		case e.poison == healthy && n != 0:
			a.w.violate("%s was published as a dead letter although its handler succeeds", e.id)
		}
	}
}
