package storetest

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/hapax-dev/hapax/engine/storage"
)

func journalFrom(e *env) {
	long := noise(1, 100_000)
	entries := [][]byte{[]byte("one"), nil, {}, []byte("four"), {0}, {0xff}, long, nil}
	for _, entry := range entries {
		e.apply(storage.Batch{Claims: []storage.ClaimWrite{claim(bucket("a", week), "x", "1")}, Journal: entry})
	}
	e.inEveryForm(func() {
		e.Helper()
		for from := range uint64(11) {
			next := max(from, 1)
			err := e.s.Journal(from, func(seq uint64, entry []byte) error {
				if seq != next || !bytes.Equal(entry, entries[seq-1]) {
					return fmt.Errorf("entry %d is %q; entry %d was expected", seq, short(entry), next)
				}
				next++
				return nil
			})
			if err != nil || next != max(from, 9) {
				e.Errorf("Journal(%d) came to entry %d of 8, %v", from, next-1, err)
			}
		}
	})
	calls := 0
	err := e.s.Journal(2, func(uint64, []byte) error {
		if calls++; calls == 2 {
			return errStop
		}
		return nil
	})
	if !errors.Is(err, errStop) || calls != 2 {
		e.Errorf("Journal returned %v after %d calls, but the second call said %v", err, calls, errStop)
	}
}

func (e *env) journalEntries(n int) {
	e.Helper()
	for range n {
		seq := e.told.view.lastSeq + 1
		e.put(storage.Batch{
			Claims:  numbered(bucket("a", week), int(seq)*10, int(seq)*10+3),
			State:   []storage.StateWrite{set(fmt.Sprint(seq), "x")},
			Journal: fmt.Append(nil, "entry ", seq),
		})
	}
}

func (e *subject) firstEntry() (first uint64) {
	e.Helper()
	err := e.s.Journal(0, func(seq uint64, _ []byte) error { first = seq; return errStop })
	if err != nil && !errors.Is(err, errStop) {
		e.Fatalf("Journal: %v", err)
	}
	return first
}

func trimForgets(e *env) {
	e.journalEntries(10)
	e.settle()
	e.journalEntries(10)
	for _, below := range []uint64{0, 1, 4, 15} {
		e.trim(below)
		if got := e.firstEntry(); got != max(below, 1) {
			e.Errorf("after TrimJournal(%d) the first entry is %d", below, got)
		}
		e.check(fmt.Sprintf("after TrimJournal(%d)", below))
	}
	// TrimJournal need not be durable on return. It becomes durable with the next batch and a clean
	// close.
	e.journalEntries(2)
	e.reopen()
	if got := e.firstEntry(); got != 15 {
		e.Errorf("after TrimJournal(15), two batches and a reopen the first entry is %d", got)
	}
	e.check("opened again")
	e.needCrash()
	e.trim(18)
	e.crash(50)
	e.check("after a crash")
}

func trimIsNotTakenBack(e *env) {
	e.journalEntries(10)
	e.trim(8)
	e.trim(3)
	e.trim(0)
	if got := e.firstEntry(); got != 8 {
		e.Errorf("after TrimJournal(8) and then of smaller numbers the first entry is %d", got)
	}
	e.journalEntries(1)
	e.reopen()
	if got := e.firstEntry(); got != 8 {
		e.Errorf("after TrimJournal(8), of smaller numbers, and a reopen the first entry is %d", got)
	}
	e.check("opened again")
}

func trimKeepsLastSeq(e *env) {
	e.journalEntries(5)
	e.trim(6)
	e.check("nothing is left of the journal")
	e.reopen()
	if got := e.s.LastSeq(); got != 5 {
		e.Errorf("LastSeq is %d after 5 batches, TrimJournal(6) and a reopen", got)
	}
	e.check("opened again")
	e.trim(6)
	e.reopen()
	if got := e.s.LastSeq(); got != 5 {
		e.Errorf("LastSeq is %d after 5 batches, TrimJournal(6) twice and two reopens", got)
	}
	e.needCrash()
	e.trim(6)
	e.crash(0)
	if got := e.s.LastSeq(); got != 5 {
		e.Errorf("LastSeq is %d after 5 batches, TrimJournal(6) and a crash", got)
	}
	e.journalEntries(1)
	e.reopen()
	e.check("with one more batch")
}
