package kafkaadapter

import (
	"context"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// detached is a partition at offset 1 that this consumer owns and whose goroutine was not started.
func (r *rig) detached(t *testing.T) *worker {
	t.Helper()
	return r.detachedWith(t, r.work(2, nil))
}

func (r *rig) detachedWith(t *testing.T, mode Mode) *worker {
	t.Helper()
	c, err := New(r.eng, r.options(mode))
	if err != nil {
		t.Fatal(err)
	}
	c.shared.brokers = newClients(r.Client(t))
	v := &resume.Facts{End: 1}
	p := c.assign.newWorker(topicPartition{r.topic, 0}, nil, 0)
	p.partition.ends.report(time.Now(), 1, 1)
	t.Cleanup(func() { p.partition.cancel(nil) })
	err = r.eng.Update(context.Background(), func(tx *engine.Tx) error {
		return p.finder.occupy(tx, v, resume.Beginning{Offset: 1, Epoch: -1})
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// aged makes the last report on the partition's log old.
func (p *partition) aged() {
	p.ends.stableAt.Store(time.Now().Add(-time.Hour).UnixNano())
}

func TestIdleHoldStaysWhileUnreadRecordsWait(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "unread")
	p := r.detached(t)
	weeksAgo := time.Now().AddDate(0, 0, -28)
	p.partition.hold.set(weeksAgo)
	p.partition.aged()
	for _, step := range []string{"the log's end is old", "a record is unread"} {
		if err := p.moveIdleHold(); err != nil {
			t.Fatal(err)
		}
		if at := p.partition.hold.get(); !at.Equal(weeksAgo) {
			t.Errorf("%s: the hold moved to %v, past unread records", step, at)
		}
		p.partition.c.measure(t.Context(), []*partition{p.state.partition})
	}
	p.state.next = 2
	if err := p.moveIdleHold(); err != nil {
		t.Fatal(err)
	}
	if at := p.partition.hold.get(); at.Equal(weeksAgo) {
		t.Error("the hold did not move although all is read")
	}
}

func TestBatchFetchedLongAgoIsNotCaughtUp(t *testing.T) {
	r := newRig(t, 1)
	p := r.detached(t)
	p.partition.aged()
	weeksAgo := time.Now().AddDate(0, 0, -28)
	err := r.eng.Update(context.Background(), func(tx *engine.Tx) error {
		o := &batch{p: p.state, tx: tx, result: result{next: 1}, low: weeksAgo.UnixMilli()}
		err := o.moveHold()
		if at := o.holdAt; !at.IsZero() && at.After(weeksAgo) {
			t.Errorf("the hold moved to %v, past the batch's events", at)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
