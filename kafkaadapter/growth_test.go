package kafkaadapter

import (
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

func looksOften(o *Options) { o.lagInterval = 20 * time.Millisecond }

// stoppedByGrowth fails the test unless n partitions stop because the topic has grown.
func (m *member) stoppedByGrowth(t testing.TB, n int) {
	t.Helper()
	stopped := make(map[int32]bool)
	for len(stopped) < n {
		e := m.stoppedOne(t)
		if !errors.Is(e, ErrPartitionsChanged) || e.Reason != "position" {
			t.Fatalf("stopped: %v", e)
		}
		stopped[e.Partition] = true
	}
	if !errors.Is(m.Ready(), ErrPartitionsChanged) {
		t.Errorf("ready: %v", m.Ready())
	}
}

// grown returns a fleet whose member has handled the event x in partition 0 of 2 before there were 3.
func grown(t testing.TB, change ...func(*Options)) (*fleet, *ship) {
	t.Helper()
	f := newFleet(t, 2)
	a := f.join(t, f.work(3, nil), vfs.NewMem(), change...)
	f.send(t, 0, "x")
	kafkatest.Until(t, "the event", func() bool { return len(f.handledIDs()) == 1 && a.Ready() == nil })
	f.addPartitions(t, 1)
	return f, a
}

// The partition that had the claim and the idle one stop, although no record comes.
func TestPartitionsAddedWhileAMemberReadsStopIt(t *testing.T) {
	f, a := grown(t, looksOften)
	a.stoppedByGrowth(t, 2)
	f.send(t, 1, "x")
	a.stop(t)
	if twice := f.twice(); len(twice) > 0 {
		t.Errorf("handled twice: %v", twice)
	}
}

// A copy that was sent after the change is not handled before the change is noticed.
func TestCopyInAnotherPartitionAfterGrowthIsNotHandled(t *testing.T) {
	f, a := grown(t, func(o *Options) { o.lagInterval = time.Hour })
	f.send(t, 1, "x")
	if e := a.stoppedOne(t); !errors.Is(e, ErrPartitionsChanged) || e.Partition != 1 {
		t.Errorf("stopped: %v", e)
	}
	a.stop(t)
	if twice := f.twice(); len(twice) > 0 {
		t.Errorf("handled twice: %v", twice)
	}
}

// The number is in the log: a member that has nothing else refuses another one, until the policy accepts it.
func TestGrownTopicIsReadOnceItsNumberIsAccepted(t *testing.T) {
	f, a := grown(t)
	a.stop(t)
	b := f.join(t, f.work(3, nil), vfs.NewMem())
	b.stoppedByGrowth(t, 2)
	b.stop(t)
	c := f.join(t, f.work(3, nil), vfs.NewMem(), acceptPartitions)
	f.send(t, 0, "x", "y")
	f.send(t, 2, "z")
	kafkatest.Until(t, "new events", func() bool { return len(f.handledIDs()) == 3 })
	c.stop(t)
	d := f.join(t, f.work(3, nil), vfs.NewMem()) // the number is stored
	f.send(t, 1, "w")
	kafkatest.Until(t, "a new event", func() bool { return len(f.handledIDs()) == 4 })
	d.stop(t)
	f.checkOnceEach(t, "w", "x", "y", "z")
}

func (f *fleet) checkOnceEach(t testing.TB, ids ...string) {
	t.Helper()
	if twice := f.twice(); len(twice) > 0 || len(f.handledIDs()) != len(ids) {
		t.Errorf("handled %v, want each of %v", f.handledIDs(), ids)
	}
}
