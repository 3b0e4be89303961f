package bench

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/bench/internal/topics"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// The books have to notice what a consumer loses and what it handles twice. One that does both on
// purpose would have to be wrong at the right moment; so these are right, and what they are given
// is crooked.
const (
	lostEvent  = 3 // the store has a claim on it that nobody handled: it is lost
	twiceEvent = 5 // is in the topic again as an event of the week before: it is handled twice
)

// crooked has a run over a topic of one partition on such a store; again puts twiceEvent into the
// topic again.
func crooked(t *testing.T, mode Mode, again bool, do func(k *kafkaRun) error) *KafkaReport {
	t.Helper()
	log := wholeLog(t, 300)
	log.Dup = 0.2
	r := &KafkaReport{}
	run := Common{Dir: filepath.Join(t.TempDir(), "run")}
	err := run.withLog(t.Context(), nil, log, 1, func(dir string, p *topics.Filled) error {
		if again {
			sendAgain(t, p)
		}
		r.Distinct = p.Distinct
		k := &kafkaRun{KafkaOptions: KafkaOptions{N: log.N, Partitions: 1, Mode: mode}, topic: p, dir: dir, report: r}
		plant(t, &k.newConsumer(adapterWork, dir, "plant").consumer, func(tx *engine.Tx) error {
			_, err := tx.TryClaim(eventOfLog(log, lostEvent))
			return err
		})
		return do(k)
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func sendAgain(t *testing.T, p *topics.Filled) {
	t.Helper()
	seq := p.Log.Begin()
	var rec *kgo.Record
	for seq.Distinct() <= twiceEvent {
		rec = seq.Record(p.Topic.Name)
	}
	for i := range rec.Headers {
		if rec.Headers[i].Key == traffic.TimeHeader {
			rec.Headers[i].Value = eventOfLog(p.Log, twiceEvent).Time.AddDate(0, 0, -7).AppendFormat(nil, "2006-01-02T15:04:05Z07:00")
		}
	}
	if err := p.Topic.Broker.Client.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
		t.Fatal(err)
	}
	p.Ends[0]++
}

// wantBooks checks what a report counts, and whether it says that it does not hold.
func wantBooks(t *testing.T, r *KafkaReport, lost, risk, twice, mismatches uint64, held bool) {
	t.Helper()
	if r.Handled != r.Distinct-lost || r.Lost != lost || r.AtRisk != risk || r.HandledTwice != twice || r.StateMismatch != mismatches {
		t.Errorf("%d of %d handled, %d lost, %d at risk, %d twice, %d mismatches; want %d lost, %d at risk, %d twice, %d mismatches",
			r.Handled, r.Distinct, r.Lost, r.AtRisk, r.HandledTwice, r.StateMismatch, lost, risk, twice, mismatches)
	}
	if err := r.broken(); (err == nil) != held || !held && !errors.Is(err, ErrNotHeld) {
		t.Errorf("judged as %v", err)
	}
}

func TestReportHoldsIfNothingIsLostBeyondTheRiskAndNothingElseIsWrong(t *testing.T) {
	for _, tt := range []struct {
		r    KafkaReport
		held bool
	}{
		{KafkaReport{}, true},
		{KafkaReport{Lost: 2, AtRisk: 2}, true},
		{KafkaReport{Lost: 3, AtRisk: 2}, false},
		{KafkaReport{HandledTwice: 1}, false},
		{KafkaReport{StateMismatch: 1}, false},
	} {
		if err := tt.r.broken(); (err == nil) != tt.held || !tt.held && !errors.Is(err, ErrNotHeld) {
			t.Errorf("%+v is judged as %v", tt.r, err)
		}
	}
}

// A consumer that is killed (SIGKILL) at random points loses nothing and handles nothing twice, on
// a real broker too.
func TestKilledConsumerKeepsItsPromise(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	for _, mode := range []Mode{Work, Own} {
		r, err := Kafka(t.Context(), KafkaOptions{Brokers: b.Addrs(), N: 20_000, Dup: 0.2, Partitions: 8, Mode: mode, Workload: Workload{Accounts: 50}, Kills: 3})
		if err != nil || r.Kills != 3 || r.HandledTwice+r.StateMismatch != 0 || r.Lost > r.AtRisk || mode == Work && r.Lost != 0 {
			t.Errorf("mode %s: %+v %v", mode, r, err)
		}
	}
}

func TestCommittedOffsetsBeforeTheWorkAreSeenToLose(t *testing.T) {
	t.Parallel()
	r, err := Kafka(t.Context(), KafkaOptions{N: 20_000, Dup: 0.2, Partitions: 3, Mode: Work, Workload: Workload{Accounts: 50}, Kills: 3, fault: commitFirst})
	if r.Lost == 0 || r.Kills != 3 || !errors.Is(err, ErrNotHeld) {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestBooksOfModeWork(t *testing.T) {
	t.Parallel()
	r := crooked(t, Work, true, func(k *kafkaRun) error { return k.consume(t.Context()) })
	wantBooks(t, r, 1, 0, 1, 1, false) // the claim of the lost event has no counter
	if r.firstWrong == "" {
		t.Error("the mismatch is not told")
	}
}

func TestBooksOfModeOwn(t *testing.T) {
	t.Parallel()
	own := func(k *kafkaRun) error { return k.consume(t.Context()) }
	wantBooks(t, crooked(t, Own, false, own), 1, 1, 0, 0, true) // it was at risk
	wantBooks(t, crooked(t, Own, true, own), 1, 1, 1, 1, false) // a handler too many has returned
	unclaimed := func(k *kafkaRun) error {
		c := k.newConsumer(adapterOwn, k.dir, "own")
		c.returned = 1
		return k.follow(t.Context(), c)
	}
	wantBooks(t, crooked(t, Own, false, unclaimed), 1, 0, 0, 0, false) // the claim's handler has returned, they say
}

func TestBooksAreKeptWithoutKillsToo(t *testing.T) {
	t.Parallel()
	all := func(k *kafkaRun) error { return k.all(t.Context()) }
	for mode, mismatches := range map[Mode]uint64{Own: 0, Work: 1} {
		r := crooked(t, mode, false, all)
		risk := 1 - mismatches
		wantBooks(t, r, 1, risk, 0, mismatches, risk == 1)
		if r.RecordsPerS == nil || r.RawRecordsPerS == nil || r.ClaimsPerS == nil || r.Ratio == nil {
			t.Errorf("mode %s has no rates", mode)
		}
	}
}

func TestRatesAreOfRunsThatHandleEachEventOnce(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{Own, Work} {
		crooked(t, mode, true, func(k *kafkaRun) error {
			if err := k.rates(t.Context()); !errors.Is(err, ErrNotHeld) {
				t.Errorf("mode %s: an event that is handled twice is told as %v", mode, err)
			}
			return nil
		})
	}
}

func TestBooksOfTheDemo(t *testing.T) {
	t.Parallel()
	crooked(t, Work, true, func(k *kafkaRun) error {
		d := demonstration{run: *k, tell: func(string) {}}
		table := DemoTable{Distinct: k.topic.Distinct}
		if _, err := d.consumer(t.Context(), adapterWork, &table); !errors.Is(err, ErrNotHeld) {
			t.Errorf("a mismatch is told as %v", err)
		}
		wantTable(t, adapterWork, &table, 1, 1)
		for kind, twice := range map[consumerKind]uint64{memorySet: 0, atLeastOnce: repeated(k.topic.Log)} {
			table := DemoTable{Distinct: k.topic.Distinct + 1} // one is not in the topic
			if _, err := d.consumer(t.Context(), kind, &table); err != nil {
				t.Error(err)
			}
			wantTable(t, kind, &table, 1, twice)
		}
		return nil
	})
	for _, table := range []DemoTable{{}, {Lost: 1}, {HandledTwice: 1}} {
		if err := (&DemoReport{DemoTable: table}).broken(); (err == nil) != (table == DemoTable{}) {
			t.Errorf("%+v is judged as %v", table, err)
		}
	}
}

func wantTable(t *testing.T, kind consumerKind, d *DemoTable, lost, twice uint64) {
	t.Helper()
	if d.Handled != d.Distinct-lost || d.Lost != lost || d.HandledTwice != twice {
		t.Errorf("%s: %+v; want %d lost, %d twice", kind, d, lost, twice)
	}
}

// repeated is how many events are in the log more than once, or are twiceEvent.
func repeated(log *traffic.Log) (events uint64) {
	times := make([]int, log.Limit())
	times[twiceEvent]++
	seq := log.Begin()
	for range log.N {
		n, _ := seq.Next()
		times[n]++
	}
	for _, n := range times {
		if n > 1 {
			events++
		}
	}
	return events
}
