package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
)

// decodes decodes the partition's records to their keys. Its steps are "decode N".
func (l *lonePartition) decodes(fail func(offset int64) error) {
	mode := l.state.partition.route.Mode.(Transactional)
	mode.Decode = func(_ context.Context, rec *kgo.Record) (any, error) {
		l.steps = append(l.steps, fmt.Sprint("decode ", rec.Offset))
		if fail != nil {
			if err := fail(rec.Offset); err != nil {
				return nil, err
			}
		}
		return string(rec.Key), nil
	}
	l.state.partition.route.Mode = mode
}

// decodedFirst is how many records were decoded before the first one was handled.
func (l *lonePartition) decodedFirst() (n int) {
	for _, s := range l.steps[:l.identifiedFirst()] {
		if strings.HasPrefix(s, "decode") {
			n++
		}
	}
	return n
}

// Of a batch without a turn, a few dozen records are decoded at once.
func TestRecordsAreDecodedBeforeTheTurn(t *testing.T) {
	ids := numbered("e", 3*lookAhead)
	ids[lookAhead+5] = ids[2]
	for _, meets := range []bool{false, true} {
		l := newLonePartition(t)
		first := lookAhead
		if meets {
			l.meet(t)
			first = len(ids)
		}
		l.decodes(nil)
		l.handle = func(_ *engine.Tx, rec *Record) error {
			if got := rec.Decoded; got != ids[rec.Offset] {
				t.Errorf("meets=%t: record %d is decoded to %v, want %q", meets, rec.Offset, got, ids[rec.Offset])
			}
			return nil
		}
		if b := l.commit(t, recordsOf(ids...)); b.result.done != len(ids) || len(l.handled) != len(ids)-1 {
			t.Errorf("meets=%t: %d of %d records are done, %d were handled", meets, b.result.done, len(ids), len(l.handled))
		}
		if got := l.decodedFirst(); got != first {
			t.Errorf("meets=%t: %d records were decoded before the first was handled, want %d", meets, got, first)
		}
		if got := len(l.steps) - len(ids) - len(l.handled); got != len(ids) { // the first of two copies is not committed
			t.Errorf("meets=%t: Decode was called %d times, want %d", meets, got, len(ids))
		}
	}
}

// A slow Decode is called between the handlers: a batch that ends early has decoded few records in
// vain.
func TestSlowDecodeIsNotCalledAhead(t *testing.T) {
	l := newLonePartition(t)
	l.state.partition.c.opt.batchTime = 40 * time.Millisecond
	l.decodes(func(int64) error {
		time.Sleep(15 * time.Millisecond)
		return nil
	})
	b := l.commit(t, recordsOf(numbered("e", lookAhead)...))
	if got := len(l.steps) - lookAhead - len(l.handled); b.result.done == 0 || b.result.done > 3 || got != b.result.done || l.decodedFirst() != 1 {
		t.Errorf("%d records were decoded, %d of them first, for a batch of %d", got, l.decodedFirst(), b.result.done)
	}
}

// Records that are probably duplicates are not decoded ahead. The claim of one of them was
// forgotten, which the filter does not know: its handler gets a decoded record all the same.
func TestDuplicatesAreNotDecodedAhead(t *testing.T) {
	for _, meets := range []bool{false, true} {
		t.Run(fmt.Sprintf("meets=%t", meets), func(t *testing.T) { testDuplicatesAreNotDecodedAhead(t, meets) })
	}
}

func testDuplicatesAreNotDecodedAhead(t *testing.T, meets bool) {
	l := newLonePartition(t)
	l.decodes(nil)
	ids := numbered("e", 3*lookAhead)
	old := ids[:len(ids)/2]
	if b := l.commit(t, recordsOf(old...)); b.result.done != len(old) {
		t.Fatalf("%d of %d records are done", b.result.done, len(old))
	}
	const forgotten = 5
	ev := l.handled[forgotten][0].Event
	if found, err := l.eng.Admin().Forget(t.Context(), ev.Scope, ev.ID, ev.Time); !found || err != nil {
		t.Fatal(found, err)
	}
	if meets {
		l.meet(t)
	}
	l.steps, l.handled, l.state.next = nil, make(map[int64][]*Record), 0
	recs := recordsOf(ids...)
	if b := l.commit(t, recs); b.result.done != len(recs) {
		t.Fatalf("%d of %d records are done", b.result.done, len(recs))
	}
	fresh := len(ids) - len(old)
	first := 1 // of the first chunk, only the record whose claim was forgotten, just before its handler
	if meets {
		first += fresh
	}
	if got := l.decodedFirst(); got != first {
		t.Errorf("%d records were decoded before the first was handled, want %d", got, first)
	}
	if got := len(l.steps) - len(ids) - len(l.handled); got != fresh+1 || len(l.handled) != fresh+1 {
		t.Errorf("%d records were decoded and %d handled, want %d", got, len(l.handled), fresh+1)
	}
	for offset, runs := range l.handled {
		if len(runs) != 1 || runs[0].Decoded != ids[offset] {
			t.Errorf("record %d was handled %d times, decoded to %v", offset, len(runs), runs[0].Decoded)
		}
	}
}

// A record that fails to decode fails in its turn: those before it commit, and one attempt at it
// has failed.
func TestErrorOfDecodeIsThatOfTheHandler(t *testing.T) {
	const bad, all = 3, lookAhead + 2
	panics := func() error { panic("no JSON") }
	for name, tt := range map[string]struct {
		fail     func() error
		attempts uint32
		is       func(err error) bool
	}{
		"error":     {func() error { return errHandler }, 1, func(err error) bool { return errors.Is(err, errHandler) }},
		"permanent": {func() error { return Permanent(errHandler) }, 3, func(err error) bool { return errors.Is(err, errHandler) }},
		"panic":     {panics, 1, func(err error) bool { return errors.As(err, new(*PanicError)) }},
		"transient": {func() error { return Transient(errHandler) }, 0, func(err error) bool { return err == nil }},
	} {
		for _, meets := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/meets=%t", name, meets), func(t *testing.T) {
				l := newLonePartition(t)
				if meets {
					l.meet(t)
				}
				l.decodes(func(offset int64) error {
					if offset == bad {
						return tt.fail()
					}
					return nil
				})
				recs := recordsOf(numbered("e", all)...)
				b := l.commit(t, recs)
				if b.result.done != bad || l.state.next != bad || len(l.handled) != bad || b.ours.Tries.N != tt.attempts {
					t.Errorf("%d records are done, %d were handled, the next offset is %d, attempts at it are %d, want %d", b.result.done, len(l.handled), l.state.next, b.ours.Tries.N, tt.attempts)
				}
				if !tt.is(b.failed) || IsTransient(b.transient) != (name == "transient") {
					t.Errorf("failed %v, transient %v", b.failed, b.transient)
				}
				l.decodes(nil)
				if name == "permanent" {
					return
				}
				if b := l.commit(t, recs[bad:]); b.result.done != all-bad || len(l.handled) != all || l.handled[bad][0].Decoded != string(recs[bad].Key) {
					t.Errorf("afterwards %d records are done, %d were handled", b.result.done, len(l.handled))
				}
			})
		}
	}
}

// After a conflict, records that have lost their turn are decoded again, each for the record that
// its handler then gets.
func TestRecordsAreDecodedAgainAfterAConflict(t *testing.T) {
	l := newLonePartition(t)
	l.meet(t)
	l.decodes(nil)
	l.handle = func(tx *engine.Tx, rec *Record) error {
		if rec.Offset == 2 && len(l.handled[2]) == 1 {
			return l.overtake(tx)
		}
		return nil
	}
	const n = 2 * lookAhead
	recs := recordsOf(numbered("e", n)...)
	if b := l.commit(t, recs); b.result.done != n {
		t.Fatalf("%d of %d records are done", b.result.done, n)
	}
	for offset, runs := range l.handled {
		if last := runs[len(runs)-1]; last.Decoded != string(recs[offset].Key) {
			t.Errorf("record %d is decoded to %v", offset, last.Decoded)
		}
	}
}

func TestDecodedRecordsOfABatchAndInParallel(t *testing.T) {
	ids := numbered("a", 40)
	decode := func(_ context.Context, rec *kgo.Record) (any, error) {
		if strings.HasSuffix(string(rec.Value), ids[7]) {
			return nil, Permanent(errHandler)
		}
		return string(rec.Value), nil
	}
	var wrong atomic.Int64
	check := func(rec *Record) {
		if rec.Decoded != string(rec.Value) {
			wrong.Add(1)
		}
	}
	for name, change := range map[string]func(r *rig) (Transactional, func(*Options)){
		"batch": func(r *rig) (Transactional, func(*Options)) {
			mode, _ := r.groups(2, nil)
			handle := mode.HandleBatch
			mode.HandleBatch = func(ctx context.Context, tx *engine.Tx, recs []*Record) error {
				for _, rec := range recs {
					check(rec)
				}
				return handle(ctx, tx, recs)
			}
			return mode, func(*Options) {}
		},
		"parallel": func(r *rig) (Transactional, func(*Options)) {
			return r.work(2, func(_ context.Context, _ *engine.Tx, rec *Record) error { check(rec); return nil }), sideBySide(4)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.send(t, 0, append(ids, ids[:5]...)...)
			mode, change := change(r)
			mode.Decode = decode
			m := r.start(t, mode, change)
			r.untilStored(t, 0, 45)
			m.stop(t)
			r.checkOnce(t, slices.Concat(ids[:7], ids[8:])...)
			if n := r.effects(t, ids[7]); n != 0 {
				t.Errorf("the record that cannot be decoded took effect %d times", n)
			}
			if dead := r.letters(t, 1)[0]; !strings.HasSuffix(string(dead.Value), ids[7]) {
				t.Errorf("dead letter %q", dead.Value)
			}
			if n := wrong.Load(); n > 0 {
				t.Errorf("%d records have another value", n)
			}
		})
	}
}
