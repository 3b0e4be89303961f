package storetest

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
)

func secondOpenIsErrLocked(e *env) {
	e.claims(claim(bucket("a", week), "x", "1"))
	for range 2 {
		s, err := e.h.Open(e.test, e.dir)
		if !errors.Is(err, storage.ErrLocked) {
			e.Errorf("opening a store that is open: %v, want ErrLocked", err)
		}
		if err == nil {
			_ = s.Close()
		}
	}
	e.claims(claim(bucket("a", week), "y", "2"))
	e.inEveryForm(func() {})
}

func oneEngineUsesAStore(e *env) {
	if err := e.s.Acquire(); err != nil {
		e.Errorf("Acquire: %v", err)
	}
	if err := e.s.Acquire(); !errors.Is(err, storage.ErrInUse) {
		e.Errorf("Acquire again: %v, want ErrInUse", err)
	}
	e.s.Release()
	if err := e.s.Acquire(); err != nil {
		e.Errorf("Acquire after Release: %v", err)
	}
	e.s.Release()
	s := e.s
	e.shut()
	if err := s.Acquire(); !errors.Is(err, storage.ErrInUse) {
		e.Errorf("Acquire after Close: %v, want ErrInUse", err)
	}
	e.open()
}

func secondCloseIsHarmless(e *env) {
	e.neighbours()
	s := e.s
	e.shut()
	for range 2 {
		e.within(e.h.patience, "a second Close", s.Close)
	}
	e.open()
	e.check("after a second Close")
	e.claims(claim(bucket("a", week), "later", "x"))
	e.within(e.h.patience, "Close of a store that was opened again", s.Close)
	e.claims(claim(bucket("a", week), "later still", "x"))
	e.inEveryForm(func() {})
}

// closeLeavesNoGoroutine ignores the goroutines that the first store starts for all stores.
func closeLeavesNoGoroutine(e *env) {
	e.neighbours()
	e.shut()
	before := runtime.NumGoroutine()
	for range 3 {
		e.open()
		e.claims(numbered(bucket("a", week), 0, 10)...)
		e.shut()
	}
	after := 0
	for end := time.Now().Add(e.h.patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if after = runtime.NumGoroutine(); after <= before {
			return
		}
	}
	stacks := make([]byte, 1<<20)
	e.Errorf("there were %d goroutines, and are %d after opening and closing three times\n%s", before, after, stacks[:runtime.Stack(stacks, true)])
}

func newStoresAreDistinct(e *env) {
	ids := []storage.Identity{e.s.Identity()}
	for i := range 3 {
		e.onOther(fmt.Sprint(e.dir, "-", i), func(s storage.Store) { ids = append(ids, s.Identity()) })
	}
	for i, a := range ids {
		if a.UUID == ([16]byte{}) || a.Seed == 0 {
			e.Errorf("a new store's identity is %v", a)
		}
		for _, b := range ids[:i] {
			if a.UUID == b.UUID || a.Seed == b.Seed {
				e.Errorf("two new stores have the identities %v and %v", a, b)
			}
		}
	}
}

func newerFormatIsRefused(e *env) {
	e.neighbours()
	e.writeSidecar("filter", []byte("x"))
	e.reopen()
	e.shut()
	undo := e.h.MakeNewer(e.test, e.dir)
	before := e.h.Fingerprint(e.test, e.dir)
	s, err := e.h.Open(e.test, e.dir)
	if !errors.Is(err, storage.ErrNewerFormat) {
		e.Errorf("opening a store of a newer format: %v, want ErrNewerFormat", err)
	}
	if err == nil {
		_ = s.Close()
	}
	if after := e.h.Fingerprint(e.test, e.dir); after != before {
		e.Errorf("rejecting a newer store has changed it")
	}
	undo()
	e.open()
	e.check("opened by the newer build")
}

// failing applies some batches, waits for the first ones, and makes the store's writes fail.
func (e *env) failing() (cause error) {
	e.Helper()
	if e.h.FailWrites == nil {
		e.test.Skip("the harness has no FailWrites")
	}
	e.neighbours()
	e.writeSidecar("filter", []byte("old"))
	for i := range 6 {
		e.apply(storage.Batch{Claims: numbered(bucket("a", week), 100*i, 100*i+10), State: []storage.StateWrite{set("last", fmt.Sprint(i))}})
	}
	e.wait(3)
	e.test.Cleanup(func() { e.s = nil })
	return e.h.FailWrites(e.test, e.s)
}

// failedWriteConfirmsNothing checks that a wait after the failure confirms only what is there after
// a crash.
func failedWriteConfirmsNothing(e *env) {
	cause := e.failing()
	for i := range 4 {
		batch := &storage.Batch{Seq: e.told.view.lastSeq + 1, Claims: numbered(bucket("b", week), 100*i, 100*i+10)}
		wait, err := e.s.Apply(batch)
		e.told.apply(batch) // also a batch whose Apply has failed may be there after the crash
		if err != nil {
			if !errors.Is(err, cause) {
				e.Errorf("Apply on a failed disk: %v, which does not wrap the cause", err)
			}
			break
		}
		e.waits = append(e.waits, wait)
	}
	failed := uint64(0)
	confirmed := e.told.durable.lastSeq
	for _, wait := range e.waits {
		seq := confirmed + 1
		err := wait()
		switch {
		case err == nil && failed != 0:
			e.Errorf("the wait for batch %d failed, that for batch %d did not", failed, seq)
		case err != nil && !errors.Is(err, cause):
			e.Errorf("waiting for batch %d: %v, which does not wrap the cause", seq, err)
		case err != nil && failed == 0:
			failed = seq
		case err == nil:
			e.told.confirm(seq)
		}
		confirmed = seq
	}
	if len(e.waits) > 3 && failed == 0 {
		e.Errorf("every wait has succeeded on a failed disk")
	}
	e.waits = nil
	if e.h.CrashClone == nil {
		e.shutPoisoned()
		return
	}
	clone := e.h.CrashClone(e.test, e.s, e.dir, 0)
	e.shutPoisoned()
	e.dir = clone
	e.open()
	e.adopt()
	e.check("after a failed disk and a power cut")
	e.expectSidecar("after a failed disk and a power cut", "filter", []byte("old"))
}

func (e *subject) shutPoisoned() {
	e.Helper()
	s := e.s
	e.within(e.h.patience, "Close of a poisoned store", func() error {
		_ = s.Close() // it may return the failure
		return nil
	})
	e.s = nil
}

func poisonedStoreRefuses(e *env) {
	cause := e.failing()
	refused := func(what string, err error) {
		e.Helper()
		if !errors.Is(err, cause) {
			e.Errorf("%s on a poisoned store: %v, want an error that wraps %v", what, err, cause)
		}
	}
	var err error
	seq := e.told.view.lastSeq
	waits := e.waits
	for range 2 { // one of them returns the failure if no earlier call did
		seq++
		var wait func() error
		if wait, err = e.s.Apply(&storage.Batch{Seq: seq, State: []storage.StateWrite{set("x", "y")}}); err != nil {
			break
		}
		waits = append(waits, wait)
	}
	for _, wait := range waits {
		err = errors.Join(err, wait())
	}
	refused("Apply or its wait", err)

	_, err = e.s.Apply(&storage.Batch{Seq: seq + 1, State: []storage.StateWrite{set("x", "y")}})
	refused("Apply", err)
	refused("TrimJournal", e.s.TrimJournal(3))
	refused("Drop", e.s.Drop([]storage.Bucket{bucket("a", week)}))
	refused("WriteSidecar", e.s.WriteSidecar("filter", writerOf([]byte("new"))))
	e.shutPoisoned()
}

func poisonedStoreCloses(e *env) {
	_ = e.failing()
	if wait, err := e.s.Apply(&storage.Batch{Seq: e.told.view.lastSeq + 1, Journal: []byte("x")}); err == nil {
		e.waits = append(e.waits, wait)
	}
	for _, wait := range e.waits {
		_ = wait()
	}
	e.shutPoisoned()
	// The disk may still be bad, but no store has the directory open.
	s, err := e.h.Open(e.test, e.dir)
	if errors.Is(err, storage.ErrLocked) {
		e.Errorf("opening a store that was closed after a failure: %v", err)
	}
	if err == nil {
		_ = s.Close()
	}
}
