package outbox

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/zeebo/xxh3"

	"github.com/hapax-dev/hapax/internal/entry"
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
