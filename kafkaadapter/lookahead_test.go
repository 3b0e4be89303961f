package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// A lone partition has an engine but no broker. Its steps are "identify N" and "handle N".
type lonePartition struct {
	*worker
	eng      *engine.Engine
	steps    []string
	identify func(offset int64) error               // nil: no error
	handle   func(tx *engine.Tx, rec *Record) error // nil: no function
	handled  map[int64][]*Record                    // by offset, in each run
}

func newLonePartition(t *testing.T) *lonePartition {
	l := &lonePartition{eng: openMem(t, storetest.NewMem(storage.Identity{}), engine.Options{}), handled: make(map[int64][]*Record)}
	route := Route{Topics: []string{"t"}, Scope: "s", DeadLetters: &deadletter.Options{}}
	route.Identify.Payload = func(rec *kgo.Record) ([]byte, time.Time, error) {
		l.steps = append(l.steps, fmt.Sprint("identify ", rec.Offset))
		if l.identify != nil {
			if err := l.identify(rec.Offset); err != nil {
				return nil, time.Time{}, err
			}
		}
		return rec.Key, time.Time{}, nil
	}
	route.Mode = Transactional{MaxAttempts: 3, Handle: func(_ context.Context, tx *engine.Tx, rec *Record) error {
		l.steps = append(l.steps, fmt.Sprint("handle ", rec.Offset))
		l.handled[rec.Offset] = append(l.handled[rec.Offset], rec)
		if l.handle != nil {
			return l.handle(tx, rec)
		}
		return nil
	}}
	c, err := New(l.eng, Options{
		Group: "g", Routes: []Route{route}, Client: []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")},
		batchTime: time.Hour, // a batch may take any time
	})
	if err != nil {
		t.Fatal(err)
	}
	l.worker = c.assign.newWorker(topicPartition{"t", 0}, nil, 0)
	t.Cleanup(func() { l.state.partition.cancel(nil) })
	v := &resume.Facts{End: math.MaxInt64}
	err = l.eng.Update(t.Context(), func(tx *engine.Tx) error { return l.finder.occupy(tx, v, resume.Beginning{Epoch: -1}) })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// meet makes the partition take turns with another one.
func (l *lonePartition) meet(t *testing.T) {
	t.Helper()
	err := driver.Update(t.Context(), l.eng, func(tx *engine.Tx) error { return l.overtake(tx) }, driver.UpdateOptions{Lane: l.state.lane})
	if !errors.Is(err, engine.ErrConflict) || !l.state.lane.Serialized() {
		t.Fatalf("the transaction was to meet another one: %v", err)
	}
}

// overtake reads a key that another transaction then writes.
func (l *lonePartition) overtake(tx *engine.Tx) error {
	key := []byte("hot")
	if _, _, err := tx.Get(key); err != nil {
		return err
	}
	err := l.eng.Update(context.Background(), func(tx *engine.Tx) error { return tx.Put(key, nil) })
	_, _, again := tx.Get(key)
	return errors.Join(err, again)
}

// records returns records with the given keys, which are also the ids of their events, from offset
// 0 on.
func recordsOf(ids ...string) []*kgo.Record {
	recs := make([]*kgo.Record, len(ids))
	for i, id := range ids {
		recs[i] = &kgo.Record{Topic: "t", Offset: int64(i), Key: []byte(id), Timestamp: time.Now()}
	}
	return recs
}

func (l *lonePartition) commit(t *testing.T, recs []*kgo.Record) *batch {
	t.Helper()
	l.state.taken, l.delays = recs, newDelays(l.state.partition.c.opt.backoff)
	b, err := l.commitBatch(len(recs))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// identifiedFirst returns how many records were identified before the first one was handled.
func (l *lonePartition) identifiedFirst() int {
	return slices.IndexFunc(l.steps, func(s string) bool { return strings.HasPrefix(s, "handle") })
}

func TestRecordsAreIdentifiedBeforeTheTurn(t *testing.T) {
	ids := numbered("e", 3*lookAhead)
	ids[lookAhead+5] = ids[2]
	for _, meets := range []bool{false, true} {
		l := newLonePartition(t)
		want := lookAhead
		if meets {
			l.meet(t)
			want = len(ids)
		}
		recs := recordsOf(ids...)
		if b := l.commit(t, recs); b.result.done != len(recs) || l.state.next != int64(len(recs)) {
			t.Errorf("meets=%t: %d of %d records are done, the next offset is %d", meets, b.result.done, len(recs), l.state.next)
		}
		if got := l.identifiedFirst(); got != want {
			t.Errorf("meets=%t: %d records were identified before the first was handled, want %d", meets, got, want)
		}
		if n := len(l.handled); n != len(recs)-1 || len(l.handled[lookAhead+5]) > 0 {
			t.Errorf("meets=%t: %d of %d records were handled", meets, n, len(recs))
		}
		if n := len(l.steps); n != 2*len(recs)-1 {
			t.Errorf("meets=%t: there were %d steps, but a record is identified only once", meets, n)
		}
	}
}

// A handler may keep its record: after a conflict it gets another one.
func TestRecordsIdentifiedEarlyArePassedToOneHandlerOnly(t *testing.T) {
	l := newLonePartition(t)
	l.meet(t)
	runs := 0
	l.handle = func(tx *engine.Tx, rec *Record) error {
		rec.Event.ID = nil
		if runs++; rec.Offset == 2 && len(l.handled[2]) == 1 {
			return l.overtake(tx)
		}
		return nil
	}
	const n = 2 * lookAhead
	if b := l.commit(t, recordsOf(numbered("e", n)...)); b.result.done != n {
		t.Fatalf("%d of %d records are done", b.result.done, n)
	}
	for offset := range int64(n) {
		want := 1
		if offset <= 2 {
			want = 2
		}
		got := l.handled[offset]
		if len(got) != want || want == 2 && got[0] == got[1] || got[0].Offset != offset {
			t.Errorf("record %d was passed to the handler as %p, want %d records", offset, got, want)
		}
	}
}

func TestATransientErrorEndsIdentifyingEarly(t *testing.T) {
	l := newLonePartition(t)
	l.meet(t)
	const bad = lookAhead + 2
	l.identify = func(offset int64) error {
		if offset == bad {
			return Transient(errHandler)
		}
		return nil
	}
	recs := recordsOf(numbered("e", 3*lookAhead)...)
	if b := l.commit(t, recs); b.result.done != bad || b.transient == nil {
		t.Fatalf("%d records are done, transient %v", b.result.done, b.transient)
	}
	if first := l.identifiedFirst(); first != bad+1 || slices.Contains(l.steps, fmt.Sprint("identify ", 2*lookAhead)) {
		t.Errorf("%d records were identified first, although the one at %d cannot be identified yet", first, bad)
	}
	l.identify = nil
	if b := l.commit(t, recs[bad:]); b.result.done != len(recs)-bad || l.state.next != int64(len(recs)) {
		t.Errorf("%d of %d records are done afterwards, the next offset is %d", b.result.done, len(recs)-bad, l.state.next)
	}
}
