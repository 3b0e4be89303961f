package seen_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/bolt"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
	"github.com/hapax-dev/hapax/kafkaadapter/seen"
)

var ctx = context.Background()

func open(t *testing.T, store storage.Store) *engine.Engine {
	t.Helper()
	eng, err := engine.Open(store, engine.Options{ExpectedPerWeek: 1000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() })
	return eng
}

func filter(t *testing.T, eng *engine.Engine, o seen.Options) *seen.Filter {
	t.Helper()
	if o.Scope == "" {
		o.Scope = "alerts"
	}
	f, err := seen.New(eng, o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// record returns a record whose message_id is id; "" for none.
func record(offset int64, id string) *kgo.Record {
	r := &kgo.Record{Topic: "alerts", Offset: offset, Timestamp: time.Now()}
	if id != "" {
		r.Headers = []kgo.RecordHeader{{Key: "message_id", Value: []byte(id)}}
	}
	return r
}

// fetch returns a poll with records that have these ids.
func fetch(ids ...string) kgo.Fetches {
	p := kgo.FetchPartition{}
	for i, id := range ids {
		p.Records = append(p.Records, record(int64(i), id))
	}
	return kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: "alerts", TopicID: [16]byte{1}, Partitions: []kgo.FetchPartition{p}}}}}
}

// wantUnseen checks the offsets of the returned records.
func wantUnseen(t *testing.T, f *seen.Filter, fetches kgo.Fetches, want ...int64) {
	t.Helper()
	records, err := f.Unseen(ctx, fetches)
	if err != nil {
		t.Error(err)
	}
	got := []int64{}
	for _, r := range records {
		got = append(got, r.Offset)
	}
	if !slices.Equal(got, append([]int64{}, want...)) {
		t.Errorf("offsets %v, want %v", got, want)
	}
}

func TestEachEventIsReturnedOnce(t *testing.T) {
	for name, store := range map[string]func(t *testing.T) storage.Store{
		"memory": func(*testing.T) storage.Store { return storetest.NewMem(storage.Identity{}) },
		"bbolt": func(t *testing.T) storage.Store {
			s, err := bolt.Open(filepath.Join(t.TempDir(), "claims"), bolt.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			eng := open(t, store(t))
			f := filter(t, eng, seen.Options{})
			wantUnseen(t, f, fetch("a", "b", "a", "", "c"), 0, 1, 3, 4)
			wantUnseen(t, f, fetch("d", "b", "a", "", "c"), 0)
			wantUnseen(t, f, kgo.Fetches{})
			wantUnseen(t, filter(t, eng, seen.Options{Scope: "others"}), fetch("a"), 0)
		})
	}
}

func TestClaimReturnsAResultForEachRecord(t *testing.T) {
	f := filter(t, open(t, storetest.NewMem(storage.Identity{})), seen.Options{Identify: identify.Rules{NoPosition: true}})
	claims, err := f.Claim(ctx, fetch("a", "", "a"))
	if err != nil || len(claims) != 3 {
		t.Fatal(claims, err)
	}
	if c := claims[0]; !c.Result.IsClaimed() || c.Err() != nil {
		t.Errorf("%+v", c.Result)
	}
	if c := claims[1]; c.Result.Verdict != engine.Failed || !errors.Is(c.Err(), identify.ErrNoID) || !strings.Contains(c.Err().Error(), "alerts/0@1") {
		t.Errorf("%+v, %v", c.Result, c.Err())
	}
	if c := claims[2]; c.Result.Verdict != engine.Duplicate || c.Err() != nil || c.Result.Record.Origin.Offset != 0 || c.Record.Offset != 2 {
		t.Errorf("%+v", c.Result)
	}
}

func TestReleasedEventsAreReturnedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := storetest.NewMem(storage.Identity{})
		f := filter(t, open(t, m), seen.Options{})
		wantUnseen(t, f, fetch("a"), 0)
		claims, err := f.Claim(ctx, fetch("a", "b", "c"))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := f.Release(ctx, claims[:2]); err != nil { // a is a duplicate: its claim remains
				t.Error(err)
			}
		}
		wantUnseen(t, filter(t, open(t, m.CrashClone(0)), seen.Options{}), fetch("a", "b", "c"), 1)
		time.Sleep(time.Millisecond)
		wantUnseen(t, f, fetch("a", "b", "c"), 1)
		if err := f.Release(ctx, claims); err != nil { // b was claimed by another call since
			t.Error(err)
		}
		wantUnseen(t, f, fetch("a", "b", "c"), 2)
	})
}

// A caller that decrypts a header in place, or forwards the record, still releases what it claimed.
func TestReleaseIgnoresWhatTheCallerDidToTheRecord(t *testing.T) {
	f := filter(t, open(t, storetest.NewMem(storage.Identity{})), seen.Options{})
	claims, err := f.Claim(ctx, fetch("a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	changed := claims[0].Record
	changed.Headers[0].Value[0], changed.Topic, changed.Offset = 'b', "elsewhere", -1
	if err := f.Release(ctx, claims[:1]); err != nil {
		t.Fatal(err)
	}
	wantUnseen(t, f, fetch("a", "b"), 0)
}

func TestManyReleases(t *testing.T) {
	f := filter(t, open(t, storetest.NewMem(storage.Identity{})), seen.Options{})
	ids := make([]string, 10_000)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	claims, err := f.Claim(ctx, fetch(ids...))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Release(ctx, claims); err != nil {
		t.Fatal(err)
	}
	if records, err := f.Unseen(ctx, fetch(ids...)); err != nil || len(records) != len(ids) {
		t.Errorf("%d records, %v", len(records), err)
	}
}

// An event that a transaction holds is neither new nor a duplicate.
func TestAnErrorReleasesTheOtherClaims(t *testing.T) {
	eng := open(t, storetest.NewMem(storage.Identity{}))
	f := filter(t, eng, seen.Options{})
	fetches := fetch("a", "held", "b")
	err := eng.Update(ctx, func(tx *engine.Tx) error {
		res, err := tx.TryClaim(engine.Event{Scope: "alerts", ID: []byte("held"), Time: time.Now(), Origin: engine.Origin{Topic: "t"}})
		if !res.IsClaimed() || err != nil {
			t.Errorf("%v, %v", res, err)
		}
		if records, err := f.Unseen(ctx, fetches); err == nil || len(records) > 0 || !strings.Contains(err.Error(), "in_flight") {
			t.Errorf("%v, %v", records, err)
		}
		return errors.New("roll back")
	})
	if err == nil {
		t.Fatal("the transaction committed")
	}
	wantUnseen(t, f, fetches, 0, 1, 2)
}

func TestRecordsThatCannotBeJudged(t *testing.T) {
	eng := open(t, storetest.NewMem(storage.Identity{}))
	fetches := fetch("a", "old", "new", "", strings.Repeat("x", 2000))
	fetches[0].Topics[0].Partitions[0].Records[1].Timestamp = time.Now().Add(-365 * 24 * time.Hour)
	fetches[0].Topics[0].Partitions[0].Records[2].Timestamp = time.Now().Add(365 * 24 * time.Hour)
	rules := identify.Rules{NoPosition: true}
	if records, err := filter(t, eng, seen.Options{Identify: rules}).Unseen(ctx, fetches); err == nil || len(records) > 0 {
		t.Errorf("%v, %v", records, err)
	}
	var rejected []int64
	f := filter(t, eng, seen.Options{Identify: rules, Reject: func(c seen.Claim) { rejected = append(rejected, c.Record.Offset) }})
	wantUnseen(t, f, fetches, 0)
	if !slices.Equal(rejected, []int64{1, 2, 3, 4}) {
		t.Errorf("rejected: %v", rejected)
	}
	f = filter(t, eng, seen.Options{Reject: func(c seen.Claim) { t.Error(c.Err()) }})
	fetches = fetch("b", "")
	fetches[0].Topics[0].TopicID = [16]byte{} // its topic id may be known at the next poll
	if _, err := f.Unseen(ctx, fetches); !errors.Is(err, identify.ErrNoTopicID) {
		t.Error(err)
	}
}

func TestStoreFailure(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	f := filter(t, open(t, m), seen.Options{Reject: func(c seen.Claim) { t.Error(c.Err()) }})
	m.Crash()
	if records, err := f.Unseen(ctx, fetch("a")); err == nil || len(records) > 0 {
		t.Errorf("%v, %v", records, err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	f = filter(t, open(t, storetest.NewMem(storage.Identity{})), seen.Options{})
	if records, err := f.Unseen(canceled, fetch("a")); !errors.Is(err, context.Canceled) || len(records) > 0 {
		t.Errorf("%v, %v", records, err)
	}
}

func TestAWindowEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := filter(t, open(t, storetest.NewMem(storage.Identity{})), seen.Options{Window: time.Hour})
		wantUnseen(t, f, fetch("a"), 0)
		time.Sleep(time.Hour - time.Millisecond)
		wantUnseen(t, f, fetch("a"))
		time.Sleep(time.Millisecond)
		wantUnseen(t, f, fetch("a"), 0)
	})
}

func TestAWindowNeedsNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := filter(t, open(t, storetest.NewMem(storage.Identity{})), seen.Options{Window: time.Hour})
		first, copies := fetch("a"), fetch("a", "a", "a")
		sent := first[0].Topics[0].Partitions[0].Records[0].Timestamp
		recs := copies[0].Topics[0].Partitions[0].Records
		recs[0].Timestamp = sent.AddDate(0, 0, -9)
		recs[1].Timestamp = time.UnixMilli(-1) // none
		recs[2].Headers = append(recs[2].Headers, kgo.RecordHeader{Key: "ce_time", Value: []byte("1999-01-01T00:00:00Z")})
		wantUnseen(t, f, first, 0)
		wantUnseen(t, f, copies)
		time.Sleep(8 * 24 * time.Hour) // an outage
		late := fetch("a", "a")
		recs = late[0].Topics[0].Partitions[0].Records
		recs[0].Timestamp = sent.Add(5 * time.Second)
		recs[1].Timestamp = sent.Add(time.Hour)
		wantUnseen(t, f, late, 1)
	})
}

func TestRacersGetEachEventOnce(t *testing.T) {
	f := filter(t, open(t, storetest.NewMem(storage.Identity{})), seen.Options{})
	ids := make([]string, 500)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	var racers sync.WaitGroup
	var mu sync.Mutex
	times := map[int64]int{}
	for range 50 {
		racers.Go(func() {
			records, err := f.Unseen(ctx, fetch(ids...))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, r := range records {
				times[r.Offset]++
			}
		})
	}
	racers.Wait()
	for offset, n := range times {
		if n != 1 {
			t.Errorf("offset %d was returned %d times", offset, n)
		}
	}
	if len(times) != len(ids) {
		t.Errorf("%d of %d events were returned", len(times), len(ids))
	}
}

// The power fails before each write and each sync of an Unseen, and after it; events that it
// returned are not returned again.
func TestReturnedEventsAreNotReturnedAgainAfterAPowerFailure(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	f := filter(t, open(t, m), seen.Options{})
	var after []*storetest.Mem
	for _, op := range []storetest.Op{storetest.OpApply, storetest.OpWait} {
		m.Before(op, func(int) error {
			after = append(after, m.CrashClone(0), m.CrashClone(1))
			return nil
		})
	}
	wantUnseen(t, f, fetch("a", "b"), 0, 1)
	if len(after) < 4 {
		t.Fatalf("%d power cuts", len(after))
	}
	// the process died before Unseen returned: each event is new, or was claimed and not returned
	for _, cut := range after {
		records, err := filter(t, open(t, cut), seen.Options{}).Unseen(ctx, fetch("a", "b"))
		if err != nil || len(records) == 1 {
			t.Errorf("%d records, %v", len(records), err)
		}
	}
	wantUnseen(t, filter(t, open(t, m.CrashClone(0)), seen.Options{}), fetch("a", "b"))
}

// Each of 300 records is sent twice; after 100 records the consumer restarts from the beginning,
// without its offsets.
func TestConsumerOfABroker(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 3, nil)
	var records []*kgo.Record
	for i := range 600 {
		records = append(records, &kgo.Record{
			Topic: topic, Partition: int32(i % 3), Value: fmt.Append(nil, i%300),
			Headers: []kgo.RecordHeader{{Key: "message_id", Value: fmt.Append(nil, i%300)}},
		})
	}
	b.Produce(t, records...)
	f := filter(t, open(t, storetest.NewMem(storage.Identity{})), seen.Options{})
	times := map[string]int{}
	for _, until := range []int{100, 600} {
		client := b.Client(t, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		for polled := 0; polled < until; {
			deadline, cancel := context.WithTimeout(ctx, time.Minute)
			fetches := client.PollRecords(deadline, 50)
			cancel()
			if err := fetches.Err(); err != nil {
				t.Fatal(err)
			}
			polled += fetches.NumRecords()
			fresh, err := f.Unseen(ctx, fetches)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range fresh {
				times[string(r.Value)]++
			}
		}
		client.Close()
	}
	for value, n := range times {
		if n != 1 {
			t.Errorf("%s was returned %d times", value, n)
		}
	}
	if len(times) != 300 {
		t.Errorf("%d events were returned", len(times))
	}
}

func TestOptionsAreChecked(t *testing.T) {
	eng := open(t, storetest.NewMem(storage.Identity{}))
	for name, o := range map[string]seen.Options{
		"no scope": {},
		"window":   {Scope: "s", Window: -1},
		"longest":  {Scope: "s", Window: 1000 * time.Hour},
		"rules":    {Scope: "s", Identify: identify.Rules{IDHeaders: []string{""}}},
	} {
		if _, err := seen.New(eng, o); err == nil {
			t.Error(name)
		}
	}
	if _, err := seen.New(nil, seen.Options{Scope: "s"}); err == nil {
		t.Error("no engine")
	}
}
