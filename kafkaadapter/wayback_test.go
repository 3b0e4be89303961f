package kafkaadapter

import (
	"context"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/owner"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// takenOver returns the partition as an assignment takes it over, without its goroutine.
func (r *rig) takenOver(t *testing.T, v *resume.Facts, b resume.Beginning) *worker {
	t.Helper()
	c, err := New(r.eng, r.options(r.work(2, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if v.Committed != nil {
		v.Committed.Metadata = authorOf(r.eng.Identity()).Metadata()
	}
	p := c.assign.newWorker(topicPartition{r.topic, 0}, (*brokers.Commit)(v.Committed), 0)
	t.Cleanup(func() { p.partition.cancel(nil) })
	if err := r.eng.Update(context.Background(), func(tx *engine.Tx) error { return p.finder.occupy(tx, v, b) }); err != nil {
		t.Fatal(err)
	}
	p.partition.offsets.begin(b, -1, authorOf(r.eng.Identity()).Metadata())
	return p
}

// leave writes to the store what an assignment that reached offset 100 would have left.
func (r *rig) leave(t *testing.T, tried owner.Attempts, held time.Time) {
	t.Helper()
	pos := r.position(0)
	err := r.eng.Update(context.Background(), func(tx *engine.Tx) error {
		if err := own(tx).Put(partitionKey(keyOwner, pos), encodeOwner(owner.Record{Tries: tried})); err != nil {
			return err
		}
		if err := tx.SetHold(holdName(pos), held); err != nil {
			return err
		}
		return tx.SetOffset(pos, engine.Offset{Next: 100, LeaderEpoch: -1})
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSettingTheOffsetBackResetsTheState(t *testing.T) {
	r := newRig(t, 1)
	recent := time.Now().AddDate(0, 0, -7)
	r.leave(t, owner.Attempts{N: 2}, recent)
	before := &resume.Facts{Store: &resume.Offset{Next: 100, LeaderEpoch: -1}, Committed: &resume.Commit{Offset: 100}, End: 10}
	p := r.takenOver(t, before, resume.Beginning{Epoch: -1, Way: resume.StartOver, Kind: ErrAboveLog})
	if p.partition.fence.Tries() != (owner.Attempts{}) || r.attemptsAt(t, 0) != (owner.Attempts{}) {
		t.Errorf("%+v: attempts at a record of the earlier log", p.partition.fence.Tries())
	}
	if at := p.partition.hold.get(); !at.Before(recent) {
		t.Errorf("weeks before %v may be dropped, although their records are read again", at)
	}
	if p.partition.offsets.isSigned() {
		t.Error("Kafka's commit is ahead of the store, and events are handled before it is moved: the next start would consider the store to have lost its end")
	}
}

func TestContinuedAssignmentKeepsAttemptsAndHold(t *testing.T) {
	r := newRig(t, 1)
	recent := time.Now().AddDate(0, 0, -7).Truncate(time.Second).UTC()
	r.leave(t, owner.Attempts{Offset: 100, N: 2}, recent)
	v := &resume.Facts{Store: &resume.Offset{Next: 100, LeaderEpoch: -1}, Committed: &resume.Commit{Offset: 90}, End: 200}
	p := r.takenOver(t, v, resume.Beginning{Offset: 100, Epoch: -1})
	if p.partition.fence.Tries() != (owner.Attempts{Offset: 100, N: 2}) || !p.partition.hold.get().Equal(recent) || !p.partition.offsets.isSigned() {
		t.Errorf("attempts %+v, hold %v, signed %v", p.partition.fence.Tries(), p.partition.hold.get(), p.partition.offsets.isSigned())
	}
}
