package bench

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/bench/internal/topics"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/engine"
)

// odd is an event of partition 1 that is not as the others.
const odd = 7

func TestStateCheckNoticesEachDisagreement(t *testing.T) {
	const n = 2500 // more than it looks at at a time
	count := func(partition int32) func(*engine.Tx) error {
		return func(tx *engine.Tx) error { return addToState(tx, partition, odd) }
	}
	tests := []struct {
		name                 string
		unclaimed, uncounted bool // the odd event
		more                 func(*engine.Tx) error
		kind                 consumerKind // "": adapterWork
		offsets              []int64      // nil: the ends

		lost, twice, mismatches uint64
	}{
		{name: "nothing"},
		{name: "lost", unclaimed: true, uncounted: true, lost: 1},
		{name: "claimed, not counted", uncounted: true, lost: 1, mismatches: 1},
		{name: "counted, not claimed", unclaimed: true, mismatches: 1},
		{name: "counted twice", more: count(1), twice: 1},
		{name: "counted on two partitions", more: count(0), twice: 1},
		{name: "counted on another partition", uncounted: true, more: count(0), mismatches: 1},
		{name: "an offset before the end", offsets: []int64{1250, 1249}, mismatches: 1},
		{name: "an offset behind the end", offsets: []int64{1251, 1250}, mismatches: 1},
		{name: "offsets that the broker keeps", offsets: []int64{0, 0}, kind: offsetFirst},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := halves(wholeLog(t, n))
			o := consumer{Kind: adapterWork, Group: "g", Dir: filepath.Join(t.TempDir(), "store"), Weeks: 2}
			if tt.kind != "" {
				o.Kind = tt.kind
			}
			if tt.offsets == nil {
				tt.offsets = p.Ends
			}
			plant(t, &o, func(tx *engine.Tx) error {
				for number := range uint64(n) {
					if err := leaveEvent(tx, p.Log, number, number == odd && tt.unclaimed, number == odd && tt.uncounted); err != nil {
						return err
					}
				}
				if tt.more != nil {
					if err := tt.more(tx); err != nil {
						return err
					}
				}
				return leaveOffsets(tx, &o, p, tt.offsets)
			})
			c := checked(t, o, p)
			once, twice := c.done()
			if once != n-tt.lost || twice != tt.twice || c.mismatches != tt.mismatches || (c.first == "") != (tt.mismatches == 0) {
				t.Errorf("%d handled, %d twice, %d mismatches (first %s); want %d, %d, %d", once, twice, c.mismatches, c.first, n-tt.lost, tt.twice, tt.mismatches)
			}
		})
	}
}

// wholeLog is a log of n distinct events.
func wholeLog(t *testing.T, n int) *traffic.Log {
	t.Helper()
	src, err := newSource(traffic.UUIDv4, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	return &traffic.Log{Source: src, N: n}
}

func eventOfLog(log *traffic.Log, number uint64) engine.Event {
	ev, _ := log.Source.Event(number, nil)
	return ev
}

// halves is a topic of two partitions with the log.
func halves(log *traffic.Log) *topics.Filled {
	half := int64(log.N / 2)
	return &topics.Filled{Topic: &topics.Topic{Name: "t"}, Log: log, Ends: []int64{half, half}, Distinct: uint64(log.N)}
}

// checked is the ledger of a consumer that has told nothing, after the check of its store.
func checked(t *testing.T, o consumer, p *topics.Filled) *ledger {
	t.Helper()
	c := consuming{consumer: o, topic: p, ledger: newLedger(p.Log)}
	if err := c.checkState(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c.ledger
}

// plant changes a consumer's store while nobody runs.
func plant(t *testing.T, o *consumer, change func(*engine.Tx) error) {
	t.Helper()
	e, err := o.openStore(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Engine.Update(t.Context(), change); err != nil {
		t.Error(err)
	}
	if err := e.Engine.Close(); err != nil {
		t.Fatal(err)
	}
}

// leaveEvent leaves what a consumer does of an event that it has handled, partition by partition in
// turn.
func leaveEvent(tx *engine.Tx, log *traffic.Log, number uint64, unclaimed, uncounted bool) error {
	partition := int32(number % 2)
	if !unclaimed {
		ev := eventOfLog(log, number)
		ev.Origin.Partition = partition
		if _, err := tx.TryClaim(ev); err != nil {
			return err
		}
	}
	if uncounted {
		return nil
	}
	return addToState(tx, partition, number)
}

func leaveOffsets(tx *engine.Tx, o *consumer, p *topics.Filled, offsets []int64) error {
	for partition, next := range offsets {
		at := engine.OffsetKey{Group: o.Group, Topic: p.Topic.Name, Partition: int32(partition)}
		if err := tx.SetOffset(at, engine.Offset{Next: next, LeaderEpoch: -1}); err != nil {
			return err
		}
	}
	return nil
}

func TestLedgerNoticesWhatIsMissing(t *testing.T) {
	log := wholeLog(t, 30)
	o := consumer{Dir: filepath.Join(t.TempDir(), "store"), Weeks: 2}
	plant(t, &o, func(tx *engine.Tx) error {
		for n := range uint64(10) {
			if _, err := tx.TryClaim(eventOfLog(log, n)); err != nil {
				return err
			}
		}
		return nil
	})
	must := make([]bool, 30)
	must[3], must[12], must[14] = true, true, true
	e, err := o.openStore(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Engine.Close()
	l := ledger{log: log, limit: 14, must: must}
	if err := l.check(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if l.lost != 1 || l.mismatches != 0 || !strings.Contains(l.first, "event 12") {
		t.Errorf("%d lost, %d mismatches (first %s); want event 12 lost, and 14 not looked at", l.lost, l.mismatches, l.first)
	}
}
