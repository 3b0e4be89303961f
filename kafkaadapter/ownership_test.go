package kafkaadapter

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
)

// wantRefused fails the test unless err says that the adapter owns what was to be changed.
func wantRefused(t *testing.T, what string, err error) {
	t.Helper()
	if refused := (*engine.ArgumentError)(nil); !errors.As(err, &refused) || !strings.Contains(err.Error(), "package kafkaadapter") {
		t.Errorf("%s: %v", what, err)
	}
}

// A handler cannot move the offset of another partition of the group: its records would be lost, or
// handled again, after the next start.
func TestHandlerCannotMoveAnOffsetOfItsGroup(t *testing.T) {
	r := newRig(t, 2)
	var moved, deleted error
	m := r.start(t, r.work(1, func(_ context.Context, tx *engine.Tx, rec *Record) error {
		if rec.Partition == 1 {
			return Transient(errHandler)
		}
		moved = tx.SetOffset(r.position(1), engine.Offset{Next: 1, LeaderEpoch: -1, TopicID: r.TopicID(t, r.topic)})
		deleted = tx.DeleteOffset(r.position(0))
		return tx.SetOffset(engine.OffsetKey{Group: "another", Topic: r.topic}, engine.Offset{Next: 9})
	}))
	r.send(t, 1, "b", "c")
	r.untilHandled(t, 1)
	r.send(t, 0, "a")
	r.untilStored(t, 0, 1)
	m.stop(t)
	wantRefused(t, "SetOffset", moved)
	wantRefused(t, "DeleteOffset", deleted)
	m = r.start(t, r.work(1, nil))
	r.untilStored(t, 1, 2)
	m.stop(t)
	r.checkOnce(t, "a", "b", "c")
	if err := r.eng.Update(t.Context(), func(tx *engine.Tx) error { return tx.DeleteOffset(r.position(1)) }); err != nil {
		t.Errorf("without a consumer: %v", err)
	}
}

// The holds of the partitions that a consumer reads are its own.
func TestHoldOfAPartitionIsTheConsumers(t *testing.T) {
	r := newRig(t, 1)
	name := holdName(r.position(0))
	var errs [2]error
	m := r.start(t, r.work(1, func(_ context.Context, tx *engine.Tx, rec *Record) error {
		errs = [2]error{tx.ReleaseHold(name), tx.SetHold(name, time.Now().AddDate(1, 0, 0))}
		return tx.SetHold("kafka/mine", time.Now())
	}))
	r.send(t, 0, "a")
	r.untilStored(t, 0, 1)
	wantRefused(t, "Tx.ReleaseHold", errs[0])
	wantRefused(t, "Tx.SetHold", errs[1])
	wantRefused(t, "Engine.ReleaseHold", r.eng.ReleaseHold(t.Context(), name))
	wantRefused(t, "Engine.SetHold", r.eng.SetHold(t.Context(), name, time.Now().AddDate(1, 0, 0)))
	if plan, err := r.eng.Retention().PlanScopeDrop(t.Context(), r.group, name); err != nil {
		t.Error(err)
	} else {
		_, err = r.eng.Retention().DropScope(t.Context(), plan)
		wantRefused(t, "DropScope", err)
	}
	if n := len(r.eng.Holds()); n != 2 {
		t.Errorf("%d holds", n)
	}
	m.stop(t)
	if err := r.eng.ReleaseHold(t.Context(), name); err != nil {
		t.Errorf("without a consumer: %v", err)
	}
}

// A handler that judges its event once more gets an error. The verdict Duplicate would have it omit
// every event.
func TestHandlerCannotClaimItsEvent(t *testing.T) {
	for name, calls := range map[string]func(*engine.Tx, engine.Event) error{
		"TryClaim":   func(tx *engine.Tx, ev engine.Event) error { _, err := tx.TryClaim(ev); return err },
		"TryReopen":  func(tx *engine.Tx, ev engine.Event) error { _, err := tx.TryReopen(ev, 1); return err },
		"DeadLetter": func(tx *engine.Tx, ev engine.Event) error { _, err := tx.DeadLetter(ev); return err },
		"Unclaim":    func(tx *engine.Tx, ev engine.Event) error { return driver.Unclaim(tx, ev, engine.ClaimRecord{}) },
		"a part": func(tx *engine.Tx, ev engine.Event) error {
			part, err := driver.BeginSubTx(tx)
			if err != nil {
				return err
			}
			_, err = part.Tx().TryClaim(ev)
			return errors.Join(err, part.Join())
		},
	} {
		for in, change := range map[string]func(*Options, Transactional){
			"in order": func(*Options, Transactional) {},
			"parallel": func(o *Options, _ Transactional) { o.Routes[0].Concurrency.handlers = 2 },
			"together": func(o *Options, one Transactional) {
				o.Routes[0].Mode = Transactional{MaxAttempts: 1, HandleBatch: func(ctx context.Context, tx *engine.Tx, recs []*Record) error {
					for _, rec := range recs {
						if err := one.Handle(ctx, tx, rec); err != nil {
							return err
						}
					}
					return nil
				}}
			},
		} {
			if name == "a part" && in == "parallel" {
				continue // a part has no parts
			}
			t.Run(name+" "+in, func(t *testing.T) {
				r := newRig(t, 1)
				var mu sync.Mutex
				var errs []error
				one := r.work(1, func(_ context.Context, tx *engine.Tx, rec *Record) error {
					if _, err := tx.TryClaim(engine.Event{Scope: "another", ID: rec.Event.ID, Time: rec.Event.Time, Origin: rec.Event.Origin}); err != nil {
						return err
					}
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, calls(tx, rec.Event))
					return nil
				})
				r.send(t, 0, "a", "b")
				m := r.start(t, one, func(o *Options) { change(o, one) })
				r.untilStored(t, 0, 2)
				m.stop(t)
				mu.Lock()
				defer mu.Unlock()
				for _, err := range errs {
					wantRefused(t, name, err)
				}
				if len(errs) < 2 {
					t.Errorf("%d calls", len(errs))
				}
				r.checkOnce(t, "a", "b")
			})
		}
	}
}

// A handler cannot go back to a savepoint that it took for an earlier record: that one's work would be
// undone although the offset passes it.
func TestHandlerCannotUndoAnEarlierRecord(t *testing.T) {
	r := newRig(t, 1)
	var before engine.Savepoint
	var err error
	r.send(t, 0, "a", "b", "c")
	m := r.start(t, r.work(1, func(_ context.Context, tx *engine.Tx, rec *Record) error {
		switch string(rec.Event.ID) {
		case "a":
			before, err = tx.Savepoint()
			return errors.Join(err, count(tx, "a again"))
		case "b":
			own, err := tx.Savepoint()
			if err := errors.Join(err, count(tx, "b again"), tx.RollbackTo(own)); err != nil {
				return err
			}
		case "c":
			err = tx.RollbackTo(before)
		}
		return nil
	}))
	r.untilStored(t, 0, 3)
	m.stop(t)
	wantRefused(t, "RollbackTo", err)
	r.checkOnce(t, "a", "a again", "b", "c")
	if r.effects(t, "b again") > 0 {
		t.Error("the handler's own savepoint does not count")
	}
}
