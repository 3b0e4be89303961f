package occ

import (
	"bytes"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hapax-dev/hapax/engine/limits"
)

// A historyTest applies each batch at once.
type historyTest struct {
	history History
	applied atomic.Uint64
}

func newHistory() *historyTest {
	h := &historyTest{}
	h.history.Init(&h.applied)
	return h
}

func (h *historyTest) write(writes ...Write) {
	seq := h.applied.Load() + 1
	h.history.Add(seq, writes...)
	h.applied.Store(seq)
}

func (h *historyTest) begin() *Reads {
	reads := (&Reads{}).Emptied()
	h.history.Begin(&reads)
	return &reads
}

func noErr(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func scanned(key string) Write { return Write{Key: key, IsScanned: true} }

func TestAReadThatWasOverwrittenIsAConflict(t *testing.T) {
	h := newHistory()
	h.write(scanned("a"))
	reads := h.begin()
	noErr(t, reads.Note("a"))
	if by, met := h.history.Overtaken(reads); by != 0 || met != 0 {
		t.Errorf("a write before the start is a conflict: %d, %d", by, met)
	}
	h.write(scanned("b"))
	if by, _ := h.history.Overtaken(reads); by != 0 {
		t.Error("a write to another key is a conflict")
	}
	h.write(Write{Key: "a"})
	if by, _ := h.history.Overtaken(reads); by != 3 {
		t.Errorf("the conflict is with batch %d, want 3", by)
	}
	if by := h.history.ChangedSince(reads, []byte("a")); by != 3 {
		t.Errorf("the key was changed by batch %d, want 3", by)
	}
}

func TestAReadAsOfALaterBatchConflictsWithLaterWritesOnly(t *testing.T) {
	h := newHistory()
	reads := h.begin()
	h.write(Write{Key: "claim"})
	noErr(t, reads.NoteAsOf("claim", 1))
	if by, _ := h.history.Overtaken(reads); by != 0 {
		t.Error("the write that was read is a conflict")
	}
	h.write(Write{Key: "claim"})
	if by, _ := h.history.Overtaken(reads); by != 2 {
		t.Error("a later write is no conflict")
	}
}

func TestAScanConflictsWithAKeyThatIsNew(t *testing.T) {
	h := newHistory()
	reads := h.begin()
	i, err := reads.BeginScan([]byte("b"))
	noErr(t, err)
	noErr(t, reads.ExtendScan(i, []byte("d")))
	reads.MergeScans()
	h.write(scanned("a"), scanned("d"), Write{Key: "c"})
	if by, _ := h.history.Overtaken(reads); by != 0 {
		t.Error("keys that the scan did not reach are a conflict")
	}
	h.write(scanned("c"))
	if by, _ := h.history.Overtaken(reads); by != 2 {
		t.Errorf("the conflict is with batch %d, want 2", by)
	}
	if least, by := h.history.ChangedIn(reads, Range{[]byte("a"), nil}); least != "a" || by != 1 {
		t.Errorf("the least changed key is %q in batch %d", least, by)
	}
}

func TestATransactionThatHasWaitedMeetsThoseBeforeItsRestart(t *testing.T) {
	h := newHistory()
	reads := h.begin()
	h.write(scanned("a"))
	h.history.Restart(reads)
	noErr(t, reads.Note("a"))
	if by, met := h.history.Overtaken(reads); by != 0 || met != 1 {
		t.Errorf("conflict with %d, met %d; want 0 and 1", by, met)
	}
}

func TestOnlyASmallKnownValueThatIsVisibleIsLatest(t *testing.T) {
	h := newHistory()
	before := h.begin()
	large := bytes.Repeat([]byte{'x'}, maxRecentValue+1)
	h.write(Write{Key: "a", IsKnown: true, Value: []byte("1")}, Write{Key: "deleted", IsKnown: true}, Write{Key: "large", IsKnown: true, Value: large}, Write{Key: "unknown", Value: []byte("1")})
	after := h.begin()
	for key, want := range map[string]struct {
		value string
		ok    bool
	}{"a": {"1", true}, "deleted": {"", true}, "large": {"", false}, "unknown": {"", false}, "never": {"", false}} {
		if value, ok := h.history.Latest(after, []byte(key)); ok != want.ok || string(value) != want.value && ok {
			t.Errorf("%s is %q, %t", key, value, ok)
		}
		if _, ok := h.history.Latest(before, []byte(key)); ok {
			t.Errorf("a transaction that began before sees %s", key)
		}
	}
}

// Writes are kept while a transaction needs them, and up to a limit: then it conflicts.
func TestWritesAreForgottenOrTheirReadersConflict(t *testing.T) {
	h := newHistory()
	value := strings.Repeat("k", 1000)
	writeMany := func(from, n int) {
		for i := range n {
			h.write(Write{Key: fmt.Sprint(from+i, value)})
		}
	}
	writeMany(0, 10_000)
	if n := h.history.RecentBytes(); n > 2*minRecentBytes {
		t.Errorf("%d bytes are kept that no transaction needs", n)
	}
	reads := h.begin()
	noErr(t, reads.Note("other"))
	writeMany(10_000, 10_000)
	if n := h.history.RecentBytes(); n < 10_000_000 {
		t.Errorf("%d bytes are kept for an open transaction", n)
	}
	if by, _ := h.history.Overtaken(reads); by != 0 {
		t.Error("it conflicts although its read is unchanged")
	}
	writeMany(20_000, MaxRecentBytes/1000)
	if n := h.history.RecentBytes(); n > MaxRecentBytes {
		t.Errorf("%d bytes are kept", n)
	}
	if by, _ := h.history.Overtaken(reads); by == 0 {
		t.Error("a transaction whose concurrent writes were dropped does not conflict")
	}
	h.history.End(reads)
	if h.history.Open() != 0 {
		t.Error("it is still open")
	}
}

func TestReadsHaveLimits(t *testing.T) {
	h := newHistory()
	reads := h.begin()
	for range limits.TxScans {
		_, err := reads.BeginScan(nil)
		noErr(t, err)
	}
	if _, err := reads.BeginScan(nil); err == nil {
		t.Error("too many scans")
	}
	part := (&Reads{}).Emptied()
	part.Within(reads)
	_, err := part.BeginScan(nil)
	noErr(t, err)
	if reads.Fits(&part) == nil {
		t.Error("too many scans with those of a part")
	}
	large := strings.Repeat("k", limits.TxReadBytes/2)
	noErr(t, reads.Note(large))
	noErr(t, reads.Note(large)) // it counts once
	if reads.Note("x"+large) == nil {
		t.Error("too many bytes")
	}
}

func TestAPartsReadsBecomeThoseOfItsTransaction(t *testing.T) {
	h := newHistory()
	whole := h.begin()
	noErr(t, whole.NoteAsOf("both", 5))
	part := (&Reads{}).Emptied()
	part.Within(whole)
	noErr(t, part.NoteAsOf("both", 3))
	noErr(t, part.Note("only"))
	_, err := part.BeginScan([]byte("s"))
	noErr(t, err)
	noErr(t, whole.Fits(&part))
	whole.Join(&part)
	if !whole.Contains("only") || whole.keys["both"] != 3 || len(whole.ranges) != 1 {
		t.Errorf("%+v", whole)
	}
	again := whole.bytes
	if whole.Join(&part); whole.bytes != again+part.ranges[0].size() {
		t.Error("a key that was read already counts twice")
	}
}
