package bench

import (
	"path/filepath"
	"strings"
	"testing"

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
			p := &produced{topic: &topic{Name: "t"}, log: wholeLog(t, n), ends: []int64{n / 2, n / 2}, distinct: n}
			o := consumeOrder{Kind: adapterWork, Group: "g", Dir: filepath.Join(t.TempDir(), "store"), Weeks: 2}
			if tt.kind != "" {
				o.Kind = tt.kind
			}
			if tt.offsets == nil {
				tt.offsets = p.ends
			}
			plant(t, &o, func(tx *engine.Tx) error {
				for number := range uint64(n) {
					if err := leaveEvent(tx, p.log, number, number == odd && tt.unclaimed, number == odd && tt.uncounted); err != nil {
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
			c, err := checkState(t.Context(), &o, p, nil)
			if err != nil {
				t.Fatal(err)
			}
			once, twice := handled(c.counts)
			if once != n-tt.lost || twice != tt.twice || c.mismatches != tt.mismatches || (c.first == "") != (tt.mismatches == 0) {
				t.Errorf("%d handled, %d twice, %d mismatches (first %s); want %d, %d, %d", once, twice, c.mismatches, c.first, n-tt.lost, tt.twice, tt.mismatches)
			}
		})
	}
}

// wholeLog is a log of n distinct events.
func wholeLog(t *testing.T, n int) *topicLog {
	t.Helper()
	src, err := newSource(1, UUIDv4, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	return &topicLog{source: src, N: n}
}

// plant changes a consumer's store while nobody runs.
func plant(t *testing.T, o *consumeOrder, change func(*engine.Tx) error) {
	t.Helper()
	e, err := o.openStore(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Update(t.Context(), change); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// leaveEvent leaves what a consumer does of an event that it has handled, partition by partition in
// turn.
func leaveEvent(tx *engine.Tx, log *topicLog, number uint64, unclaimed, uncounted bool) error {
	partition := int32(number % 2)
	if !unclaimed {
		ev := log.event(number, nil)
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

func leaveOffsets(tx *engine.Tx, o *consumeOrder, p *produced, offsets []int64) error {
	for partition, next := range offsets {
		at := engine.Position{Group: o.Group, Topic: p.Name, Partition: int32(partition)}
		if err := tx.SetOffset(at, engine.Offset{Next: next, LeaderEpoch: -1}); err != nil {
			return err
		}
	}
	return nil
}

func TestLedgerNoticesWhatIsMissing(t *testing.T) {
	log := wholeLog(t, 30)
	o := consumeOrder{Dir: filepath.Join(t.TempDir(), "store"), Weeks: 2}
	plant(t, &o, func(tx *engine.Tx) error {
		for n := range uint64(10) {
			if _, err := tx.TryClaim(log.event(n, nil)); err != nil {
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
	defer e.Close()
	l := ledger{e: e, log: log, limit: 14, must: must}
	if err := l.check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l.lost != 1 || l.mismatches != 0 || !strings.Contains(l.first, "event 12") {
		t.Errorf("%d lost, %d mismatches (first %s); want event 12 lost, and 14 not looked at", l.lost, l.mismatches, l.first)
	}
}
