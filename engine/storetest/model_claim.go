package storetest

import (
	"context"
	"errors"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/weekbucket"
)

func (m *model) event(t *rapid.T) (engine.Event, claimKey) {
	week := m.week() + weekbucket.Week(rapid.IntRange(0, 7).Draw(t, "week")) - 5
	m.n++
	ev := engine.Event{
		Scope:   rapid.SampledFrom([]string{"a", "ab", "a\x00"}).Draw(t, "scope"),
		ID:      []byte(rapid.SampledFrom([]string{"1", "2", "3", "\x00", "00112233445566778899aabbccddeeff", "00112233-4455-6677-8899-aabbccddeeff"}).Draw(t, "id")),
		Time:    week.Start().Add(time.Duration(rapid.IntRange(0, 7*24-1).Draw(t, "hour")) * time.Hour),
		LogTime: rapid.IntRange(0, 2).Draw(t, "log time") == 0,
		Origin:  engine.Origin{Topic: rapid.SampledFrom([]string{"t", "u"}).Draw(t, "topic"), Offset: m.n},
	}
	return ev, claimKey{ev.Scope, week, string(ev.ID)}
}

// near are the weeks before and after, for an event whose time is the log's.
func near(ev engine.Event, k claimKey) []claimKey {
	if !ev.LogTime {
		return nil
	}
	return []claimKey{{k.scope, k.week - 1, k.id}, {k.scope, k.week + 1, k.id}}
}

// isNear reports whether this is the record of a claim in a week near that counts.
func (m *model) isNear(ev engine.Event, k claimKey, rec engine.Record) bool {
	return slices.ContainsFunc(near(ev, k), func(n claimKey) bool {
		there, ok := m.told.claims[n]
		return ok && there == rec
	})
}

// expect is the verdict of an event, and the claim that it is a duplicate of. tx is nil for an own-commit claim; a claim
// that is dead-lettered with the generation reopen, if that is not nil, is open.
func (m *model) expect(ev engine.Event, k claimKey, tx *modelTx, reopen *uint64) (r engine.Result, of claimKey) {
	if ev.Time.Sub(m.clock) > engine.DefaultAllowedSkew {
		return engine.Result{Verdict: engine.TooNew}, k
	}
	if k.week < m.told.oldest {
		return engine.Result{Verdict: engine.TooOld}, k
	}
	own := map[claimKey]engine.Record{}
	if tx != nil {
		own = tx.claims
	}
	inFlight := m.held[k]
	rec, there := m.told.claims[k]
	open := there && reopen != nil && rec.State == engine.DeadLettered && rec.Generation == *reopen
	if mine, ok := own[k]; ok {
		return engine.Result{Verdict: engine.Duplicate, Record: mine}, k
	}
	if there && !open {
		return engine.Result{Verdict: engine.Duplicate, Record: rec}, k
	}
	if !there {
		for _, claims := range []map[claimKey]engine.Record{own, m.told.claims} {
			for _, n := range near(ev, k) {
				if rec, ok := claims[n]; ok {
					return engine.Result{Verdict: engine.Duplicate, Record: rec}, n
				}
				inFlight = inFlight || m.held[n]
			}
		}
	}
	if inFlight {
		return engine.Result{Verdict: engine.InFlight}, k
	}
	if !there {
		return engine.Result{Verdict: engine.Claimed, Record: m.newRecord(ev)}, k
	}
	rec.State = engine.Done
	rec.Generation++
	return engine.Result{Verdict: engine.Claimed, Record: rec}, k
}

func (m *model) newRecord(ev engine.Event) engine.Record {
	return engine.Record{State: engine.Done, FirstSeen: m.clock, Origin: ev.Origin}
}

func (m *model) checkResult(r engine.Result, err error, want engine.Result, k claimKey) {
	if err != nil || r != want {
		m.Fatalf("%v: told %+v, %v; want %+v", k, r, err, want)
	}
}

func (m *model) claim(t *rapid.T) {
	ev, k := m.event(t)
	want, _ := m.expect(ev, k, nil, nil)
	r, err := m.e.TryClaim(context.Background(), ev)
	m.checkResult(r, err, want, k)
	if want.First() {
		m.told.claims[k] = want.Record
	}
}

func (m *model) batch(t *rapid.T) {
	var events []engine.Event
	var keys []claimKey
	for range rapid.IntRange(0, 8).Draw(t, "events") {
		ev, k := m.event(t)
		events, keys = append(events, ev), append(keys, k)
	}
	rs, err := m.e.TryClaimBatch(context.Background(), events)
	if err != nil {
		m.Fatalf("a batch: %v", err)
	}
	for i, k := range keys {
		want, _ := m.expect(events[i], k, nil, nil)
		if rs[i].Verdict == engine.Duplicate && m.isNear(events[i], k, rs[i].Record) {
			want.Record = rs[i].Record // of several claims any: it may have been found before this one was made
		}
		m.checkResult(rs[i], rs[i].Err, want, k)
		if want.First() {
			m.told.claims[k] = want.Record
		}
	}
}

func (m *model) forget(t *rapid.T) {
	ev, k := m.event(t)
	_, there := m.told.claims[k]
	found, err := m.e.Forget(context.Background(), ev.Scope, ev.ID, ev.Time)
	if m.held[k] {
		if !errors.Is(err, engine.ErrConflict) {
			m.Fatalf("forgetting %v, which is held: %v", k, err)
		}
		return
	}
	if err != nil || found != there {
		m.Fatalf("forgetting %v: %v %v, want %v", k, found, err, there)
	}
	if m.told.claims[k].State == engine.DeadLettered {
		for _, x := range m.open {
			x.changed[claimName(k)] = true
		}
	}
	delete(m.told.claims, k)
}
