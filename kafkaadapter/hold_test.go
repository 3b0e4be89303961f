package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/weekbucket"
)

// heldWeek returns the week that a partition's hold keeps; false if there is no hold.
func (r *rig) heldWeek(t *testing.T, partition int32) (weekbucket.Week, bool) {
	t.Helper()
	for _, h := range r.eng.Holds() {
		if h.Name == fmt.Sprintf("kafka/%s/%s/%d", r.group, r.topic, partition) {
			return weekOf(t, h.At), true
		}
	}
	return 0, false
}

func weekOf(t *testing.T, at time.Time) weekbucket.Week {
	t.Helper()
	w, err := weekbucket.Of(at)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// lagging starts a consumer with a backlog of two records: one, of three weeks ago, is handled, and
// the next one blocks.
func lagging(t *testing.T) (r *rig, m *member, old time.Time, release chan struct{}) {
	t.Helper()
	r = newRig(t, 1)
	old = time.Now().AddDate(0, 0, -21)
	r.Produce(t, r.dated("a", old), r.dated("b", time.Now()), r.dated("c", time.Now()))
	mode, began, release, _ := r.stuck("b")
	m = r.start(t, mode, func(o *Options) { o.MaxBatch, o.Routes[0].allowedLateness = 1, time.Hour })
	kafkatest.Receive(t, began)
	return r, m, old, release
}

func TestLaggingPartitionHoldsExpiryBack(t *testing.T) {
	r, m, old, release := lagging(t)
	if w, ok := r.heldWeek(t, 0); !ok || w != weekOf(t, old.Add(-time.Hour)) {
		t.Errorf("week %v is held, %v; the partition's low mark is %v", w, ok, old)
	}
	if age := m.metric(t, "hold_age_seconds", "0"); age < 20*24*3600 {
		t.Errorf("hold_age_seconds is %v", age)
	}
	kafkatest.Until(t, "the lag to be reported as 2", func() bool { return m.metric(t, "lag_records", "0") == 2 })
	_, err := r.eng.Retention().DropWeek(context.Background(), weekOf(t, old))
	if !errors.Is(err, engine.ErrHeld) {
		t.Errorf("the week of the low mark may be dropped: %v", err)
	}
	close(release)
	r.untilStored(t, 0, 3)
	m.stop(t)
}

func TestCaughtUpPartitionHoldsNothingBack(t *testing.T) {
	r, m, old, release := lagging(t)
	close(release)
	r.untilStored(t, 0, 3)
	kafkatest.Until(t, "the hold to move", func() bool {
		w, ok := r.heldWeek(t, 0)
		return ok && w >= weekOf(t, time.Now().Add(-2*time.Hour))
	})
	kafkatest.Until(t, "the metric to move", func() bool { return m.metric(t, "hold_age_seconds", "0") < 15*24*3600 })
	if _, err := r.eng.Retention().DropWeek(context.Background(), weekOf(t, old)); errors.Is(err, engine.ErrHeld) {
		t.Errorf("a caught up partition holds back: %v", err)
	}
	m.stop(t)
}

func TestPartitionWithoutRecordsHoldsNothingBack(t *testing.T) {
	r := newRig(t, 1)
	m := r.start(t, r.work(1, nil))
	kafkatest.Until(t, "the hold to move", func() bool {
		w, ok := r.heldWeek(t, 0)
		return ok && w >= weekOf(t, time.Now().Add(-8*24*time.Hour))
	})
	m.stop(t)
}

// The hold remains, so that no week is dropped that unread records need, and the next run begins
// with it.
func TestHoldRemainsAfterTheConsumer(t *testing.T) {
	r, m, _, release := lagging(t)
	held, _ := r.heldWeek(t, 0)
	p := m.parts.get(topicPartition{r.topic, 0})
	go m.cancel()
	kafkatest.Receive(t, p.ending.Done())
	p.cancel(ErrFenced) // b is not handled
	close(release)
	kafkatest.Receive(t, m.done)
	if w, ok := r.heldWeek(t, 0); !ok || w != held {
		t.Errorf("week %v is held, %v; while it ran %v", w, ok, held)
	}
	mode, began, release, _ := r.stuck("b")
	m = r.start(t, mode)
	kafkatest.Receive(t, began)
	if w, ok := r.heldWeek(t, 0); !ok || w != held {
		t.Errorf("in the next run week %v is held, %v; before %v", w, ok, held)
	}
	close(release)
	m.stop(t)
}

func TestNewPartitionHoldsEverythingUntilItsFirstBatch(t *testing.T) {
	r := newRig(t, 1)
	r.Produce(t, r.dated("a", time.Now()), r.dated("b", time.Now()))
	mode, began, release, _ := r.stuck("a")
	m := r.start(t, mode, func(o *Options) { o.MaxBatch = 1 })
	kafkatest.Receive(t, began)
	if w, ok := r.heldWeek(t, 0); !ok || w != r.eng.Retention().OldestWeek() {
		t.Errorf("week %v is held, %v, the oldest is %v", w, ok, r.eng.Retention().OldestWeek())
	}
	close(release)
	r.untilStored(t, 0, 2)
	m.stop(t)
}

func TestControlRecordsCountAsCaughtUp(t *testing.T) {
	r := newRig(t, 1)
	r.ProduceTx(t, true, r.dated("a", time.Now().AddDate(0, 0, -21)))
	r.ProduceTx(t, false, []*kgo.Record{r.event(0, "no")}...)
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 4)
	kafkatest.Until(t, "the hold to move", func() bool {
		w, ok := r.heldWeek(t, 0)
		return ok && w >= weekOf(t, time.Now().Add(-8*24*time.Hour))
	})
	kafkatest.Until(t, "the lag to be reported as 0", func() bool { return m.metric(t, "lag_records", "0") == 0 })
	m.stop(t)
}

func TestHoldsCanBePlacedWhereNothingExpires(t *testing.T) {
	eng := openMem(t, storetest.NewMem(storage.Identity{}), engine.Options{RetentionWeeks: engine.KeepAll})
	for _, at := range []time.Time{eng.Retention().OldestWeek().Start(), {}, time.Date(1, 1, 3, 0, 0, 0, 0, time.UTC).Add(-7 * 24 * time.Hour)} {
		if err := eng.SetHold(t.Context(), "h", holdable(at)); err != nil {
			t.Errorf("%v: %v", at, err)
		}
	}
}

// The holds of a group that is no longer used are released with its scope; its offsets remain.
func TestHoldsOfAGroupThatIsGoneAreGivenBack(t *testing.T) {
	r := newRig(t, 2)
	r.Produce(t, r.dated("a", time.Now().AddDate(0, 0, -7)))
	other := engine.OffsetKey{Group: r.group + "/" + r.topic, Topic: "other", Partition: 0}
	long := engine.OffsetKey{Group: strings.Repeat("g", 200), Topic: strings.Repeat("t", 200), Partition: 3}
	err := r.eng.Update(t.Context(), func(tx *engine.Tx) error {
		var errs []error
		for _, p := range []engine.OffsetKey{other, long} {
			errs = append(errs, tx.SetOffset(p, engine.Offset{Next: 1}), tx.SetHold(holdName(p), time.Now()))
		}
		return errors.Join(append(errs, tx.SetOffset(engine.OffsetKey{Group: r.group, Topic: "without a hold"}, engine.Offset{Next: 1}))...)
	})
	if err != nil {
		t.Fatal(err)
	}
	m := r.start(t, r.work(2, nil))
	r.untilStored(t, 0, 1)
	kafkatest.Until(t, "both partitions to be held", func() bool { return len(r.eng.Holds()) == 4 })
	m.stop(t)

	names, err := HoldNames(t.Context(), r.eng, r.group)
	want := []string{fmt.Sprintf("kafka/%s/%s/0", r.group, r.topic), fmt.Sprintf("kafka/%s/%s/1", r.group, r.topic)}
	if err != nil || !slices.Equal(names, want) {
		t.Fatalf("%q, %v; want %q", names, err, want)
	}
	if got, err := HoldNames(t.Context(), r.eng, long.Group); err != nil || len(got) != 1 || got[0] != holdName(long) {
		t.Errorf("%q, %v", got, err)
	}
	plan, err := r.eng.Retention().PlanScopeDrop(t.Context(), r.group, names...)
	if err != nil || len(plan.Weeks) != 1 || plan.Weeks[0].Claims != 1 || len(plan.Holds) != 2 {
		t.Fatalf("%+v, %v", plan, err)
	}
	if _, err := r.eng.Retention().DropScope(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	if holds := r.eng.Holds(); len(holds) != 2 {
		t.Error(holds)
	}
	if o, found, err := r.eng.Admin().Offset(t.Context(), r.position(0)); err != nil || !found || o.Next != 1 {
		t.Errorf("offset %v %v %v", o, found, err)
	}
}

// The engine drops the weeks of a missed night when the holds of the consumer are complete. A
// partition that stopped before it was taken over has none yet, and may need any week.
func TestHoldsAreCompleteWhenAllPartitionsAreTakenOver(t *testing.T) {
	r := newRig(t, 2)
	r.send(t, 0, "a")
	r.send(t, 1, "b")
	r.Commit(t, r.group, r.offset(1, 1, "")) // the store has no offset for it
	m := r.start(t, r.work(1, nil))
	if e := m.stoppedOne(t); !errors.Is(e, ErrEmptyStore) {
		t.Fatalf("stopped: %v", e)
	}
	r.untilStored(t, 0, 1)
	if names, complete := m.store.holds(); complete || len(names) != 2 {
		t.Errorf("%q are complete: %v", names, complete)
	}
	if err := m.AdoptOffset(t.Context(), r.topic, 1, StartOver, "test"); err != nil {
		t.Fatal(err)
	}
	r.untilStored(t, 1, 1)
	names, complete := m.store.holds()
	if held := r.eng.HoldsOf(names...); !complete || len(held) != 2 {
		t.Errorf("%q are complete: %v; the store has %v", names, complete, held)
	}
	m.stop(t)
}
