package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
)

var errStop = errors.New("stop here")

// A reporter is what *testing.T and *rapid.T have in common.
type reporter interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// An env is one store under check, with the batches that it was given.
type env struct {
	reporter
	test *testing.T
	h    Harness

	dir string
	s   storage.Store // nil when closed

	told    history
	waits   []func() error // of the batches in told.pending, in order
	entries map[uint64][]byte
	trimmed uint64 // TrimJournal was called with this
	hidden  uint64 // and since the store was opened with this
	gone    map[storage.Bucket]bool
	stuck   bool // a call is under way, so that the store cannot be closed
}

// newEnv opens a new store, which is closed when the test ends.
func newEnv(t *testing.T, h Harness) *env {
	t.Helper()
	e := &env{
		reporter: t,
		test:     t,
		h:        h,
		dir:      filepath.Join(t.TempDir(), "store"),
		told:     newHistory(newContents()),
		entries:  map[uint64][]byte{},
		gone:     map[storage.Bucket]bool{},
	}
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

// shut closes the store if it is open.
func (e *env) shut() {
	e.Helper()
	if e.s == nil || e.stuck {
		return
	}
	s := e.s
	e.s = nil
	if err := s.Close(); err != nil {
		e.Errorf("closing the store: %v", err)
	}
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

// crash cuts the power and continues with what is found then, which must be a prefix of what was
// given.
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

// adopt takes over which batches the opened store has found.
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

func (e *env) needCrash() {
	if e.h.CrashClone == nil {
		e.test.Skip("the harness has no CrashClone")
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

func (e *env) needAtomicClone() {
	e.needCrash()
	if !e.h.AtomicClone {
		e.test.Skip("the harness has no AtomicClone")
	}
}

// within fails the test if f takes too long or returns an error. f runs in a goroutine of its own.
func (e *env) within(d time.Duration, what string, f func() error) {
	e.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err != nil {
			e.Fatalf("%s: %v", what, err)
		}
	case <-time.After(d):
		e.stuck = true
		e.Fatalf("%s has not returned after %v", what, d)
	}
}

// check compares everything that the store shows with what it was given.
func (e *env) check(when string) {
	e.Helper()
	if diff := e.compare(e.s, e.told.view); diff != "" {
		e.Fatalf("%s: %s", when, diff)
	}
}

// compare returns how what s shows differs from want, "" if it does not.
func (e *env) compare(s storage.Store, want *contents) string {
	got, err := readAll(s)
	if err != nil {
		return err.Error()
	}
	var d differences
	d.maps("claim", got.claims, want.claims)
	d.maps("state", got.state, want.state)
	for _, b := range sortedBuckets(want.buckets) {
		if got.buckets[b] == 0 {
			d.add("Buckets misses %v", b)
		}
	}
	for _, b := range sortedBuckets(got.buckets) {
		if want.buckets[b] == 0 {
			d.add("Buckets has %v, which is empty", b)
		}
	}
	for seq := uint64(1); seq <= want.lastSeq; seq++ {
		entry, found := got.journal[seq]
		switch {
		case !found && seq >= e.trimmed:
			d.add("journal entry %d is missing", seq)
		case found && seq < e.hidden:
			d.add("journal entry %d is still there after TrimJournal(%d)", seq, e.hidden)
		case found && !bytes.Equal(entry, e.entries[seq]):
			d.add("journal entry %d is %q, want %q", seq, short(entry), short(e.entries[seq]))
		}
		delete(got.journal, seq)
	}
	for seq := range got.journal {
		d.add("journal entry %d belongs to no batch", seq)
	}
	d.points(s, got)
	return d.String()
}

// readAll reads everything, and checks the order.
func readAll(s storage.Store) (*contents, error) {
	c := newContents()
	var lastKey []byte
	var problem error
	inOrder := func(what string, key []byte) {
		if lastKey != nil && bytes.Compare(lastKey, key) >= 0 && problem == nil {
			problem = fmt.Errorf("%s: key %x comes after %x", what, key, lastKey)
		}
		lastKey = append([]byte{}, key...)
	}
	begun := 0
	err := s.Scan(context.Background(), storage.Span{}, func() { begun++ }, func(key, record []byte) error {
		inOrder("Scan", key)
		if begun != 1 {
			problem = fmt.Errorf("Scan has called started %d times before the first claim", begun)
		}
		c.claims[string(key)] = append([]byte{}, record...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("Scan: %w", err)
	}
	if begun != 1 && problem == nil {
		problem = fmt.Errorf("Scan has called started %d times", begun)
	}
	lastKey = nil
	err = s.ScanState(storage.Span{}, func(key, value []byte) error {
		inOrder("ScanState", key)
		c.state[string(key)] = append([]byte{}, value...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ScanState: %w", err)
	}
	lastKey = nil
	err = s.Buckets(func(b storage.Bucket) error {
		inOrder("Buckets", b.AppendPrefix(nil))
		c.buckets[b]++
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("Buckets: %w", err)
	}
	lastSeq := uint64(0)
	err = s.Journal(0, func(seq uint64, entry []byte) error {
		if seq <= lastSeq {
			problem = fmt.Errorf("Journal: entry %d comes after %d", seq, lastSeq)
		}
		lastSeq = seq
		c.journal[seq] = append([]byte{}, entry...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("Journal: %w", err)
	}
	return c, problem
}

// differences collects the first few of them.
type differences struct {
	lines []string
	more  int
}

func (d *differences) add(format string, args ...any) {
	if len(d.lines) == 5 {
		d.more++
		return
	}
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *differences) maps(what string, got, want map[string][]byte) {
	for _, k := range sortedKeys(want, "") {
		if v, found := got[k]; !found {
			d.add("%s %q is missing", what, short(k))
		} else if !bytes.Equal(v, want[k]) {
			d.add("%s %q is %q, want %q", what, short(k), short(v), short(want[k]))
		}
	}
	for _, k := range sortedKeys(got, "") {
		if _, found := want[k]; !found {
			d.add("%s %q = %q should not be there", what, short(k), short(got[k]))
		}
	}
}

// points ensures that single reads agree with the scans: on some 50 keys of each kind, on keys that
// are longer or shorter by a byte, and on the claims' keys among the states.
func (d *differences) points(s storage.Store, all *contents) {
	claims, state := sortedKeys(all.claims, ""), sortedKeys(all.state, "")
	for i := 0; i < len(claims); i += 1 + len(claims)/50 {
		k := claims[i]
		d.point("Claim", s.Claim, k, all.claims)
		d.point("Claim", s.Claim, k+"\x00", all.claims)
		d.point("Claim", s.Claim, k[:len(k)-1], all.claims)
		d.point("State", s.State, k, all.state)
	}
	for i := 0; i < len(state); i += 1 + len(state)/50 {
		k := state[i]
		d.point("State", s.State, k, all.state)
		d.point("State", s.State, k+"\x00", all.state)
		if len(k) > 1 {
			d.point("State", s.State, k[:len(k)-1], all.state)
		}
	}
}

func (d *differences) point(what string, get func([]byte) ([]byte, bool, error), key string, all map[string][]byte) {
	want, exists := all[key]
	got, found, err := get([]byte(key))
	switch {
	case err != nil:
		d.add("%s(%q): %v", what, short(key), err)
	case found != exists || !bytes.Equal(got, want):
		d.add("%s(%q) is %q, %v; a scan shows %q, %v", what, short(key), short(got), found, short(want), exists)
	}
}

func (d *differences) String() string {
	s := strings.Join(d.lines, "; ")
	if d.more > 0 {
		s += fmt.Sprintf("; and %d more differences", d.more)
	}
	return s
}

func short[T string | []byte](s T) string {
	if len(s) > 80 {
		return fmt.Sprintf("%s... (%d bytes)", string(s[:40]), len(s))
	}
	return string(s)
}
