package owner

import (
	"context"
	"errors"
	"math"
	"testing"
)

// A memory is a Store without conflicts.
type memory struct {
	record Record
	engine any
	puts   int
	broken error // the error of the next transactions
}

func (m *memory) Update(_ context.Context, _ int, fn func(Tx) error) error {
	if m.broken != nil {
		return m.broken
	}
	tx := &write{m, nil}
	if err := fn(tx); err != nil {
		return err
	}
	if tx.put != nil {
		m.record = *tx.put
		m.puts++
	}
	return nil
}

func (m *memory) Engine() any { return m.engine }

type write struct {
	m   *memory
	put *Record
}

func (w *write) Get() (Record, error) { return w.m.record, nil }
func (w *write) Put(r Record) error   { w.put = &r; return nil }

// assign returns a fence on the store whose goroutine ends with the test.
func (m *memory) assign(t *testing.T) *Fence {
	f := New(m)
	t.Cleanup(f.End)
	return &f
}

func (m *memory) take(t *testing.T, f *Fence, width int, continues bool) {
	t.Helper()
	if err := m.Update(t.Context(), 0, func(tx Tx) error { return f.Take(tx, width, continues) }); err != nil {
		t.Fatal(err)
	}
	f.Taken()
}

func (m *memory) check(t *testing.T, f *Fence) error {
	t.Helper()
	return m.Update(t.Context(), 0, f.Check)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestLastOwnerAlonePasses(t *testing.T) {
	m := &memory{}
	a, b := m.assign(t), m.assign(t)
	if err := m.check(t, a); !errors.Is(err, ErrLost) {
		t.Errorf("before it takes the partition: %v", err)
	}
	m.take(t, a, 1, true)
	must(t, m.check(t, a))
	m.take(t, b, 1, true)
	if err := m.check(t, a); !errors.Is(err, ErrLost) {
		t.Errorf("the earlier owner: %v", err)
	}
	must(t, a.Release()) // it is not its own any more
	must(t, m.check(t, b))
	if puts := m.puts; b.Release() != nil || m.puts != puts+1 || m.record.Token != [16]byte{} {
		t.Errorf("released: %+v", m.record)
	}
	if err := m.check(t, b); !errors.Is(err, ErrLost) {
		t.Errorf("the owner that has left: %v", err)
	}
}

// A transaction that has read the record must conflict with a release, also by one that is not the owner.
func TestReleaseAlwaysWrites(t *testing.T) {
	m := &memory{}
	a := m.assign(t)
	for range 2 {
		if puts := m.puts; a.Release() != nil || m.puts != puts+1 {
			t.Error("nothing was written")
		}
	}
}

func TestRecordsAreHandledOneByOneAfterAnUncleanEnd(t *testing.T) {
	died := Record{Token: [16]byte{1}, Width: 8}
	for name, tt := range map[string]struct {
		before func(t *testing.T, m *memory)
		single int
	}{
		"nobody":               {func(*testing.T, *memory) {}, 0},
		"a process that died":  {func(_ *testing.T, m *memory) { m.record = died }, 8},
		"an owner that left":   {func(t *testing.T, m *memory) { a := m.assign(t); m.take(t, a, 8, true); must(t, a.Release()) }, 0},
		"an owner that runs":   {func(t *testing.T, m *memory) { m.take(t, m.assign(t), 8, true) }, 0},
		"one that has ended":   {func(t *testing.T, m *memory) { a := m.assign(t); m.take(t, a, 8, true); a.End() }, 8},
		"one of another store": {func(t *testing.T, m *memory) { m.engine = 1; m.take(t, m.assign(t), 8, true); m.engine = 2 }, 8},
	} {
		t.Run(name, func(t *testing.T) {
			m := &memory{}
			tt.before(t, m)
			f := m.assign(t)
			m.take(t, f, 4, true)
			if f.SingleStep() != tt.single || f.Width() != 4 || m.record.Width != 4 {
				t.Errorf("%d records one by one, want %d; batches of %d, stored as %d", f.SingleStep(), tt.single, f.Width(), m.record.Width)
			}
			f.Committed(f.State(), 3)
			m.take(t, f, 4, true) // looked up again
			if want := max(0, tt.single-3); f.SingleStep() != want {
				t.Errorf("after 3 records, %d one by one, want %d", f.SingleStep(), want)
			}
			m.record = died // for a moment, the partition had another owner
			m.take(t, f, 4, true)
			if f.SingleStep() != 0 {
				t.Errorf("%d records one by one after the partition came back", f.SingleStep())
			}
		})
	}
}

func TestAttemptsRemainAtTheirRecord(t *testing.T) {
	m := &memory{record: Record{Tries: Attempts{100, 2}}}
	f := m.assign(t)
	if m.take(t, f, 1, true); f.Tries() != (Attempts{100, 2}) || m.record.Tries != f.Tries() {
		t.Errorf("%+v, stored %+v", f.Tries(), m.record.Tries)
	}
	if m.take(t, f, 1, false); f.Tries() != (Attempts{}) || m.record.Tries != f.Tries() {
		t.Errorf("elsewhere: %+v, stored %+v", f.Tries(), m.record.Tries)
	}
}

func TestMarkedAttemptCounts(t *testing.T) {
	m := &memory{}
	f := m.assign(t)
	m.take(t, f, 1, true)
	for range 2 { // the second is the same attempt
		if err := f.Mark(t.Context(), 7, 3); err != nil || !f.Marked() || m.record.Tries != (Attempts{7, 1}) {
			t.Fatalf("%+v, %v", m.record.Tries, err)
		}
	}
	after := m.record
	if must(t, f.Unmark(t.Context())); f.Marked() || m.record.Tries != (Attempts{}) {
		t.Errorf("no handler has run: %+v", m.record.Tries)
	}
	m.record = after // the process died instead
	next := m.assign(t)
	f.End()
	m.take(t, next, 1, true)
	if next.Tries() != (Attempts{7, 1}) || next.SingleStep() != 1 {
		t.Errorf("after a crash: %+v, %d one by one", next.Tries(), next.SingleStep())
	}
	must(t, next.Mark(t.Context(), 7, 2))
	must(t, next.Unmark(t.Context()))
	if m.record.Tries != (Attempts{7, 1}) {
		t.Errorf("the attempt before remains: %+v", m.record.Tries)
	}
	if must(t, next.Mark(t.Context(), 7, 1)); next.Marked() {
		t.Error("an attempt beyond the limit")
	}
	if must(t, next.Mark(t.Context(), 8, math.MaxUint64)); m.record.Tries != (Attempts{8, 1}) {
		t.Errorf("at another record: %+v", m.record.Tries)
	}
}

func TestAttemptThatIsNotStoredIsNotMarked(t *testing.T) {
	m := &memory{}
	f := m.assign(t)
	m.take(t, f, 1, true)
	m.broken = errors.New("broken")
	if err := f.Mark(t.Context(), 7, 3); !errors.Is(err, m.broken) || f.Marked() || f.Tries() != (Attempts{}) {
		t.Errorf("%v, %+v", err, f.State())
	}
	m.broken = nil
	m.take(t, m.assign(t), 1, true)
	if err := f.Mark(t.Context(), 7, 3); !errors.Is(err, ErrLost) || f.Marked() {
		t.Errorf("without the partition: %v, %+v", err, f.State())
	}
}

// The attempt of an owner whose goroutine runs has not failed. It is not discounted once more when the
// partition is looked up again.
func TestAttemptOfAnOwnerThatRunsIsDiscountedOnce(t *testing.T) {
	m := &memory{}
	a, b := m.assign(t), m.assign(t)
	m.take(t, a, 1, true)
	for range 2 {
		a.Lose() // the attempt before has failed
		must(t, a.Mark(t.Context(), 0, 9))
	}
	for range 3 {
		if m.take(t, b, 1, true); b.Tries().N != 1 {
			t.Errorf("%d attempts are counted, want the one that has failed", b.Tries().N)
		}
	}
}

func TestStateIsWrittenIfItHasChanged(t *testing.T) {
	m := &memory{}
	f := m.assign(t)
	m.take(t, f, 1, true)
	for _, tt := range []struct {
		s     State
		wrote int
	}{
		{State{Width: 1}, 0},
		{State{Width: 1, Marked: true}, 0},
		{State{Width: 2}, 1},
		{State{Width: 2, Tries: Attempts{5, 1}}, 1},
		{State{Width: 2, Tries: Attempts{5, 1}}, 0},
	} {
		before := m.puts
		must(t, m.Update(t.Context(), 0, func(tx Tx) error { return f.Write(tx, tt.s) }))
		f.Committed(tt.s, 0)
		if m.puts-before != tt.wrote || m.record != (Record{f.token, tt.s.Width, tt.s.Tries}) || f.State() != tt.s {
			t.Errorf("%+v: %d writes, want %d; stored %+v, state %+v", tt.s, m.puts-before, tt.wrote, m.record, f.State())
		}
	}
}
