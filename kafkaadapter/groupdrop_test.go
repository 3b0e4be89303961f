package kafkaadapter

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/owner"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// keysOf returns the adapter's keys that name a group, and those of its scopes.
func (r *rig) keysOf(t *testing.T, group string) (keys []string) {
	t.Helper()
	for kv, err := range r.eng.Scan(t.Context(), engine.Range{Prefix: []byte(KeyPrefix)}) {
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(kv.Key), string(appendText(nil, group))) || string(kv.Value) == group {
			keys = append(keys, string(kv.Key))
		}
	}
	return keys
}

// neighbourOf writes the data of a group whose name has the other group's name as a prefix.
func neighbourOf(tx *engine.Tx, group string) error {
	p := engine.OffsetKey{Group: group, Topic: "t"}
	return errors.Join(tx.SetOffset(p, engine.Offset{Next: 1}), tx.SetHold(holdName(p), time.Now()), own(tx).Put(scopeKey(group), []byte(group)),
		own(tx).Put(partitionKey(keyOwner, p), encodeOwner(owner.Record{})),
		own(tx).Put(partitionKey(keyFirst, p), encodeShape(resume.Topic{})), own(tx).Put(partitionKey(keyAdoption, p), []byte{1}))
}

func TestAGroupThatIsGoneIsDropped(t *testing.T) {
	onEachStore(t, func(t *testing.T, s newStore) {
		r := newRigOn(t, s, 2)
		other := r.group + "-2"
		if err := r.eng.Update(t.Context(), func(tx *engine.Tx) error { return neighbourOf(tx, other) }); err != nil {
			t.Fatal(err)
		}
		r.send(t, 0, "a", "b")
		latest := func(o *Options) { o.Routes[0].Start = Latest }
		m := r.start(t, r.work(2, nil))
		r.untilStored(t, 0, 2)
		kafkatest.Until(t, "both partitions to be held", func() bool { return len(r.eng.Holds()) == 3 })
		m.stop(t)
		more := engine.OffsetKey{Group: r.group, Topic: r.topic, Partition: 1}
		err := r.eng.Update(t.Context(), func(tx *engine.Tx) error { // data of other modes and faults
			return errors.Join(own(tx).Put(partitionKey(keyShape, more), encodeShape(resume.Topic{})), own(tx).Put(partitionKey(keyFirst, more), encodeShape(resume.Topic{})))
		})
		if err != nil {
			t.Fatal(err)
		}

		plan := r.planned(t)
		if len(plan.Offsets) == 0 || len(plan.Holds) != 2 || len(plan.Scopes) != 1 || plan.Notes != 4 || plan.Unpublished != 0 {
			t.Fatalf("%+v", plan)
		}
		before := r.keysOf(t, other)
		if len(r.keysOf(t, r.group)) != 5 || len(before) != 4 {
			t.Fatalf("%q, %q", r.keysOf(t, r.group), before)
		}
		sent, err := json.Marshal(plan)
		if err != nil {
			t.Fatal(err)
		}
		var got GroupDropPlan
		if err := json.Unmarshal(sent, &got); err != nil {
			t.Fatal(err)
		}
		for range 2 { // a second drop does nothing
			if err := DropGroup(t.Context(), r.eng, got); err != nil {
				t.Fatal(err)
			}
			if keys := r.keysOf(t, r.group); len(keys) != 0 {
				t.Errorf("%q are left", keys)
			}
		}
		if plan := r.planned(t); !plan.isEmpty() {
			t.Errorf("%+v is left", plan)
		}
		_, found, err := r.eng.Admin().Offset(t.Context(), engine.OffsetKey{Group: other, Topic: "t"})
		if keys := r.keysOf(t, other); !slices.Equal(keys, before) || !found || err != nil || len(r.eng.Holds()) != 1 {
			t.Errorf("of the other group there are %q, offset %v, %v, holds %v", keys, found, err, r.eng.Holds())
		}

		// A consumer of the group that starts again begins nowhere by itself, and existing claims
		// count once it has a policy.
		m = r.start(t, r.work(2, nil), latest)
		if stop := m.stoppedOne(t); !errors.Is(stop, ErrEmptyStore) {
			t.Errorf("the group that starts again: %v", stop)
		}
		m.cancel()
		kafkatest.Receive(t, m.done)
		m = r.start(t, r.work(2, nil), func(o *Options) { o.Recovery = Recovery{ErrEmptyStore: StartOver} })
		r.send(t, 0, "c")
		r.untilStored(t, 0, 3)
		m.stop(t)
		if ids := r.handledIDs(); !slices.Equal(ids, []string{"a", "b", "c"}) {
			t.Errorf("%q were handled", ids)
		}
	})
}

func (r *rig) planned(t *testing.T) GroupDropPlan {
	t.Helper()
	plan, err := PlanGroupDrop(t.Context(), r.eng, r.group)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// An outdated plan, or one with unpublished dead letters, drops nothing.
func TestAGroupThatIsNotAsPlannedIsNotDropped(t *testing.T) {
	onEachStore(t, func(t *testing.T, s newStore) {
		r := newRigOn(t, s, 1)
		p := r.position(0)
		write := func(fn func(tx *engine.Tx) error) {
			t.Helper()
			if err := r.eng.Update(t.Context(), fn); err != nil {
				t.Fatal(err)
			}
		}
		write(func(tx *engine.Tx) error { return neighbourOf(tx, r.group) })
		letters := []*kgo.Record{{Topic: "dlt", Value: []byte("poison")}}
		for name, change := range map[string]func(tx *engine.Tx) error{
			"an offset": func(tx *engine.Tx) error { return tx.SetOffset(p, engine.Offset{Next: 8}) },
			"a hold":    func(tx *engine.Tx) error { return tx.SetHold(holdName(p), time.Now()) },
			"a scope":   func(tx *engine.Tx) error { return own(tx).Put(scopeKey("next"), []byte(r.group)) },
			"a note":    func(tx *engine.Tx) error { return own(tx).Put(partitionKey(keyShape, p), encodeShape(resume.Topic{})) },
			"a letter":  func(tx *engine.Tx) error { _, err := deadletter.Put(tx, letterKey(p), letters); return err },
		} {
			plan := r.planned(t)
			if name == "a hold" { // this one belongs to a partition with an offset
				write(func(tx *engine.Tx) error { return tx.SetOffset(p, engine.Offset{Next: 7}) })
				plan = r.planned(t)
			}
			write(change)
			if err := DropGroup(t.Context(), r.eng, plan); !errors.Is(err, engine.ErrPlanOutdated) {
				t.Errorf("%s has come: %v", name, err)
			}
		}
		before := fmt.Sprint(r.planned(t))
		if err := DropGroup(t.Context(), r.eng, r.planned(t)); !errors.Is(err, ErrUnpublished) {
			t.Errorf("with a dead letter: %v", err)
		}
		if now := fmt.Sprint(r.planned(t)); now != before {
			t.Errorf("%s, before %s", now, before)
		}
	})
}

// A consumer becomes the owner of a partition after the owners were read, and before the group is
// dropped.
func TestAGroupThatStartsMeanwhileIsNotDropped(t *testing.T) {
	r := &rig{group: "g"}
	r.open(t, storetest.NewMem(storage.Identity{}))
	if err := r.eng.Update(t.Context(), func(tx *engine.Tx) error { return neighbourOf(tx, r.group) }); err != nil {
		t.Fatal(err)
	}
	plan := r.planned(t)
	var scans atomic.Int32
	r.mem.Before(storetest.OpScanState, func(int) error {
		if scans.Add(1) != 2 { // the second one is for attempts
			return nil
		}
		return r.eng.Update(t.Context(), func(tx *engine.Tx) error {
			return own(tx).Put(partitionKey(keyOwner, engine.OffsetKey{Group: r.group, Topic: "another"}), encodeOwner(owner.Record{}))
		})
	})
	if err := DropGroup(t.Context(), r.eng, plan); !errors.Is(err, engine.ErrPlanOutdated) {
		t.Errorf("a consumer has started: %v", err)
	}
	if now := r.planned(t); now.Notes != plan.Notes+1 || len(now.Offsets) != 1 {
		t.Errorf("%+v, before %+v", now, plan)
	}
}
