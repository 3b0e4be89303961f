package kafkaadapter

import (
	"context"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
)

// filling is a handler that leaves no room for one event in the transaction.
func filling(id string) func(context.Context, *engine.Tx, *Record) error {
	return func(_ context.Context, tx *engine.Tx, rec *Record) error {
		if string(rec.Event.ID) != id {
			return nil
		}
		value := make([]byte, limits.ValueBytes)
		for i := 0; len(value) > 1; i++ {
			if tx.Put([]byte{'x', byte(i)}, value) != nil {
				value = value[:len(value)/2]
			}
		}
		return nil
	}
}

// A record whose handler leaves no room for the adapter's writes does not end Run, which would read
// the record again after each restart: its attempts fail.
func TestRecordThatFillsTheTransactionIsADeadLetter(t *testing.T) {
	fill := filling("big")
	for name, mode := range map[string]func(*rig) (Transactional, Concurrency){
		"one by one":   func(r *rig) (Transactional, Concurrency) { return r.work(2, fill), Concurrency{} },
		"side by side": func(r *rig) (Transactional, Concurrency) { return r.work(2, fill), Concurrency{handlers: 4} },
		"together": func(r *rig) (Transactional, Concurrency) {
			one := r.work(2, fill)
			return Transactional{MaxAttempts: 2, HandleBatch: func(ctx context.Context, tx *engine.Tx, recs []*Record) error {
				for _, rec := range recs {
					if err := one.Handle(ctx, tx, rec); err != nil {
						return err
					}
				}
				return nil
			}}, Concurrency{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.send(t, 0, "a", "big", "b")
			work, concurrency := mode(r)
			m := r.start(t, work, func(o *Options) { o.Routes[0].Concurrency = concurrency })
			r.untilStored(t, 0, 3)
			m.stop(t)
			r.checkOnce(t, "a", "b")
			if r.effects(t, "big") != 0 || r.letterCount(t) != 1 {
				t.Errorf("%d effects and %d dead letters of the record", r.effects(t, "big"), r.letterCount(t))
			}
		})
	}
}

// The same while another record of its batch is known to have failed: HandleBatch has named it before
// the transaction was found to be too full.
func TestRecordThatFillsTheTransactionBeforeOneThatFailed(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "big", "poison", "b")
	one := r.work(2, filling("big"))
	m := r.start(t, Transactional{MaxAttempts: 2, HandleBatch: func(ctx context.Context, tx *engine.Tx, recs []*Record) error {
		for i, rec := range recs {
			if string(rec.Event.ID) == "poison" {
				return FailedAt(i, errHandler)
			}
			if err := one.Handle(ctx, tx, rec); err != nil {
				return err
			}
		}
		return nil
	}})
	r.untilStored(t, 0, 3)
	m.stop(t)
	r.checkOnce(t, "b")
	if r.effects(t, "big") != 0 || r.letterCount(t) != 2 {
		t.Errorf("%d effects of the record, %d dead letters", r.effects(t, "big"), r.letterCount(t))
	}
}
