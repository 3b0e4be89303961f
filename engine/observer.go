package engine

import (
	"context"
	"sync"
	"time"
)

// An Observer receives the events of the engine, for metrics and traces; package telemetry has one
// for Prometheus and OpenTelemetry. The engine calls its methods synchronously from many
// goroutines: they must return at once and not call the engine.
type Observer interface {
	// Claiming is called before TryClaim, TryClaimBatch (for each 8,192 events) or StartClaimBatch
	// judges its events. If the returned function is not nil, it is called with their results, in
	// the same order; for a started batch ClaimBatch.Wait calls it. The events are valid until
	// then. Neither function may change the slices or keep them after that.
	Claiming(ctx context.Context, events []Event) (done func(results []Result))

	// Updating is called before each run of a transaction's closure, also after a conflict, with
	// the context of Update.
	Updating(ctx context.Context) TxObserver

	// Synced is called when a batch of the store has become durable, with the time that took and
	// the number of its claims.
	Synced(took time.Duration, claims int)
}

// A TxObserver follows one run of a transaction's closure. A nil function is not called.
type TxObserver struct {
	// Claiming is called before the transaction judges an event. If the returned function is not
	// nil, it is called with the result. Set Claiming only for spans that are recorded: it has a
	// cost for each event, Ended alone almost none.
	Claiming func(ev Event) (done func(Result))

	// Ended is called once, after the run was committed or rolled back. judged has the verdicts of
	// the run, in order: an element for each sequence of events with the same scope, topic and
	// partition. Ended must not keep the slice. committed reports whether the run's claims and
	// writes are durable. err is the error of the run; it is nil if the run was committed, and also
	// if the closure panicked.
	Ended func(judged []VerdictCounts, committed bool, err error)
}

// VerdictCounts counts the verdicts of a transaction on events of one scope, topic and partition.
// Both arrays are indexed by Verdict.
type VerdictCounts struct {
	Scope     string
	Topic     string
	Partition int32
	// Kept counts the verdicts that hold if the transaction committed.
	Kept [len(Verdicts) + 1]int
	// Undone counts the verdicts that were rolled back to a savepoint.
	Undone [len(Verdicts) + 1]int
}

// An observation collects the data for a transaction's observer during one run of its closure. It
// is guarded by the transaction's lock. A nil observation observes nothing.
type observation struct {
	TxObserver TxObserver
	verdicts   []observed
	judged     []VerdictCounts // sequences of verdicts; the counts are set at the end
}

type observed struct {
	stretch int32
	verdict Verdict
	undone  bool
}

// observations recycles observations.
type observations struct{ spare sync.Pool }

// begin returns the observation of a new run, nil if there is nothing to observe. o may be nil.
func (p *observations) begin(ctx context.Context, o Observer) *observation {
	if o == nil {
		return nil
	}
	run := o.Updating(ctx)
	if run.Claiming == nil && run.Ended == nil {
		return nil
	}
	s := p.get()
	s.TxObserver = run
	return s
}

func (p *observations) get() *observation {
	if s, ok := p.spare.Get().(*observation); ok {
		return s
	}
	return &observation{}
}

// begin must be called before an event is judged; done, if not nil, with the result.
func (s *observation) begin(ev *Event) (done func(Result)) {
	if s == nil || s.TxObserver.Claiming == nil {
		return nil
	}
	return s.TxObserver.Claiming(*ev)
}

func (s *observation) note(ev *Event, v Verdict) {
	if s == nil {
		return
	}
	s.add(ev.Scope, ev.Origin.Topic, ev.Origin.Partition, observed{verdict: v})
}

func (s *observation) add(scope, topic string, partition int32, v observed) {
	n := len(s.judged)
	if n == 0 || s.judged[n-1].Partition != partition || s.judged[n-1].Scope != scope || s.judged[n-1].Topic != topic {
		s.judged = append(s.judged, VerdictCounts{Scope: scope, Topic: topic, Partition: partition})
		n++
	}
	v.stretch = int32(n - 1)
	s.verdicts = append(s.verdicts, v)
}

// forPart returns an observation for a part of the transaction.
func (s *observation) forPart(p *observations) *observation {
	if s == nil {
		return nil
	}
	part := p.get()
	part.TxObserver.Claiming = s.TxObserver.Claiming
	return part
}

// join adds the verdicts of a part, as undone ones if the part was not joined.
func (s *observation) join(part *observation, joined bool) {
	if s == nil {
		return
	}
	for _, v := range part.verdicts {
		v.undone = v.undone || !joined
		j := &part.judged[v.stretch]
		s.add(j.Scope, j.Topic, j.Partition, v)
	}
}

// mark returns the number of verdicts so far.
func (s *observation) mark() int {
	if s == nil {
		return 0
	}
	return len(s.verdicts)
}

// undo marks the verdicts from index from on as undone.
func (s *observation) undo(from int) {
	if s == nil {
		return
	}
	for i := range s.verdicts[from:] {
		s.verdicts[from+i].undone = true
	}
}

// end reports to the observer and recycles s. The transaction has ended.
func (s *observation) end(p *observations, err error, committed bool) {
	if s == nil {
		return
	}
	if s.TxObserver.Ended != nil {
		for _, v := range s.verdicts {
			j := &s.judged[v.stretch]
			if v.undone {
				j.Undone[v.verdict]++
			} else {
				j.Kept[v.verdict]++
			}
		}
		s.TxObserver.Ended(s.judged, committed, err)
	}
	s.free(p)
}

// free recycles s.
func (s *observation) free(p *observations) {
	if s == nil {
		return
	}
	clear(s.judged)
	s.TxObserver, s.verdicts, s.judged = TxObserver{}, s.verdicts[:0], s.judged[:0]
	p.spare.Put(s)
}
