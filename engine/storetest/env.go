package storetest

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
)

var errStop = errors.New("stop here")

// An env is one store under check, with the batches that it was given.
type env struct {
	subject
	given
	waits []func() error // of the batches in told.pending, in order
}

// newEnv opens a new store, which is closed when the test ends.
func newEnv(t *testing.T, h Harness) *env {
	t.Helper()
	e := &env{subject: subject{reporter: t, test: t, h: h, dir: filepath.Join(t.TempDir(), "store")}, given: newGiven()}
	e.open()
	t.Cleanup(func() { e.shut() })
	return e
}

func (e *env) open() {
	e.Helper()
	s, err := e.h.Open(e.test, e.dir)
	if err != nil {
		e.Fatalf("opening the store: %v", err)
	}
	e.s = s
	e.hidden = 0
}

// reopen waits for all batches, closes the store and opens it.
func (e *env) reopen() {
	e.Helper()
	e.wait(len(e.waits))
	e.shut()
	e.open()
}

// settle brings all batches into their final form.
func (e *env) settle() {
	e.Helper()
	if e.h.Flush == nil {
		e.reopen()
		return
	}
	e.wait(len(e.waits))
	e.h.Flush(e.test, e.s)
}

// crash cuts the power and continues with the remaining state, which must be a prefix of the given
// batches.
func (e *env) crash(unsyncedPercent int) {
	e.Helper()
	e.needCrash()
	clone := e.h.CrashClone(e.test, e.s, e.dir, unsyncedPercent)
	if err := e.s.Close(); err != nil {
		e.Errorf("closing the store that a clone was made of: %v", err)
	}
	e.s, e.dir = nil, clone
	e.open()
	e.adopt()
}

// adopt records which batches the opened store contains.
func (e *env) adopt() {
	e.Helper()
	found := e.s.LastSeq()
	durable := e.told.durable.lastSeq
	if found < durable || found > e.told.view.lastSeq {
		e.Fatalf("after a crash LastSeq is %d; waits have confirmed %d, %d were applied", found, durable, e.told.view.lastSeq)
	}
	e.told = newHistory(e.told.survivors(int(found - durable)))
	e.waits = nil
	for seq := range e.entries {
		if seq > found {
			delete(e.entries, seq)
		}
	}
}

// apply applies a batch and does not wait for it.
func (e *env) apply(b storage.Batch) {
	e.Helper()
	b.Seq = e.told.view.lastSeq + 1
	own := cloneBatch(&b)
	wait, err := e.s.Apply(&b)
	if err != nil {
		e.Fatalf("Apply of batch %d: %v", own.Seq, err)
	}
	e.told.apply(own)
	e.entries[own.Seq] = own.Journal
	e.waits = append(e.waits, wait)
}

// wait waits for the next n batches.
func (e *env) wait(n int) {
	e.Helper()
	for range n {
		seq := e.told.pending[0].Seq
		if err := e.waits[0](); err != nil {
			e.Fatalf("waiting for batch %d: %v", seq, err)
		}
		e.waits = e.waits[1:]
		e.told.confirm(seq)
	}
}

// put applies a batch and waits for it.
func (e *env) put(b storage.Batch) {
	e.Helper()
	e.apply(b)
	e.wait(len(e.waits))
}

func (e *env) claims(c ...storage.ClaimWrite) { e.Helper(); e.put(storage.Batch{Claims: c}) }
func (e *env) state(s ...storage.StateWrite)  { e.Helper(); e.put(storage.Batch{State: s}) }

func (e *env) trim(below uint64) {
	e.Helper()
	if err := e.s.TrimJournal(below); err != nil {
		e.Fatalf("TrimJournal(%d): %v", below, err)
	}
	e.trimmed = max(e.trimmed, below)
	e.hidden = max(e.hidden, below)
}

func (e *env) drop(buckets ...storage.Bucket) {
	e.Helper()
	err := e.s.Drop(buckets)
	if err != nil {
		e.Fatalf("Drop(%v): %v", buckets, err)
	}
	e.told.drop(buckets)
	for _, b := range buckets {
		e.gone[b] = true
	}
}

// check compares all contents of the store with the given batches.
func (e *env) check(when string) {
	e.Helper()
	if diff := e.compare(e.s, e.told.view); diff != "" {
		e.Fatalf("%s: %s", when, diff)
	}
}
