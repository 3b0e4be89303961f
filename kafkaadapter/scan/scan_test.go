package scan

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

var start = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// A topic is one of a test's broker.
type topic struct {
	*kafkatest.Broker
	name string
}

func newTopic(t *testing.T) topic {
	b := kafkatest.Start(t, kafkatest.Options{})
	return topic{b, b.CreateTopic(t, 2, nil)}
}

// record returns a record with an id, sent some time after the start.
func (s topic) record(partition int32, id, value string, after time.Duration) *kgo.Record {
	r := &kgo.Record{Topic: s.name, Partition: partition, Value: []byte(value), Timestamp: start.Add(after)}
	if id != "" {
		r.Headers = []kgo.RecordHeader{{Key: "message_id", Value: []byte(id)}}
	}
	return r
}

func (s topic) options() Options {
	return Options{Client: s.ClientOptions(), Topic: s.name, Since: start, Quiet: time.Minute}
}

func (s topic) scan(t *testing.T, o Options) *Report {
	t.Helper()
	report, err := Run(t.Context(), storetest.NewMem(storage.Identity{}), o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestCopiesAreCounted(t *testing.T) {
	s := newTopic(t)
	s.Produce(t,
		s.record(0, "early", "1", -time.Hour), // before Since
		s.record(0, "a", "1", 0), s.record(0, "a", "1", 5*time.Second), s.record(0, "a", "other", 6*time.Second),
		s.record(0, "early", "1", 10*time.Second),
		s.record(0, "b", "1", 0), s.record(1, "b", "1", time.Hour),
		s.record(1, "", "1", 0), s.record(1, "", "1", 0),
		s.record(1, strings.Repeat("x", 2000), "1", 0), // the engine rejects the id
	)
	s.ProduceTx(t, false, s.record(1, "aborted", "1", 0))
	s.ProduceTx(t, true, s.record(1, "c", "1", 0))
	got := s.scan(t, s.options())
	if got.StoreBytes == 0 {
		t.Error("the size of the store is missing")
	}
	got.StoreBytes = 0
	end := s.Log(t, s.name, 1).End
	want := &Report{
		Topic: s.name, Since: start, Partitions: []Partition{{0, 1, 6, 6}, {1, 0, end, end}},
		Records: 10, Events: 4, Copies: 2, Crossing: 1, Mismatches: 1, WithoutID: 2, Unreadable: 1,
		IDRules: map[string]int64{"header": 8}, TimeRules: map[string]int64{"record": 8},
		Distances: Distances{Copies: 2, P50: 5055 * time.Millisecond, P99: time.Hour, Window: time.Hour, Max: time.Hour},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the report is\n%+v, want\n%+v", got, want)
	}
}

func TestRulesAndRecordsWithoutATimeAreCounted(t *testing.T) {
	s := newTopic(t)
	s.Produce(t, s.record(0, "", "id", 0), s.record(0, "", "none", 0), s.record(0, "", "bad", 0))
	o := s.options()
	o.Identify = identify.Rules{NoPosition: true, Payload: func(r *kgo.Record) ([]byte, time.Time, error) {
		switch string(r.Value) {
		case "id":
			return []byte("id"), start, nil
		case "bad":
			return nil, time.Time{}, errors.New("not readable")
		}
		return nil, time.Time{}, nil
	}}
	got := s.scan(t, o)
	if got.WithoutID != 1 || got.Unreadable != 1 || got.Events != 1 || got.IDRules["payload"] != 1 || got.TimeRules["payload"] != 1 {
		t.Errorf("the report is %+v", got)
	}
}

func TestNilIsNotAnEmptyValue(t *testing.T) {
	s := newTopic(t)
	tombstone := s.record(0, "a", "", 0)
	tombstone.Value = nil
	s.Produce(t, s.record(0, "a", "", 0), tombstone)
	if got := s.scan(t, s.options()); got.Mismatches != 1 || got.Copies != 0 {
		t.Errorf("the report is %+v", got)
	}
}

func TestSizeOfTheStoreIsBounded(t *testing.T) {
	s := newTopic(t)
	s.Produce(t, s.record(0, "a", "1", 0))
	o := s.options()
	o.MaxStoreBytes = 1
	if got := s.scan(t, o); !strings.Contains(got.Incomplete, "bound of 1 bytes") || got.Events != 1 {
		t.Errorf("the report is %+v", got)
	}
}

func TestScanThatIsEndedReportsWhatItHasRead(t *testing.T) {
	s := newTopic(t)
	s.Produce(t, s.record(0, "a", "1", 0))
	ctx, cancel := context.WithCancel(t.Context())
	o := s.options()
	o.Identify.Payload = func(*kgo.Record) ([]byte, time.Time, error) { cancel(); return nil, time.Time{}, nil }
	s.Produce(t, kafkatest.Records(s.name, 1, 2*mostRecords, 0)...)
	o.Since = start
	got, err := Run(ctx, storetest.NewMem(storage.Identity{}), o)
	if err != nil || !strings.Contains(got.Incomplete, "canceled") || got.Records == 0 || got.Partitions[0].Next == got.Partitions[0].End {
		t.Errorf("the report is %+v (%v)", got, err)
	}
}

func TestEmptyTopicIsRead(t *testing.T) {
	s := newTopic(t)
	if got := s.scan(t, s.options()); got.Records != 0 || got.Incomplete != "" || got.Distances != (Distances{}) {
		t.Errorf("the report is %+v", got)
	}
}

func TestTopicThatDoesNotExistIsAnError(t *testing.T) {
	s := newTopic(t)
	o := s.options()
	o.Topic = "no-" + s.name
	if got, err := Run(t.Context(), storetest.NewMem(storage.Identity{}), o); err == nil {
		t.Errorf("the report is %+v", got)
	}
}

func TestInvalidOptionsAreRejected(t *testing.T) {
	for name, o := range map[string]Options{
		"no topic": {Since: start},
		"no time":  {Topic: "t"},
		"quiet":    {Topic: "t", Since: start, Quiet: -1},
		"rules":    {Topic: "t", Since: start, Identify: identify.Rules{IDHeaders: []string{""}}},
	} {
		if _, err := Run(t.Context(), storetest.NewMem(storage.Identity{}), o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestDistancesAreRoundedUpALittle compares the histogram with sorted values.
func TestDistancesAreRoundedUpALittle(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var d distances
		var all []int64
		for range 1 + rnd.IntN(3000) {
			ms := rnd.Int64N(1 << (1 + rnd.IntN(42)))
			all = append(all, ms)
			d.add(ms)
		}
		slices.Sort(all)
		for _, part := range []float64{0.5, 0.99, 0.999, 1} {
			exact := all[max(0, int(float64(len(all))*part+0.9999999)-1)]
			got := d.covering(part).Milliseconds()
			if got < exact || float64(got) > 1.016*float64(exact)+1 {
				t.Fatalf("%v of %d values are within %d, want %d", part, len(all), got, exact)
			}
		}
		if d.figures().Max.Milliseconds() != all[len(all)-1] {
			t.Fatal("the maximum is not exact")
		}
	}
	for b := range len(distances{}.counts) {
		if bucketOf(most(b)) != b || b > 0 && bucketOf(most(b-1)+1) != b {
			t.Fatalf("bucket %d ends at %d", b, most(b))
		}
	}
}
