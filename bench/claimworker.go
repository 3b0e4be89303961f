package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/hapax-dev/hapax/bench/internal/callers"
	"github.com/hapax-dev/hapax/bench/internal/runner"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/engine"
)

// A claimWorker consumes a log without a broker, with a goroutine for each partition, until it is
// killed. It reports "ack" with the verdicts of some events of a partition.
type claimWorker struct {
	Store StoreName
	Dir   string
	Mode  Mode
	Log   traffic.Log
	From  []uint64 // by partition: the first event to send in mode own
	Batch int      // events of a call; 0: a random number, and after a restart some are sent again
	Fault fault
	Gate  runner.GateOrder

	e    *opened
	say  *runner.Voice
	gate *runner.Gate
	deal traffic.Deal
}

// Reached is a position of a partition, and the verdicts of the events from there on, a letter for
// each: claimed, duplicate.
type reached struct {
	Partition int
	At        uint64
	Verdicts  string
}

const (
	maxChunk    = 64  // events judged together
	maxRewind   = 200 // events that are sent again after a restart
	killGroup   = "kill"
	faultPause  = time.Millisecond
	maxAttempts = 10_000
)

// Do implements runner.Work.
func (w *claimWorker) Do(say *runner.Voice) (err error) {
	w.say, w.gate = say, runner.NewGate(w.Gate, say)
	w.deal = w.Log.Deal(len(w.From))
	if w.e, err = openEngine(w.Store, w.Dir, tuning{}, w.Log.Source.Options()); err != nil {
		return err
	}
	w.gate.Open(0)
	return callers.Together(len(w.From), func(p int) error {
		err := w.consume(p)
		if err != nil {
			err = fmt.Errorf("partition %d: %w", p, err)
			w.say.Fail(err) // other partitions may wait for the kill
		}
		return err
	})
}

// consume sends the events of a partition, starting with the first one without an answer or a few
// before it.
func (w *claimWorker) consume(p int) error {
	at, end := w.From[p], w.deal.Ends
	if w.Mode == Work {
		o, _, err := w.e.Engine.Admin().Offset(context.Background(), killPosition(p))
		if err != nil {
			return err
		}
		at = uint64(o.Next)
	}
	if w.Batch == 0 && rand.IntN(2) == 0 {
		at -= min(at, rand.Uint64N(maxRewind))
	}
	for at < end {
		n := uint64(w.Batch)
		if n == 0 {
			n = 1 + rand.Uint64N(maxChunk)
			if rand.IntN(3) == 0 {
				n = 1
			}
		}
		n = min(n, end-at)
		if err := w.send(p, at, n); err != nil {
			return err
		}
		at += n
	}
	w.gate.Pass(math.MaxInt) // more than planned: the kill comes
	select {}
}

// send judges n events and reports the verdicts.
func (w *claimWorker) send(p int, at, n uint64) error {
	numbers, events := w.deal.Events(p, at, n)
	if w.Fault == ackEarly {
		w.ack(p, at, make([]engine.Result, n))
		w.invite()
	}
	judge := w.sendOwn
	if w.Mode == Work {
		judge = func(events []engine.Event) ([]engine.Result, error) { return w.sendWork(p, at, numbers, events) }
	}
	results, err := judge(events)
	if err != nil {
		return err
	}
	w.ack(p, at, results)
	w.gate.Pass(len(events))
	if w.Fault == claimTwice {
		return w.claimAgain(p, at, events[0])
	}
	return nil
}

// invite prolongs the moment in which a kill shows the fault. At the point of the kill this moment
// does not end, so that at least the other partitions are in it.
func (w *claimWorker) invite() {
	time.Sleep(faultPause)
	w.gate.Hold()
}

// ack reports verdicts: "d" for Duplicate, "c" for all others.
func (w *claimWorker) ack(p int, at uint64, results []engine.Result) {
	letters := make([]byte, len(results))
	for i := range results {
		letters[i] = 'c'
		if results[i].Verdict == engine.Duplicate {
			letters[i] = 'd'
		}
	}
	w.say.Line("ack", reached{p, at, string(letters)})
}

func (w *claimWorker) sendOwn(events []engine.Event) ([]engine.Result, error) {
	if len(events) == 1 {
		res, err := w.e.Engine.TryClaim(context.Background(), events[0])
		return []engine.Result{res}, errors.Join(err, decided([]engine.Result{res}))
	}
	results, err := w.e.Engine.TryClaimBatch(context.Background(), events)
	return results, errors.Join(err, decided(results))
}

// errNobodyYet means that another transaction holds an event of this one.
var errNobodyYet = errors.New("in flight")

// sendWork judges events, counts each that is claimed, and moves the offset, in one transaction. It
// retries while it conflicts with the transactions of other partitions.
func (w *claimWorker) sendWork(p int, at uint64, numbers []uint64, events []engine.Event) ([]engine.Result, error) {
	if w.Fault == claimApart {
		results, err := w.sendOwn(events)
		if err != nil {
			return nil, err
		}
		w.invite()
		return results, w.e.Engine.Update(context.Background(), func(tx *engine.Tx) error {
			return w.record(tx, p, at, numbers, results)
		}, engine.Retries(maxAttempts))
	}
	results := make([]engine.Result, len(events))
	for attempt := 0; ; attempt++ {
		err := w.e.Engine.Update(context.Background(), func(tx *engine.Tx) (err error) {
			for i := range events {
				if results[i], err = tx.TryClaim(events[i]); err != nil {
					return err
				}
				if results[i].Verdict == engine.InFlight {
					return errNobodyYet
				}
			}
			return w.record(tx, p, at, numbers, results)
		})
		again := errors.Is(err, errNobodyYet) || errors.Is(err, engine.ErrConflict)
		if !again || attempt >= maxAttempts {
			return results, errors.Join(err, decided(results))
		}
		time.Sleep(rand.N(time.Millisecond))
	}
}

// record counts the claimed events and advances the offset; it never sets it back.
func (w *claimWorker) record(tx *engine.Tx, p int, at uint64, numbers []uint64, results []engine.Result) error {
	for i, n := range numbers {
		if results[i].Verdict != engine.Claimed {
			continue
		}
		if err := addToState(tx, int32(p), n); err != nil {
			return err
		}
	}
	position := killPosition(p)
	o, _, err := tx.Offset(position)
	if err != nil {
		return err
	}
	return tx.SetOffset(position, engine.Offset{Next: max(o.Next, int64(at)+int64(len(numbers)))})
}

func killPosition(p int) engine.OffsetKey {
	return engine.OffsetKey{Group: killGroup, Topic: traffic.Topic, Partition: int32(p)}
}

// decided rejects every verdict but the two possible ones.
func decided(results []engine.Result) error {
	for i := range results {
		if v := results[i].Verdict; v != engine.Claimed && v != engine.Duplicate {
			return errors.Join(fmt.Errorf("an event got the verdict %v", v), results[i].Err)
		}
	}
	return nil
}

// claimAgain claims an event a second time, as if it had never been claimed.
func (w *claimWorker) claimAgain(p int, at uint64, ev engine.Event) error {
	if _, err := w.e.Engine.Admin().Forget(context.Background(), ev.Scope, ev.ID, ev.Time); err != nil {
		return err
	}
	again, err := w.sendOwn([]engine.Event{ev})
	if err == nil {
		w.ack(p, at, again)
	}
	return err
}
