package enginetest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine"
)

// A modelTx is what a transaction has read and written.
type modelTx struct {
	claims   map[claimKey]engine.Record
	events   map[claimKey]engine.Event // of those
	again    map[claimKey]bool         // of those that existed
	finishes map[claimKey]modelLease   // of those that a lease holds
	unclaims map[claimKey]engine.Record
	host     map[string]*string // nil is deleted
	adds     map[string]int64   // to keys that are not in host
	offsets  map[int32]int64
	saves    []modelSave

	reads   map[string]bool // read from the store
	changed map[string]bool // written by others since it began
	told    bool            // of others' claims
	lost    bool

	ahead []modelEvent // what was given to Prefetch and is not claimed yet
}

type modelEvent struct {
	event engine.Event
	key   claimKey
}

type modelSave struct {
	point engine.Savepoint
	state *modelTx
}

func (x *modelTx) clone() *modelTx {
	c := *x
	c.claims, c.host, c.offsets, c.adds = maps.Clone(x.claims), maps.Clone(x.host), maps.Clone(x.offsets), maps.Clone(x.adds)
	c.unclaims = maps.Clone(x.unclaims)
	return &c
}

var (
	errModel   = errors.New("the closure fails")
	modelPanic = "the closure panics"
)

// update runs a random transaction; inside it others may run.
func (m *model) update(t *rapid.T) {
	if len(m.open) == 3 {
		return
	}
	x := &modelTx{
		claims: map[claimKey]engine.Record{}, host: map[string]*string{}, offsets: map[int32]int64{}, adds: map[string]int64{},
		events: map[claimKey]engine.Event{}, again: map[claimKey]bool{}, finishes: map[claimKey]modelLease{},
		unclaims: map[claimKey]engine.Record{}, reads: map[string]bool{}, changed: map[string]bool{},
	}
	m.open = append(m.open, x)
	end := ""
	err := func() (err error) {
		defer func() {
			if p := recover(); p == modelPanic {
				err = errModel
			} else if p != nil {
				panic(p)
			}
		}()
		return m.e.Update(context.Background(), func(tx *engine.Tx) error {
			for range rapid.IntRange(0, 8).Draw(t, "steps") {
				m.step(t, tx, x)
			}
			end = rapid.SampledFrom([]string{"commit", "commit", "commit", "fail", "panic"}).Draw(t, "end")
			switch end {
			case "fail":
				return errModel
			case "panic":
				panic(modelPanic)
			}
			return nil
		}, engine.InLane(m.lane))
	}()
	m.open = m.open[:len(m.open)-1]
	for k := range x.claims {
		delete(m.held, k)
	}
	if want := m.outcome(x, end); !slices.ContainsFunc(want, func(w error) bool { return errors.Is(err, w) }) {
		m.Fatalf("the transaction ended with %v, want one of %v", err, want)
	}
	if err == nil {
		m.commit(x)
	}
}

// outcome are the errors of which a transaction ends with one.
func (m *model) outcome(x *modelTx, end string) (errs []error) {
	overtaken := slices.ContainsFunc(slices.Collect(maps.Keys(x.reads)), func(k string) bool { return x.changed[k] })
	empty := len(x.claims)+len(x.host)+len(x.offsets)+len(x.adds)+len(x.unclaims) == 0
	switch {
	case end != "commit":
		return []error{errModel}
	case x.lost, overtaken && (!empty || x.told):
		return []error{engine.ErrConflict}
	}
	for k, rec := range x.claims {
		if k.week < m.oldestOf(k.scope) {
			errs = append(errs, engine.ErrWeekDropped)
			continue
		}
		errs = append(errs, m.refusals(x, k, rec)...)
	}
	errs = append(errs, m.unclaimRefusals(x)...)
	if len(errs) > 0 {
		return errs
	}
	for k := range x.adds {
		if _, _, err := m.seen(x, k); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		errs = []error{nil}
	}
	return errs
}

// refusals are the errors for one of which a claim in a kept week cannot commit.
func (m *model) refusals(x *modelTx, k claimKey, rec engine.Record) (errs []error) {
	if l, ok := x.finishes[k]; ok {
		if !m.holds(l) {
			errs = append(errs, engine.ErrLeaseLost)
		}
		return errs
	}
	ev := x.events[k]
	now, there := m.told.claims[k]
	next := there && now.Generation+1 == rec.Generation
	free := next && m.free(ev, now)
	switch {
	case there != x.again[k], there && !free && (!next || now.State != engine.DeadLettered):
		return []error{engine.ErrConflict} // it was finished or renewed
	case there && !free: // the replay of a dead letter
		return nil
	}
	for _, n := range m.near(ev, k) {
		if now, claimed := m.told.claims[n]; claimed && !m.free(ev, now) { // since it was found to be absent
			errs = append(errs, engine.ErrConflict)
		}
	}
	return errs
}

func (m *model) commit(x *modelTx) {
	maps.Copy(m.told.claims, x.claims)
	m.takeBack(x)
	written := map[string]bool{}
	for k := range x.unclaims {
		written[claimName(k)] = true
	}
	for k, rec := range x.claims {
		if rec.Generation > 0 {
			written[claimName(k)] = true
		}
	}
	for k, v := range x.host {
		written[k] = true
		if v == nil {
			delete(m.told.host, k)
		} else {
			m.told.host[k] = *v
		}
	}
	for k := range x.adds {
		written[k] = true
		m.told.host[k], _, _ = m.seen(x, k)
	}
	for p, next := range x.offsets {
		written[offsetName(p)] = true
		m.told.offsets[p] = next
	}
	for _, outer := range m.open {
		maps.Copy(outer.changed, written)
	}
}

func offsetName(p int32) string { return "offset " + string('0'+p) }

func claimName(k claimKey) string { return "claim " + k.String() }

// step does one thing in a transaction.
func (m *model) step(t *rapid.T, tx *engine.Tx, x *modelTx) {
	key := rapid.SampledFrom(modelKeys[:3]).Draw(t, "key")
	partition := rapid.Int32Range(0, 1).Draw(t, "partition")
	var err error
	switch do := rapid.SampledFrom([]string{"claim", "claim", "claim", "reclaim", "reclaim", "letter", "letter", "finish", "finish", "data", "unclaim", "unclaim", "get", "get", "scan", "add", "add", "put", "delete", "offset", "setOffset", "save", "back", "ahead", "outside", "inner"}).Draw(t, "do"); do {
	case "claim", "reclaim", "letter", "finish", "data", "unclaim":
		m.stepOfClaim(t, tx, x, do)
		return
	case "ahead":
		err = m.lookAhead(t, tx, x)
	case "get":
		m.get(tx, x, key)
		return
	case "scan":
		m.scan(t, tx, x)
		return
	case "offset":
		m.offset(tx, x, partition)
		return
	case "put":
		v := rapid.SampledFrom(modelValues).Draw(t, "value")
		if err = tx.Put([]byte(key), []byte(v)); err == nil {
			x.host[key] = &v
			delete(x.adds, key)
		}
	case "delete":
		if err = tx.Delete([]byte(key)); err == nil {
			x.host[key] = nil
			delete(x.adds, key)
		}
	case "add":
		m.add(t, tx, x, key)
		return
	case "setOffset":
		if err = tx.SetOffset(modelPosition(partition), engine.Offset{Next: m.n}); err == nil {
			x.offsets[partition] = m.n
		}
	case "save":
		err = x.save(tx)
	case "back":
		err = m.back(t, tx, x)
	case "outside":
		rapid.SampledFrom([]func(*rapid.T){m.claim, m.batch, m.useLease, m.useLease, m.forget, m.hold, m.dropWeek, m.dropExpired, m.dropScope}).Draw(t, "outside")(t)
		return
	case "inner":
		m.update(t)
		return
	}
	if x.lost != errors.Is(err, engine.ErrConflict) || !x.lost && err != nil {
		m.Fatalf("a step of a transaction: %v", err)
	}
}

// save takes a savepoint.
func (x *modelTx) save(tx *engine.Tx) error {
	s, err := tx.Savepoint()
	if err == nil {
		x.saves = append(x.saves, modelSave{s, x.clone()})
	}
	return err
}

// stepOfClaim does one thing with a claim.
func (m *model) stepOfClaim(t *rapid.T, tx *engine.Tx, x *modelTx, do string) {
	switch do {
	case "claim", "reclaim":
		m.claimIn(t, tx, x, do == "reclaim")
	case "letter":
		m.letter(t, tx, x)
	case "finish":
		m.finishIn(t, tx, x)
	case "data":
		m.setData(t, tx, x)
	case "unclaim":
		m.unclaim(t, tx, x)
	}
}

// lookAhead has the transaction look ahead to some events. Claims in it are of these then, now and
// again of others.
func (m *model) lookAhead(t *rapid.T, tx *engine.Tx, x *modelTx) error {
	x.ahead = nil
	var events []engine.Event
	for range rapid.IntRange(1, 4).Draw(t, "ahead") {
		ev, k := m.event(t)
		x.ahead, events = append(x.ahead, modelEvent{ev, k}), append(events, ev)
	}
	return tx.Prefetch(events)
}

// claimIn claims an event, or with replay set what is most likely a dead-lettered one.
func (m *model) claimIn(t *rapid.T, tx *engine.Tx, x *modelTx, replay bool) {
	ev, k := m.event(t)
	if len(x.ahead) > 0 && rapid.IntRange(0, 3).Draw(t, "expected") > 0 {
		ev, k = x.ahead[0].event, x.ahead[0].key
		x.ahead = x.ahead[1:]
	}
	try, reopen := tx.TryClaim, (*uint64)(nil)
	if replay {
		ev, k = m.deadLettered(t, ev, k)
		generation := m.told.claims[k].Generation + rapid.SampledFrom([]uint64{0, 0, 0, 1, ^uint64(0)}).Draw(t, "generation")
		reopen = &generation
		try = func(ev engine.Event) (engine.Result, error) { return tx.TryReclaim(ev, generation) }
	}
	r, err := try(ev)
	if x.lost {
		if !errors.Is(err, engine.ErrConflict) {
			m.Fatalf("claiming in a lost transaction: %v", err)
		}
		return
	}
	want, of := m.expect(ev, k, x, reopen)
	_, own := x.claims[of]
	want = m.checkResult(r, err, want, k)
	x.told = x.told || want.Verdict == engine.Duplicate || want.Verdict == engine.TooOld
	if want.First() {
		_, x.again[k] = m.told.claims[k]
		delete(x.finishes, k)
		m.lease(ev, k, want)
		x.claims[k], x.events[k] = want.Record, ev
		m.held[k] = true
	}
	if name := claimName(of); !own && want.Verdict == engine.Duplicate && want.Record.State == engine.DeadLettered && !x.reads[name] {
		x.reads[name] = true
		delete(x.changed, name) // it was read as it is now
	}
}

// deadLettered picks an event with a dead-lettered claim; if there is none, it is the one given.
func (m *model) deadLettered(t *rapid.T, ev engine.Event, k claimKey) (engine.Event, claimKey) {
	var keys []claimKey
	for k, rec := range m.told.claims {
		if rec.State == engine.DeadLettered {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return ev, k
	}
	slices.SortFunc(keys, func(a, b claimKey) int { return cmp.Compare(a.String(), b.String()) })
	k = rapid.SampledFrom(keys).Draw(t, "dead letter")
	ev.Scope, ev.ID, ev.Time = k.scope, []byte(k.id), k.week.Start()
	ev.Window = m.kept(ev.Scope, ev.Window)
	return ev, k
}

// letter dead-letters a claim of the transaction, or an event that it has not claimed.
func (m *model) letter(t *rapid.T, tx *engine.Tx, x *modelTx) {
	ev, k := m.event(t)
	if own := slices.SortedFunc(maps.Keys(x.claims), func(a, b claimKey) int { return cmp.Compare(a.String(), b.String()) }); len(own) > 0 {
		k = rapid.SampledFrom(own).Draw(t, "claim")
		ev.Scope, ev.ID, ev.Time = k.scope, []byte(k.id), k.week.Start()
	}
	rec, err := tx.DeadLetter(ev)
	want, claimed := x.claims[k]
	switch {
	case x.lost:
		if !errors.Is(err, engine.ErrConflict) {
			m.Fatalf("dead-lettering in a lost transaction: %v", err)
		}
	case !claimed:
		if !errors.Is(err, engine.ErrNotClaimed) {
			m.Fatalf("dead-lettering %v, which was not claimed: %v", k, err)
		}
	default:
		if want.State != engine.DeadLettered {
			want = ended(want, engine.DeadLettered, "")
		}
		x.claims[k] = want
		if err != nil || rec != want {
			m.Fatalf("dead-lettering %v: %+v, %v; want %+v", k, rec, err, want)
		}
	}
}

// reading says whether a read of the store succeeds.
func (x *modelTx) reading(name string) bool {
	x.lost = x.lost || x.changed[name]
	if !x.lost {
		x.reads[name] = true
	}
	return !x.lost
}

func (m *model) get(tx *engine.Tx, x *modelTx, key string) {
	v, found, err := tx.Get([]byte(key))
	if _, own := x.host[key]; (!own || x.lost) && !x.reading(key) {
		if !errors.Is(err, engine.ErrConflict) {
			m.Fatalf("reading %q, which was overtaken: %v", key, err)
		}
		return
	}
	want, there, wantErr := m.seen(x, key)
	if !sameError(err, wantErr) || found != there || string(v) != want {
		m.Fatalf("key %q reads %q %v %v, want %q %v", key, v, found, err, want, there)
	}
}

// scan iterates over a range of keys, perhaps not to its end.
func (m *model) scan(t *rapid.T, tx *engine.Tx, x *modelTx) {
	texts := rapid.SampledFrom([]string{"", "", "k", "k\x00", "l", "c"})
	prefix, after := texts.Draw(t, "prefix"), texts.Draw(t, "after")
	most := rapid.IntRange(1, 4).Draw(t, "most")
	var got, want []string
	var last, wantErr error
	for kv, err := range tx.Scan(engine.Range{Prefix: []byte(prefix), After: []byte(after)}) {
		if last = err; err != nil {
			break
		}
		if got = append(got, string(kv.Key)+"="+string(kv.Value)); len(got) == most {
			break
		}
	}
	for _, key := range slices.Sorted(slices.Values(modelKeys)) {
		if !strings.HasPrefix(key, prefix) || after != "" && key <= after || len(want) == most {
			continue
		}
		if !x.reading(key) {
			break
		}
		var value string
		var there bool
		if value, there, wantErr = m.seen(x, key); wantErr != nil {
			break
		}
		if there {
			want = append(want, key+"="+value)
		}
	}
	if x.lost {
		wantErr = engine.ErrConflict
	}
	if !slices.Equal(got, want) || !sameError(last, wantErr) {
		m.Fatalf("keys after %q with prefix %q: %q, %v; want %q", after, prefix, got, last, want)
	}
}

func (m *model) offset(tx *engine.Tx, x *modelTx, p int32) {
	o, found, err := tx.Offset(modelPosition(p))
	want, there := m.told.offsets[p]
	if own, ok := x.offsets[p]; ok && !x.lost {
		want, there = own, true
	} else if !x.reading(offsetName(p)) {
		if !errors.Is(err, engine.ErrConflict) {
			m.Fatalf("reading offset %d, which was overtaken: %v", p, err)
		}
		return
	}
	if err != nil || found != there || o.Next != want {
		m.Fatalf("offset %d reads %v %v %v, want %v %v", p, o.Next, found, err, want, there)
	}
}

// back goes back to one of the savepoints, and keeps it.
func (m *model) back(t *rapid.T, tx *engine.Tx, x *modelTx) error {
	if len(x.saves) == 0 {
		_, err := tx.Savepoint()
		return err
	}
	i := rapid.IntRange(0, len(x.saves)-1).Draw(t, "savepoint")
	if err := tx.RollbackTo(x.saves[i].point); err != nil {
		return err
	}
	x.saves = x.saves[:i+1]
	old := x.saves[i].state.clone()
	for k := range x.claims {
		if _, kept := old.claims[k]; !kept {
			delete(m.held, k)
		}
	}
	x.claims, x.host, x.offsets, x.adds, x.unclaims = old.claims, old.host, old.offsets, old.adds, old.unclaims
	return nil
}
