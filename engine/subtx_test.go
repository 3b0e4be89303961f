package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storetest"
)

const (
	partKeys   = 5
	partEvents = 6
)

// A partOp is one step of a record's handler. Its writes depend on the handler's earlier reads.
type partOp struct {
	kind   string
	key, n int
}

type partRecord struct {
	ops   []partOp
	fails bool
}

func randomRecords(rnd *rand.Rand, n int) []partRecord {
	kinds := []string{"get", "get", "put", "put", "delete", "scan", "claim", "claim", "claim", "approximate", "reclaim", "dead-letter", "save", "rollback",
		"add", "add", "total", "clear"}
	records := make([]partRecord, n)
	for i := range records {
		r := &records[i]
		r.fails = rnd.IntN(5) == 0
		for range 1 + rnd.IntN(6) {
			r.ops = append(r.ops, partOp{kinds[rnd.IntN(len(kinds))], rnd.IntN(partKeys), rnd.IntN(100)})
		}
	}
	return records
}

// A partRun is one run of a record's handler.
type partRun struct {
	sum     int
	log     []string // the results of its reads
	claimed []engine.Event
	saves   []partSave
}

type partSave struct {
	at      engine.Savepoint
	claimed int
}

func partEvent(op partOp) engine.Event {
	ev := event(fmt.Sprint("event ", (op.key*7+op.n)%partEvents))
	ev.Time = noon.AddDate(0, 0, -7*(op.n%2))
	ev.ApproximateTime = op.kind == "approximate"
	return ev
}

// do runs one step in tx, and returns ErrPartOutdated or ErrConflict if the step does.
func (r *partRun) do(tx *engine.Tx, op partOp) error {
	key, sum := fmt.Appendf(nil, "key %d", op.key), fmt.Appendf(nil, "sum %d", op.key%2)
	note := func(err error, what ...any) error {
		if err == nil || !errors.Is(err, driver.ErrPartOutdated) && !errors.Is(err, engine.ErrConflict) {
			r.log = append(r.log, fmt.Sprintln(op.kind, what, err))
			return nil
		}
		return err
	}
	switch op.kind {
	case "get":
		v, found, err := tx.Get(key)
		_, _ = fmt.Sscan(string(v), &r.sum)
		return note(err, string(v), found)
	case "put":
		r.sum += op.n
		return note(tx.Put(key, fmt.Append(nil, r.sum)))
	case "add":
		return note(tx.Add(sum, int64(op.n)))
	case "total":
		v, found, err := tx.Get(sum)
		return note(err, v, found)
	case "clear":
		return note(tx.Delete(sum))
	case "delete":
		return note(tx.Delete(key))
	case "scan":
		n := 0
		for kv, err := range tx.Scan(engine.Range{Prefix: []byte([]string{"key", "sum", ""}[op.n%3])}) {
			if err := note(err, string(kv.Key), string(kv.Value)); err != nil {
				return err
			}
			if n++; n > op.n%partKeys {
				break
			}
		}
		return nil
	case "claim", "approximate", "reclaim":
		claim := tx.TryClaim
		if op.kind == "reclaim" {
			claim = func(ev engine.Event) (engine.Result, error) { return tx.TryReopen(ev, 0) }
		}
		res, err := claim(partEvent(op))
		if res.Verdict == engine.Claimed {
			r.claimed = append(r.claimed, partEvent(op))
		}
		return note(err, res.Verdict, res.Record)
	case "dead-letter":
		if len(r.claimed) == 0 {
			return nil
		}
		rec, err := tx.DeadLetter(r.claimed[op.n%len(r.claimed)])
		return note(err, rec)
	case "save":
		s, err := tx.Savepoint()
		r.saves = append(r.saves, partSave{s, len(r.claimed)})
		return note(err)
	default: // rollback
		if len(r.saves) == 0 {
			return nil
		}
		s := r.saves[op.n%len(r.saves)]
		r.saves = r.saves[:op.n%len(r.saves)+1]
		r.claimed = r.claimed[:s.claimed]
		return note(tx.RollbackTo(s.at))
	}
}

// all runs a record from its begin to its end.
func (r *partRun) all(tx *engine.Tx, rec partRecord) error {
	for _, op := range rec.ops {
		if err := r.do(tx, op); err != nil {
			return err
		}
		runtime.Gosched()
	}
	return nil
}

// oneAfterTheOther runs the records in one transaction without parts.
func oneAfterTheOther(tx *engine.Tx, records []partRecord) ([]*partRun, error) {
	var runs []*partRun
	for _, rec := range records {
		s, err := tx.Savepoint()
		if err != nil {
			return nil, err
		}
		run := &partRun{}
		if err := run.all(tx, rec); err != nil {
			return nil, err
		}
		if rec.fails {
			if err := tx.RollbackTo(s); err != nil {
				return nil, err
			}
		}
		runs = append(runs, run)
	}
	return runs, nil
}

// A turnOf is a record that runs in a part.
type turnOf struct {
	part driver.SubTx
	rec  partRecord
	run  *partRun
	step int
	err  error
}

// finish ends the part in its turn; an outdated one runs again, which must not fail.
func (w *turnOf) finish(tx *engine.Tx) error {
	end := func() error {
		if w.rec.fails {
			return w.part.Discard()
		}
		return w.part.Join()
	}
	err := end()
	if !errors.Is(err, driver.ErrPartOutdated) {
		return errors.Join(err, w.err)
	}
	if w.part, err = driver.BeginSubTx(tx); err != nil {
		return err
	}
	w.run = &partRun{}
	if err := w.run.all(w.part.Tx(), w.rec); err != nil {
		return fmt.Errorf("the part that is next in order: %w", err)
	}
	return end()
}

// interleaved runs the records in parts, up to width at a time, step by step in a random order.
func interleaved(rnd *rand.Rand, width int, again *int) func(tx *engine.Tx, records []partRecord) ([]*partRun, error) {
	return func(tx *engine.Tx, records []partRecord) (runs []*partRun, err error) {
		var open []*turnOf
		for len(runs) < len(records) {
			if next := len(runs) + len(open); len(open) < width && next < len(records) && rnd.IntN(3) > 0 {
				part, err := driver.BeginSubTx(tx)
				if err != nil {
					return nil, err
				}
				open = append(open, &turnOf{part: part, rec: records[next], run: &partRun{}})
				continue
			}
			if len(open) == 0 {
				continue
			}
			if w := open[rnd.IntN(len(open))]; w.step < len(w.rec.ops) && w.err == nil {
				w.err = w.run.do(w.part.Tx(), w.rec.ops[w.step])
				w.step++
				continue
			}
			if w := open[0]; w.step == len(w.rec.ops) || w.err != nil {
				if w.err != nil {
					*again++
				}
				if errors.Is(w.err, driver.ErrPartOutdated) {
					w.err = nil
				}
				if err := w.finish(tx); err != nil {
					return nil, err
				}
				runs = append(runs, w.run)
				open = open[1:]
			}
		}
		return runs, nil
	}
}

// sideBySide runs the records in parts, each in its own goroutine.
func sideBySide(width int) func(tx *engine.Tx, records []partRecord) ([]*partRun, error) {
	return func(tx *engine.Tx, records []partRecord) (runs []*partRun, err error) {
		for len(records) > 0 {
			now := records[:min(width, len(records))]
			records = records[len(now):]
			turns := make([]*turnOf, len(now))
			var wg sync.WaitGroup
			for i, rec := range now {
				part, err := driver.BeginSubTx(tx)
				if err != nil {
					return nil, err
				}
				w := &turnOf{part: part, rec: rec, run: &partRun{}}
				turns[i] = w
				wg.Go(func() {
					if err := w.run.all(w.part.Tx(), w.rec); !errors.Is(err, driver.ErrPartOutdated) {
						w.err = err
					}
				})
			}
			if width%2 == 0 {
				wg.Wait() // otherwise the first ones are joined while others run
			}
			for i, w := range turns {
				if width%2 == 1 && i == 0 {
					wg.Wait()
				}
				if err := w.finish(tx); err != nil {
					return nil, err
				}
				runs = append(runs, w.run)
			}
		}
		return runs, nil
	}
}

// partsResult is the final state after records were run in a store with some content.
type partsResult struct {
	logs     [][]string
	keys     map[string]string
	claims   map[string]engine.ClaimRecord
	verdicts map[engine.Verdict]uint64
}

func runRecords(t *testing.T, records []partRecord, run func(tx *engine.Tx, records []partRecord) ([]*partRun, error)) (res partsResult) {
	t.Helper()
	e, _ := openMem(t, engine.Options{})
	claim(t, e, event("event 0"))
	update(t, e, func(tx *engine.Tx) {
		wantTx(t, tx, event("event 1"), engine.Claimed)
		if _, err := tx.DeadLetter(event("event 1")); err != nil {
			t.Fatal(err)
		}
		mustPut(t, tx, "key 0", "1000")
		mustPut(t, tx, "key 3", "3000")
		wantErr(t, tx.Add([]byte("sum 0"), 1_000_000), nil)
	})
	var runs []*partRun
	err := e.Update(ctx, func(tx *engine.Tx) (err error) {
		runs, err = run(tx, records)
		return err
	})
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	if n := e.Reservations(); n > 0 {
		t.Errorf("%d claims are still reserved", n)
	}
	for _, r := range runs {
		res.logs = append(res.logs, r.log)
	}
	res.keys, res.claims = map[string]string{}, map[string]engine.ClaimRecord{}
	update(t, e, func(tx *engine.Tx) {
		for kv, err := range tx.Scan(engine.Range{}) {
			if err != nil {
				t.Fatal(err)
			}
			res.keys[string(kv.Key)] = string(kv.Value)
		}
	})
	for i := range partEvents {
		for week := range 2 {
			ev := event(fmt.Sprint("event ", i))
			rec, found, err := e.Admin().Lookup(ctx, ev.Scope, ev.ID, noon.AddDate(0, 0, -7*week))
			if err != nil {
				t.Fatal(err)
			}
			if found {
				res.claims[fmt.Sprint(i, week)] = rec
			}
		}
	}
	s, err := e.Stats()
	if err != nil {
		t.Fatal(err)
	}
	res.verdicts = s.Verdicts
	return res
}

func (want partsResult) check(t *testing.T, got partsResult) {
	t.Helper()
	for i := range want.logs {
		if !slices.Equal(want.logs[i], got.logs[i]) {
			t.Errorf("record %d got\n%q, one after the other\n%q", i, got.logs[i], want.logs[i])
		}
	}
	if !reflect.DeepEqual(want, got) {
		t.Errorf("the state is\n%v, one after the other\n%v", got, want)
	}
}

func TestPartsHaveTheResultOfRecordsOneAfterTheOther(t *testing.T) {
	again, seeds := 0, 300
	if testing.Short() {
		seeds = 75
	}
	eachSeed(t, seeds, func(t *testing.T, rnd *rand.Rand, _ uint64) {
		records := randomRecords(rnd, 1+rnd.IntN(10))
		want := runRecords(t, records, oneAfterTheOther)
		want.check(t, runRecords(t, records, interleaved(rnd, 1+rnd.IntN(5), &again)))
	})
	if again == 0 {
		t.Error("no part was outdated")
	}
}

func TestPartsInGoroutinesHaveTheResultOfRecordsOneAfterTheOther(t *testing.T) {
	eachSeed(t, 60, func(t *testing.T, rnd *rand.Rand, _ uint64) {
		records := randomRecords(rnd, 1+rnd.IntN(16))
		want := runRecords(t, records, oneAfterTheOther)
		want.check(t, runRecords(t, records, sideBySide(2+rnd.IntN(7))))
	})
}

func begin(t testing.TB, tx *engine.Tx) driver.SubTx {
	t.Helper()
	p, err := driver.BeginSubTx(tx)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
}

func TestPartsShareAClaimUntilOneIsJoined(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	ev := event("a")
	update(t, e, func(tx *engine.Tx) {
		first, second, third := begin(t, tx), begin(t, tx), begin(t, tx)
		for _, p := range []driver.SubTx{first, second, third} {
			wantTx(t, p.Tx(), ev, engine.Claimed)
			wantTx(t, p.Tx(), ev, engine.Duplicate)
		}
		wantVerdict(t, claim(t, e, ev), engine.InFlight)
		wantErr(t, first.Discard(), nil)
		wantVerdict(t, claim(t, e, ev), engine.InFlight)
		wantErr(t, second.Join(), nil)
		wantErr(t, third.Join(), driver.ErrPartOutdated)
		again := begin(t, tx)
		wantTx(t, again.Tx(), ev, engine.Duplicate)
		wantErr(t, again.Join(), nil)
		wantTx(t, tx, ev, engine.Duplicate)
	})
	wantVerdict(t, claim(t, e, ev), engine.Duplicate)
}

func TestDiscardedPartsReleaseTheirClaims(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	ev := event("a")
	update(t, e, func(tx *engine.Tx) {
		first, second := begin(t, tx), begin(t, tx)
		wantTx(t, first.Tx(), ev, engine.Claimed)
		wantTx(t, second.Tx(), ev, engine.Claimed)
		wantErr(t, errors.Join(first.Discard(), second.Discard()), nil)
		wantVerdict(t, claim(t, e, ev), engine.Claimed)
	})
}

func TestTransactionClaimsWhileItsPartsRun(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	ev := event("a")
	update(t, e, func(tx *engine.Tx) {
		part := begin(t, tx)
		wantTx(t, part.Tx(), ev, engine.Claimed)
		wantTx(t, tx, ev, engine.Claimed)
		wantErr(t, part.Join(), driver.ErrPartOutdated)
		wantVerdict(t, claim(t, e, ev), engine.InFlight)
	})
	wantVerdict(t, claim(t, e, ev), engine.Duplicate)
}

// A part that is told of a claim whose record the transaction changes while the part runs would be
// told of another record if it ran after the change.
func TestPartIsOutdatedByAChangeOfAClaimItWasToldOf(t *testing.T) {
	for name, change := range map[string]func(tx *engine.Tx, l *engine.Lease) error{
		"SetData":    func(tx *engine.Tx, _ *engine.Lease) error { return tx.SetData(event("a"), []byte("new")) },
		"DeadLetter": func(tx *engine.Tx, _ *engine.Lease) error { return second(tx.DeadLetter(event("a"))) },
		"Finish":     func(tx *engine.Tx, l *engine.Lease) error { return tx.Finish(l, []byte("new")) },
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := openMem(t, engine.Options{})
			update(t, e, func(tx *engine.Tx) {
				res, err := tx.TryClaim(leasedEvent("a"))
				wantErr(t, err, nil)
				wantVerdict(t, res, engine.Claimed)
				told, other, late := begin(t, tx), begin(t, tx), begin(t, tx)
				wantTx(t, told.Tx(), event("a"), engine.Duplicate)
				wantTx(t, other.Tx(), event("b"), engine.Claimed)
				sp, err := tx.Savepoint()
				wantErr(t, errors.Join(err, change(tx, res.Lease)), nil)
				wantErr(t, told.Join(), driver.ErrPartOutdated)
				wantErr(t, other.Join(), nil)
				// What a rollback undoes was never there.
				_, err = late.Tx().TryClaim(event("a"))
				wantErr(t, err, driver.ErrPartOutdated)
				wantErr(t, tx.RollbackTo(sp), nil)
				wantErr(t, late.Join(), driver.ErrPartOutdated)
				after := begin(t, tx)
				wantTx(t, after.Tx(), event("a"), engine.Duplicate)
				wantErr(t, errors.Join(change(tx, res.Lease), after.Discard()), driver.ErrPartOutdated)
			})
		})
	}
}

func TestFailureOfAnOutdatedPartDoesNotCount(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	update(t, e, func(tx *engine.Tx) {
		late := begin(t, tx)
		wantGet(t, late.Tx(), "k", "absent")
		early := begin(t, tx)
		mustPut(t, early.Tx(), "k", "1")
		wantErr(t, early.Join(), nil)
		wantErr(t, late.Discard(), driver.ErrPartOutdated)
	})
}

func TestRollbackUndoesJoinedPartsAndOutdatesThoseBegunAfter(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	update(t, e, func(tx *engine.Tx) {
		before := begin(t, tx)
		wantTx(t, before.Tx(), event("before"), engine.Claimed)
		s, err := tx.Savepoint()
		wantErr(t, err, nil)
		joined := begin(t, tx)
		mustPut(t, joined.Tx(), "k", "joined")
		wantTx(t, joined.Tx(), event("joined"), engine.Claimed)
		wantErr(t, joined.Join(), nil)
		after, reads := begin(t, tx), begin(t, tx)
		wantGet(t, after.Tx(), "k", "joined")
		wantTx(t, reads.Tx(), event("joined"), engine.Duplicate)
		wantErr(t, tx.RollbackTo(s), nil)
		_, _, err = reads.Tx().Get([]byte("k"))
		wantErr(t, err, driver.ErrPartOutdated)
		wantErr(t, after.Join(), driver.ErrPartOutdated)
		wantErr(t, reads.Join(), driver.ErrPartOutdated)
		wantErr(t, before.Join(), nil)
		wantGet(t, tx, "k", "absent")
		wantVerdict(t, claim(t, e, event("joined")), engine.Claimed)
	})
	wantKept(t, e, map[string]string{"k": "absent"})
	wantVerdict(t, claim(t, e, event("before")), engine.Duplicate)
}

func TestPartThatHasEndedTouchesNothing(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	var left driver.SubTx
	check := func(p driver.SubTx) {
		t.Helper()
		_, err := p.Tx().TryClaim(event("late"))
		wantErr(t, err, engine.ErrNoTransaction)
		wantErr(t, p.Tx().Put([]byte("k"), nil), engine.ErrNoTransaction)
		wantErr(t, p.Join(), engine.ErrNoTransaction)
		wantErr(t, p.Discard(), engine.ErrNoTransaction)
	}
	update(t, e, func(tx *engine.Tx) {
		joined, discarded := begin(t, tx), begin(t, tx)
		if _, err := driver.BeginSubTx(joined.Tx()); err == nil {
			t.Error("a part has a part")
		}
		wantErr(t, errors.Join(joined.Join(), discarded.Discard()), nil)
		check(joined)
		check(discarded)
		left = begin(t, tx)
		wantTx(t, left.Tx(), event("left"), engine.Claimed)
		mustPut(t, left.Tx(), "left", "")
		mustPut(t, tx, "kept", "")
	})
	check(left)
	wantKept(t, e, map[string]string{"left": "absent", "kept": "", "k": "absent"})
	wantVerdict(t, claim(t, e, event("left")), engine.Claimed)

	short, cancel := context.WithCancel(ctx)
	wantErr(t, e.Update(short, func(tx *engine.Tx) error {
		left = begin(t, tx)
		wantTx(t, left.Tx(), event("context"), engine.Claimed)
		cancel()
		for e.Reservations() > 0 {
			runtime.Gosched()
		}
		check(left)
		return nil
	}), context.Canceled)
}

func TestPartThatDoesNotFitIsNotJoined(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	value := make([]byte, limits.ValueBytes)
	const fit = limits.TxBytes/limits.ValueBytes - 1
	update(t, e, func(tx *engine.Tx) {
		part := begin(t, tx)
		for i := range fit {
			mustPut(t, part.Tx(), fmt.Sprint("part ", i), string(value))
			if i > 0 {
				mustPut(t, tx, fmt.Sprint("whole ", i), string(value))
			}
		}
		wantTx(t, part.Tx(), event("a"), engine.Claimed)
		wantErr(t, part.Join(), engine.ErrLimit)
		wantGet(t, tx, "part 0", "absent")
	})
	wantVerdict(t, claim(t, e, event("a")), engine.Claimed)

	update(t, e, func(tx *engine.Tx) {
		part := begin(t, tx)
		for i := range limits.TxClaims {
			ev := event(fmt.Sprint(i))
			if _, err := tx.TryClaim(ev); err != nil {
				t.Fatal(err)
			}
		}
		wantTx(t, part.Tx(), event("one more"), engine.Claimed)
		wantErr(t, part.Join(), engine.ErrLimit)
	})
	if n := e.Reservations(); n > 0 {
		t.Errorf("%d claims are still reserved", n)
	}
}

func TestReadsOfAPartAreValidatedWithTheTransaction(t *testing.T) {
	for name, end := range map[string]func(p driver.SubTx) error{"joined": (driver.SubTx).Join, "discarded": (driver.SubTx).Discard} {
		t.Run(name, func(t *testing.T) {
			e, _ := openMem(t, engine.Options{})
			err := e.Update(ctx, func(tx *engine.Tx) error {
				part := begin(t, tx)
				wantGet(t, part.Tx(), "k", "absent")
				wantErr(t, end(part), nil)
				update(t, e, func(tx *engine.Tx) { mustPut(t, tx, "k", "") })
				return tx.Put([]byte("done"), nil)
			})
			wantErr(t, err, engine.ErrConflict)
		})
	}
	t.Run("scan", func(t *testing.T) {
		e, _ := openMem(t, engine.Options{})
		err := e.Update(ctx, func(tx *engine.Tx) error {
			part := begin(t, tx)
			for range part.Tx().Scan(engine.Range{}) {
				t.Error("there is a key")
			}
			wantErr(t, part.Join(), nil)
			update(t, e, func(tx *engine.Tx) { mustPut(t, tx, "k", "") })
			return tx.Put([]byte("done"), nil)
		})
		wantErr(t, err, engine.ErrConflict)
	})
	t.Run("lost in a part", func(t *testing.T) {
		e, _ := openMem(t, engine.Options{})
		err := e.Update(ctx, func(tx *engine.Tx) error {
			part, other := begin(t, tx), begin(t, tx)
			update(t, e, func(tx *engine.Tx) { mustPut(t, tx, "k", "") })
			_, _, err := part.Tx().Get([]byte("k"))
			wantErr(t, err, engine.ErrConflict)
			wantErr(t, part.Join(), engine.ErrConflict)
			wantErr(t, other.Join(), engine.ErrConflict)
			return nil
		})
		wantErr(t, err, engine.ErrConflict)
	})
}

func TestStoreThatPanicsInAPartLeavesNothingReserved(t *testing.T) {
	e, m := openMem(t, engine.Options{RecentClaims: -1})
	claim(t, e, event("a"))
	update(t, e, func(tx *engine.Tx) {
		part := begin(t, tx)
		m.Before(storetest.OpClaim, func(int) error { panic(errBoom) })
		func() {
			defer func() { _ = recover() }()
			_, _ = part.Tx().TryReopen(event("a"), 0)
		}()
		m.Before(storetest.OpClaim, nil)
		wantErr(t, part.Discard(), nil)
	})
	if n := e.Reservations(); n > 0 {
		t.Errorf("%d claims are still reserved", n)
	}
}

func TestPartNeverSeesAMixtureOfStates(t *testing.T) {
	for name, look := range map[string]func(tx *engine.Tx) error{
		"get": func(tx *engine.Tx) error { _, _, err := tx.Get([]byte("k")); return err },
		"scan": func(tx *engine.Tx) (err error) {
			for _, err = range tx.Scan(engine.Range{}) {
			}
			return err
		},
		"claim":   func(tx *engine.Tx) error { _, err := tx.TryClaim(event("a")); return err },
		"reclaim": func(tx *engine.Tx) error { _, err := tx.TryReopen(event("a"), 0); return err },
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := openMem(t, engine.Options{})
			update(t, e, func(tx *engine.Tx) {
				late, early := begin(t, tx), begin(t, tx)
				mustPut(t, early.Tx(), "k", "")
				wantTx(t, early.Tx(), event("a"), engine.Claimed)
				wantErr(t, early.Join(), nil)
				wantErr(t, look(late.Tx()), driver.ErrPartOutdated)
				wantErr(t, late.Tx().Put([]byte("other"), nil), driver.ErrPartOutdated)
				wantErr(t, late.Join(), driver.ErrPartOutdated)
			})
			wantKept(t, e, map[string]string{"other": "absent"})
		})
	}
}

type txSummaries struct{ ended [][]engine.VerdictCounts }

func (*txSummaries) Claiming(context.Context, []engine.Event) func([]engine.Result) { return nil }

func (*txSummaries) Synced(time.Duration, int) {}

func (o *txSummaries) Updating(context.Context) engine.TxObserver {
	return engine.TxObserver{Ended: func(judged []engine.VerdictCounts, _ bool, _ error) {
		o.ended = append(o.ended, slices.Clone(judged))
	}}
}

func TestVerdictsOfDiscardedPartsCountAsUndone(t *testing.T) {
	var o txSummaries
	e, _ := openMem(t, engine.Options{Observer: &o})
	update(t, e, func(tx *engine.Tx) {
		joined, discarded := begin(t, tx), begin(t, tx)
		wantTx(t, joined.Tx(), event("joined"), engine.Claimed)
		wantTx(t, discarded.Tx(), event("discarded"), engine.Claimed)
		wantErr(t, errors.Join(joined.Join(), discarded.Discard()), nil)
	})
	if len(o.ended) != 1 || len(o.ended[0]) != 1 {
		t.Fatalf("%+v", o.ended)
	}
	if j := o.ended[0][0]; j.Kept[engine.Claimed] != 1 || j.Undone[engine.Claimed] != 1 {
		t.Errorf("%+v", j)
	}
	if s, err := e.Stats(); err != nil || s.Verdicts[engine.Claimed] != 1 || s.Attempts[engine.Claimed] != 2 {
		t.Error(s.Verdicts, s.Attempts, err)
	}
}

// Verdicts of parts that are open when the transaction ends, or that end after it was lost, are
// attempts like all others.
func TestVerdictsOfAbandonedPartsCountAsUndone(t *testing.T) {
	for name, fn := range map[string]func(e *engine.Engine, tx *engine.Tx, p driver.SubTx) error{
		"open": func(*engine.Engine, *engine.Tx, driver.SubTx) error { return errBoom },
		"lost": func(e *engine.Engine, tx *engine.Tx, p driver.SubTx) error {
			err := e.Update(ctx, func(tx *engine.Tx) error { return tx.Put([]byte("k"), nil) })
			_, _, lost := tx.Get([]byte("k"))
			return errors.Join(err, lost, p.Join())
		},
	} {
		t.Run(name, func(t *testing.T) {
			var o txSummaries
			e, _ := openMem(t, engine.Options{Observer: &o})
			err := e.Update(ctx, func(tx *engine.Tx) error {
				p := begin(t, tx)
				wantTx(t, p.Tx(), event("a"), engine.Claimed)
				return fn(e, tx, p)
			})
			if err == nil {
				t.Error("it was committed")
			}
			undone := 0
			for _, judged := range o.ended {
				for _, j := range judged {
					undone += j.Undone[engine.Claimed]
				}
			}
			if n := stats(t, e).Attempts[engine.Claimed]; undone != 1 || n != 1 {
				t.Errorf("%d verdicts were undone, of %d attempts; want 1 of 1", undone, n)
			}
		})
	}
}

func TestPartsThatAddToOneKeyAreJoinedSideBySide(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	key := []byte("k")
	update(t, e, func(tx *engine.Tx) {
		first, second, big := begin(t, tx), begin(t, tx), begin(t, tx)
		wantErr(t, first.Tx().Add(key, 1), nil)
		wantErr(t, second.Tx().Add(key, 2), nil)
		wantErr(t, big.Tx().Add(key, math.MaxInt64), nil)
		wantErr(t, errors.Join(first.Join(), second.Join()), nil)
		var blamed *engine.AddError
		if err := big.Join(); !errors.As(err, &blamed) || !blamed.Overflow {
			t.Error(err)
		}
		reader := begin(t, tx)
		wantGet(t, reader.Tx(), "k", string(engine.EncodeInt64(3)))
		wantErr(t, reader.Tx().Add(key, 4), nil)
		wantGet(t, reader.Tx(), "k", string(engine.EncodeInt64(7)))
		wantErr(t, reader.Join(), nil)
	})
	wantKept(t, e, map[string]string{"k": string(engine.EncodeInt64(7))})
}
