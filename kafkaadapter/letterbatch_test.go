package kafkaadapter

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// old returns n events of a year ago.
func (r *rig) old(n int) []*kgo.Record {
	recs := make([]*kgo.Record, n)
	for i := range recs {
		recs[i] = r.dated(fmt.Sprintf("old%d", i), time.Now().AddDate(-1, 0, 0))
	}
	return recs
}

// originalOffsets returns the offsets that dead letters contain, in order.
func originalOffsets(letters []*kgo.Record) (all []int) {
	for _, l := range letters {
		n, _ := strconv.Atoi(values(l)["hapax_dlt_original_offset"])
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}

// A time of 0 means 1970: such a record is not merely acknowledged with a warning.
func TestRecordsOutOfTheWeeksAreDeadLettersByDefault(t *testing.T) {
	r := newRig(t, 1)
	r.Produce(t, r.event(0, "epoch", kgo.RecordHeader{Key: "event_time", Value: []byte("0")}), r.dated("new", time.Now().AddDate(1, 0, 0)))
	m := r.start(t, r.work(1, nil))
	got := r.letters(t, 2)
	m.stop(t)
	if values(got[0])["hapax_dlt_reason"] != "too_old" || values(got[1])["hapax_dlt_reason"] != "too_new" || len(r.handled()) > 0 {
		t.Errorf("letters %v, handled %v", got, r.handled())
	}
}

// The letters of a batch are one entry of the store: after a crash, all of them are published, and
// no record is skipped.
func TestLettersOfABatchSurviveACrashTogether(t *testing.T) {
	r := newRig(t, 1)
	r.DeleteTopic(t, r.topic+"-dlt")
	recs := r.old(20)
	recs = append(recs[:10:10], append([]*kgo.Record{r.event(0, "a")}, recs[10:]...)...)
	r.Produce(t, recs...)
	m := r.start(t, r.work(1, nil))
	if e := m.stoppedOne(t); e.Reason != "dead_letter" {
		t.Fatal(e)
	}
	n := r.stored(t, 0)
	if n < 2 {
		t.Fatalf("the store is at %d: a batch contains only one letter", n)
	}
	m.stop(t)
	r.crash(t)
	r.CreateNamed(t, r.topic+"-dlt", 1, nil)
	m = r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 21)
	got := originalOffsets(r.letters(t, 20))
	m.stop(t)
	want := slices.Concat(numbers(0, 10), numbers(11, 21))
	if !slices.Equal(got, want) {
		t.Errorf("letters of %v, want %v", got, want)
	}
	r.checkOnce(t, "a")
	if r.get(t, append(letterKey(r.position(0)), 0, 0)) != nil {
		t.Error("letters are still in the store")
	}
}

func numbers(from, to int) (all []int) {
	for i := from; i < to; i++ {
		all = append(all, i)
	}
	return all
}

// BenchmarkOldTopic consumes a topic whose records are all dead letters.
func BenchmarkOldTopic(b *testing.B) {
	const n = 20_000
	for b.Loop() {
		b.StopTimer()
		r := newRig(b, 1)
		store, err := pebble.Open(b.TempDir(), pebble.Options{})
		if err != nil {
			b.Fatal(err)
		}
		if r.eng, err = engine.Open(store, engine.Options{}); err != nil {
			b.Fatal(err)
		}
		recs := r.old(n)
		c := r.Client(b)
		if err := c.ProduceSync(context.Background(), recs...).FirstErr(); err != nil {
			b.Fatal(err)
		}
		m := r.start(b, r.work(1, nil), func(o *Options) { o.Telemetry.Logger = slog.New(slog.DiscardHandler) })
		r.untilStored(b, 0, 1)
		b.StartTimer()
		r.untilStored(b, 0, n)
		kafkatest.Until(b, "dead letters", func() bool { return r.letterCount(b) == n })
		b.StopTimer()
		m.stop(b)
		if err := r.eng.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "letters/s")
}
