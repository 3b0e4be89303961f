package kafkaadapter

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/weekbucket"
)

// A producer that has not set a time sends an event again, and the record gets a new timestamp.
func TestCopyInTheNextWeekIsADuplicate(t *testing.T) {
	r := newRig(t, 1)
	week, err := weekbucket.Of(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	at := func(id string, d time.Duration) *kgo.Record {
		rec := r.event(0, id)
		rec.Timestamp = week.Start().Add(d)
		return rec
	}
	sent := r.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner())).ProduceSync(t.Context(),
		at("a", -time.Minute), at("a", time.Minute), at("b", time.Minute), at("b", -time.Minute))
	if err := sent.FirstErr(); err != nil {
		t.Fatal(err)
	}
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 4)
	m.stop(t)
	if ids := r.handledIDs(); !slices.Equal(ids, []string{"a", "b"}) {
		t.Errorf("handled are %q", ids)
	}
}
