package engine_test

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"syscall"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

func TestCloseLeavesOneSnapshotAndNoJournal(t *testing.T) {
	p := newPast(t)
	if n := len(sidecars(t, p.Mem)); n != 2 {
		t.Fatalf("%d snapshots before the store is closed", n)
	}
	mustClose(t, p.e)
	whole := func(m *storetest.Mem) (names []string) {
		for name, content := range sidecars(t, m) {
			if len(content) > 0 {
				names = append(names, name)
			}
		}
		return names
	}
	m := reopenDisk(t, p.Mem)
	left := whole(m)
	if len(left) != 1 {
		t.Fatalf("snapshots %v are left", left)
	}
	if err := m.Journal(0, func(seq uint64, _ []byte) error { t.Errorf("the journal has batch %d", seq); return nil }); err != nil {
		t.Fatal(err)
	}
	if source, err := p.check(t, m, small); err != nil || source != engine.FromSnapshot {
		t.Fatal(source, err)
	}
	m = reopenDisk(t, m)
	left = whole(m) // another one, as check has made claims
	b, err := storetest.ReadSidecar(m, left[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	setSidecar(t, m, left[0], b)
	p.known, p.forgotten = slices.Concat(p.known, p.forgotten), nil
	if source, err := p.check(t, m, small); err != nil || source != engine.FromScan {
		t.Fatal("with the only snapshot damaged:", source, err)
	}
}

// Some stores remove a few hundred batches at a time from the journal: Close leaves a long one, also
// if there was an earlier snapshot, and if another Close has left it.
func TestCloseLeavesALongJournal(t *testing.T) {
	const most = 100
	for _, c := range []struct{ batches, snapshotEvery int }{{most / 2, 0}, {2 * most, 0}, {5 * most, 6 * most}} {
		o := engine.Options{ExpectedPerWeek: 1 << 10}.WithTrimAtClose(most).WithSnapshotEvery(uint64(c.snapshotEvery))
		e, m, clock := openAt(t, o)
		o.Clock = clock.now
		for i := range c.batches {
			mustExpect(t, e, []engine.Event{event(fmt.Sprint(i))}, engine.Claimed)
		}
		for closes := range 2 {
			mustClose(t, e)
			e, m = reopen(t, m, o)
			left := 0
			if err := m.Journal(0, func(uint64, []byte) error { left++; return nil }); err != nil {
				t.Fatal(err)
			}
			if long := c.batches > most; long != (left >= c.batches) || !long && left > 0 {
				t.Errorf("close %d: of a journal of %d batches %d are left", closes+1, c.batches, left)
			}
			mustExpect(t, e, []engine.Event{event(fmt.Sprint("after close ", closes))}, engine.Claimed)
		}
		mustClose(t, e)
	}
}

func reopenDisk(t *testing.T, m *storetest.Mem) *storetest.Mem {
	t.Helper()
	m, err := m.Disk().Open("mem", storage.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Close removes nothing that the last snapshot replaces unless that is durable.
func TestCloseWithoutALastSnapshotKeepsTheEarlierOnes(t *testing.T) {
	p := newPast(t)
	before, trims := sidecars(t, p.Mem), p.Calls(storetest.OpTrimJournal)
	p.Before(storetest.OpWriteSidecar, func(call int) error { return syscall.ENOSPC })
	mustClose(t, p.e)
	m := reopenDisk(t, p.Mem)
	if !maps.EqualFunc(before, sidecars(t, m), slices.Equal) || p.Calls(storetest.OpTrimJournal) != trims {
		t.Error("a snapshot was removed, or the journal was trimmed")
	}
	if source, err := p.check(t, m, small); err != nil || source != engine.FromSnapshot {
		t.Fatal(source, err)
	}
}

// The journal is trimmed only after the other snapshot is removed: it would be too old for it.
func TestCloseThatCannotRemoveASnapshotKeepsItsJournal(t *testing.T) {
	p := newPast(t)
	trims := p.Calls(storetest.OpTrimJournal)
	first := true
	s := p.Mem
	s.Before(storetest.OpWriteSidecar, func(int) error {
		if first {
			first = false
			return nil
		}
		return io.ErrShortWrite
	})
	mustClose(t, p.e)
	if n := p.Calls(storetest.OpTrimJournal) - trims; n != 0 {
		t.Errorf("the journal was trimmed %d times", n)
	}
	if source, err := p.check(t, reopenDisk(t, s), small); err != nil || source != engine.FromSnapshot {
		t.Fatal(source, err)
	}
}
