package bench

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

// A killOrder is what a process of a kill run is told. It claims until it is killed, or, if it is
// the last one, goes through everything once more.
//
// It says, for partition p and position n:
//
//	lost p n            an acknowledged event is absent
//	mismatch p n why    claim, counter and offset do not agree
//	checked p n         everything below n was looked at
//	offset p n          everything below n was committed, whether acknowledged or not
//	ready ms            the store was open after so many milliseconds, and all was looked at
//	ack p n cdc...      the verdicts of the events from n on: claimed, duplicate
type killOrder struct {
	Store StoreName
	Dir   string
	Mode  KillMode
	Log   killLog
	Parts []killPart
	Last  bool
	Fault killFault `json:",omitempty"`
}

// A killPart is what is known of a partition: all events below Told were acknowledged, or committed
// as its offset told; those below Checked were found by an earlier process.
type killPart struct{ Told, Checked uint64 }

// A killFault breaks a rule on purpose, so that a test can see the books notice.
type killFault string

const (
	ackEarly   killFault = "ack before the verdict"
	claimTwice killFault = "forget and claim again"
	claimApart killFault = "claim outside the transaction"
)

const (
	maxChunk    = 64  // events judged at once
	maxRewind   = 200 // events that are sent again after a restart
	killGroup   = "kill"
	checkAhead  = 2 * maxChunk // events beyond the offset that are looked at: none of them may be half there
	faultPause  = time.Millisecond
	maxAttempts = 10_000
)

// A killRun is a process of a kill run.
type killRun struct {
	killOrder
	e   *opened
	say *voice
}

func killChild(order []byte, say *voice) error {
	r := killRun{say: say}
	if err := json.Unmarshal(order, &r.killOrder); err != nil {
		return err
	}
	r.Log.nameScopes()
	start := time.Now()
	e, err := openEngine(r.Store, r.Dir, false, r.Log.options())
	if err != nil {
		return err
	}
	r.e = e
	open := time.Since(start)
	if err := r.check(); err != nil {
		return err
	}
	say.line("ready %d", open.Milliseconds())
	if err := r.claim(); err != nil {
		return err
	}
	if err := r.checkWhole(); err != nil {
		return err
	}
	return e.Close()
}

// claim runs a consumer for each partition. It returns only if one fails or if this is the last
// process.
func (r *killRun) claim() error {
	errs := make([]error, len(r.Parts))
	var all sync.WaitGroup
	for p := range r.Parts {
		all.Go(func() {
			if errs[p] = r.consume(p); errs[p] != nil {
				r.say.line("fail partition %d: %s", p, errs[p])
			}
		})
	}
	all.Wait()
	return several(errs...)
}

// checkWhole looks at everything once more, when all has been sent twice.
func (r *killRun) checkWhole() error {
	for p := range r.Parts {
		r.Parts[p].Checked = 0
	}
	if err := r.check(); err != nil {
		return err
	}
	report, err := r.e.Verify(context.Background())
	if err == nil && report.Total > 0 {
		err = fmt.Errorf("%d problems in the store, the first is: %s", report.Total, report.Problems[0])
	}
	return err
}

// consume sends the events of a partition from the first that has no answer yet, or from some
// before it.
func (r *killRun) consume(p int) error {
	at, end := r.Parts[p].Told, ^uint64(0)
	if r.Last {
		at, end = 0, at
	}
	if r.Mode == KillWork && !r.Last {
		next, err := r.offset(p)
		if err != nil {
			return err
		}
		r.say.line("offset %d %d", p, next)
		at = next
	}
	if !r.Last && rand.IntN(2) == 0 {
		at -= min(at, rand.Uint64N(maxRewind))
	}
	for at < end {
		n := min(1+rand.Uint64N(maxChunk), end-at)
		if rand.IntN(3) == 0 {
			n = 1
		}
		if err := r.send(p, at, n); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// send has n events judged and says what was told.
func (r *killRun) send(p int, at, n uint64) error {
	numbers := make([]uint64, n)
	events := make([]engine.Event, n)
	var arena []byte
	for i := range numbers {
		numbers[i] = r.Log.number(p, at+uint64(i))
		events[i], arena = r.Log.event(numbers[i], arena)
	}
	if r.Fault == ackEarly {
		r.say.line("ack %d %d %s", p, at, letters(make([]engine.Result, n)))
		time.Sleep(faultPause)
	}
	judge := r.sendOwn
	if r.Mode == KillWork {
		judge = func(events []engine.Event) ([]engine.Result, error) { return r.sendWork(p, at, numbers, events) }
	}
	results, err := judge(events)
	if err != nil {
		return err
	}
	if r.Fault == claimTwice {
		return r.sayTwice(p, at, events[0], results)
	}
	r.say.line("ack %d %d %s", p, at, letters(results))
	return nil
}

func (r *killRun) sendOwn(events []engine.Event) ([]engine.Result, error) {
	results, err := []engine.Result{{}}, error(nil)
	if len(events) == 1 {
		results[0], err = r.e.TryClaim(context.Background(), events[0])
	} else {
		results, err = r.e.TryClaimBatch(context.Background(), events)
	}
	if err != nil {
		return nil, err
	}
	return results, told(results)
}

// errNobodyYet says that another transaction holds an event of this one.
var errNobodyYet = errors.New("in flight")

// sendWork judges events, counts each that is claimed, and moves the offset, in one transaction. It
// tries again while it meets the transactions of other partitions.
func (r *killRun) sendWork(p int, at uint64, numbers []uint64, events []engine.Event) ([]engine.Result, error) {
	if r.Fault == claimApart {
		results, err := r.sendOwn(events)
		time.Sleep(faultPause)
		if err != nil {
			return nil, err
		}
		return results, r.e.Update(context.Background(), func(tx *engine.Tx) error {
			return r.record(tx, p, at, numbers, results)
		}, engine.Retries(maxAttempts))
	}
	results := make([]engine.Result, len(events))
	for attempt := 0; ; attempt++ {
		err := r.e.Update(context.Background(), func(tx *engine.Tx) (err error) {
			for i := range events {
				if results[i], err = tx.TryClaim(events[i]); err != nil {
					return err
				}
				if results[i].Verdict == engine.InFlight {
					return errNobodyYet
				}
			}
			return r.record(tx, p, at, numbers, results)
		})
		again := errors.Is(err, errNobodyYet) || errors.Is(err, engine.ErrConflict)
		if !again || attempt >= maxAttempts {
			return results, errors.Join(err, told(results))
		}
		time.Sleep(rand.N(time.Millisecond))
	}
}

// record counts what was claimed and moves the offset on; it never moves it back.
func (r *killRun) record(tx *engine.Tx, p int, at uint64, numbers []uint64, results []engine.Result) error {
	for i, n := range numbers {
		if results[i].Verdict != engine.Claimed {
			continue
		}
		count, err := counter(tx, n)
		if err != nil {
			return err
		}
		if err := tx.Put(counterKey(n), binary.AppendUvarint(nil, count+1)); err != nil {
			return err
		}
	}
	o, _, err := tx.Offset(position(p))
	if err != nil {
		return err
	}
	return tx.SetOffset(position(p), engine.Offset{Next: max(o.Next, int64(at)+int64(len(numbers)))})
}

func position(p int) engine.Position {
	return engine.Position{Group: killGroup, Topic: "bench", Partition: int32(p)}
}

func counterKey(n uint64) []byte { return binary.BigEndian.AppendUint64([]byte("count"), n) }

// counter is how often the work of an event was done.
func counter(tx *engine.Tx, n uint64) (uint64, error) {
	v, found, err := tx.Get(counterKey(n))
	if err != nil || !found {
		return 0, err
	}
	count, _ := binary.Uvarint(v)
	return count, nil
}

func (r *killRun) offset(p int) (uint64, error) {
	o, _, err := r.e.Offset(context.Background(), position(p))
	return uint64(o.Next), err
}

// told refuses every verdict but the two that can be.
func told(results []engine.Result) error {
	for i := range results {
		if v := results[i].Verdict; v != engine.Claimed && v != engine.Duplicate {
			return errors.Join(fmt.Errorf("an event was told %v", v), results[i].Err)
		}
	}
	return nil
}

// letters spells verdicts; none is spelled as a claim.
func letters(results []engine.Result) []byte {
	b := make([]byte, len(results))
	for i := range results {
		b[i] = 'c'
		if results[i].Verdict == engine.Duplicate {
			b[i] = 'd'
		}
	}
	return b
}

// sayTwice claims an event a second time behind the back of the books.
func (r *killRun) sayTwice(p int, at uint64, ev engine.Event, results []engine.Result) error {
	r.say.line("ack %d %d %s", p, at, letters(results))
	if _, err := r.e.Forget(context.Background(), ev.Scope, ev.ID, ev.Time); err != nil {
		return err
	}
	again, err := r.sendOwn([]engine.Event{ev})
	if err == nil {
		r.say.line("ack %d %d %s", p, at, letters(again))
	}
	return err
}
