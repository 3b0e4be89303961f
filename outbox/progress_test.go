package outbox

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/zeebo/xxh3"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/entry"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// A store that was restored from a backup assigns a key again to another message.
func TestListedEntryIsRemovedOnlyIfItIsTheSameMessage(t *testing.T) {
	r := newRig(t)
	r.produce("published", "another one with the same key")
	s := &connection{shared: r.relay(Options{}).shared, progress: &progress{}}
	if _, err := s.lease.take(ctx, r.eng); err != nil {
		t.Fatal(err)
	}
	if _, err := s.remove(ctx, []listed{
		{entry.ReadyKey(1), xxh3.HashString("published")},
		{entry.ReadyKey(2), xxh3.HashString("of the time after the backup")},
		{entry.ReadyKey(3), xxh3.HashString("removed before")},
	}); err != nil {
		t.Fatal(err)
	}
	left := entries(t, r.eng, entry.ReadyPrefix)
	if len(left) != 1 || left[0].ID != "another one with the same key" {
		t.Errorf("%+v", left)
	}
	if f, err := s.figures(ctx); f.pending != 1 || err != nil {
		t.Errorf("%+v %v", f, err)
	}
}

func TestListedEntriesCountAsSentOnceTheyAreRemoved(t *testing.T) {
	r := newRig(t)
	r.produce("published")
	s := &connection{shared: r.relay(Options{}).shared, progress: &progress{}}
	list := []listed{{entry.ReadyKey(1), xxh3.HashString("published")}}
	if _, err := s.lease.take(ctx, r.eng); err != nil {
		t.Fatal(err)
	}
	other := r.steal(r.clock.Now())
	if _, err := s.remove(ctx, list); !errors.Is(err, errLeaseLost) {
		t.Fatal(err)
	}
	if n := testutil.ToFloat64(s.metrics.sent); n != 0 {
		t.Errorf("%v messages were sent before one was removed", n)
	}
	r.clock.advance(other.ttl)
	if left, err := s.lease.take(ctx, r.eng); left != 0 || err != nil {
		t.Fatal(left, err)
	}
	if _, err := s.remove(ctx, list); err != nil {
		t.Fatal(err)
	}
	if n := testutil.ToFloat64(s.metrics.sent); n != 1 {
		t.Errorf("%v messages were sent, want 1", n)
	}
}

// After a backup was restored, the application has produced the same message again, and it was
// published again. Then the same backup was restored once more.
func TestEntryThatIsListedTwiceCountsOnce(t *testing.T) {
	r := newRig(t)
	r.produce("published", "another one")
	s := &connection{shared: r.relay(Options{}).shared, progress: &progress{}}
	if _, err := s.lease.take(ctx, r.eng); err != nil {
		t.Fatal(err)
	}
	l := listed{entry.ReadyKey(1), xxh3.HashString("published")}
	if removed, err := s.remove(ctx, []listed{l, l}); removed != 1 || err != nil {
		t.Errorf("%d were removed, %v", removed, err)
	}
	if f, err := s.figures(ctx); f.pending != 1 || err != nil {
		t.Errorf("%+v %v", f, err)
	}
}

func FuzzProgress(f *testing.F) {
	p := &progress{topic: "progress", store: "store"}
	f.Add(p.record([]*item{{Entry: entry.Entry{ID: "a"}, key: []byte("r1")}, {Entry: entry.Entry{ID: "b"}, key: []byte("d22")}}, start).Value)
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, err := parseProgress(b)
		if err != nil {
			if !errors.Is(err, ErrProgressTopic) {
				t.Error(err)
			}
			return
		}
		if len(entries) > len(b) {
			t.Errorf("%d entries in %d bytes", len(entries), len(b))
		}
	})
}

// The store has the entries that were published since the backup from which it was restored: more
// than one transaction may remove.
func TestAnyNumberOfListedEntriesIsRemoved(t *testing.T) {
	r := newRig(t)
	const n = 2*removeMost + 1
	list := r.backlog(n)
	s := r.session(r.relay(Options{ExactlyOnce: exactlyOnce}))
	before := r.mem.Calls(storetest.OpApply)
	if removed, err := s.remove(ctx, list); removed != n || err != nil {
		t.Fatal(removed, err)
	}
	if batches := r.mem.Calls(storetest.OpApply) - before; batches != 3 {
		t.Errorf("%d entries were removed in %d transactions of at most %d", n, batches, removeMost)
	}
	if f, err := s.figures(ctx); f.pending != 0 || err != nil {
		t.Errorf("%+v %v", f, err)
	}
}

// backlog produces messages and returns how records of progress list them.
func (r *rig) backlog(n int) (list []listed) {
	r.t.Helper()
	messages := ids("m", n)
	for part := range slices.Chunk(messages, 1000) {
		r.produce(part...)
	}
	for i, id := range messages {
		list = append(list, listed{entry.ReadyKey(uint64(i + 1)), xxh3.HashString(id)})
	}
	return list
}

// A process that dies while it removes what was published does not begin again: it has recorded how
// far it has read.
func TestRecoveryContinuesWhereTheLastOneEnded(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	o := modes(t, b)["exactly once"]
	o.Client = append(o.Client, kgo.FetchMaxPartitionBytes(1)) // one record at a time
	r := newRig(t)
	const records, each = 10, 3
	r.backlog(records * each)
	p := &progress{topic: o.ExactlyOnce.ProgressTopic, store: uuid.UUID(r.eng.Identity().UUID).String()}
	client := b.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for n := range records {
		var items []*item
		for i := n * each; i < (n+1)*each; i++ {
			items = append(items, &item{Entry: entry.Entry{ID: fmt.Sprint("m", i)}, key: entry.ReadyKey(uint64(i + 1))})
		}
		if err := client.ProduceSync(ctx, p.record(items, start).record(start)).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	attempt := func() (removed int, err error) {
		relay, err := New(r.eng, o)
		if err != nil {
			t.Fatal(err)
		}
		if left, err := relay.lease.take(ctx, r.eng); left > 0 || err != nil {
			t.Fatal(left, err)
		}
		c := &connection{shared: relay.shared}
		defer c.abandon()
		if removed, err = c.recover(ctx); err == nil {
			err = relay.lease.release(r.eng)
		}
		return removed, err
	}
	r.mem.FailAt(storetest.OpApply, 5, errBad) // the first one takes the lease
	if _, err := attempt(); err == nil {
		t.Fatal("the store did not fail")
	}
	r.eng = openEngine(t, r.mem.CrashClone(0), r.clock)
	if err := r.eng.Update(ctx, func(tx *engine.Tx) error { return tx.In(entry.Space).Delete(entry.LeaseKey) }); err != nil {
		t.Fatal(err)
	}
	remain := pending(t, r.eng)
	if remain == 0 || remain == records*each {
		t.Errorf("%d of %d messages remain", remain, records*each)
	}
	if _, found, err := r.eng.In(entry.Space).Get(ctx, entry.ProgressKey); !found || err != nil {
		t.Errorf("the store does not have how far was read: %v", err)
	}
	if removed, err := attempt(); removed != remain || err != nil {
		t.Errorf("%d of %d messages were removed, %v", removed, remain, err)
	}
	if n := pending(t, r.eng); n != 0 {
		t.Errorf("%d messages remain", n)
	}
}
