package engine

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/bloom"
	"github.com/hapax-dev/hapax/engine/internal/occ"
	"github.com/hapax-dev/hapax/weekbucket"
)

// Values and functions for the tests in package engine_test.
const (
	DefaultRetentionWeeks = defaultRetentionWeeks
	DefaultAllowedSkew    = defaultAllowedSkew
	DefaultMaxIDBytes     = defaultMaxIDBytes
	MaxBatchEvents        = maxBatchEvents
	FewGroupClaims        = fewGroupClaims
	MaxProblems           = maxProblems
	MaxRecentWriteBytes   = occ.MaxRecentBytes
	FromSnapshot          = "snapshot+journal"
	FromJournal           = "journal"
	FromScan              = "scan"
)

// WithSnapshotEvery makes the engine write a snapshot after every n claims.
func (o Options) WithSnapshotEvery(n uint64) Options {
	o.snapshotEvery = n
	return o
}

// WithTrimAtClose makes Close remove a journal of at most n batches.
func (o Options) WithTrimAtClose(n uint64) Options {
	o.trimAtClose = n
	return o
}

// WithSnapshotRetry makes the engine repeat a failed snapshot after the given time.
func (o Options) WithSnapshotRetry(after time.Duration) Options {
	o.snapshotRetry = after
	return o
}

// ForgetFilter empties the filter of a week, and LoseFilter removes it from the engine, which never
// happens otherwise: existing claims are then denied.
func (e *Engine) ForgetFilter(w weekbucket.Week) {
	e.finder.filters.Replace(w, bloom.New(bloom.Options{}))
}

func (e *Engine) LoseFilter(w weekbucket.Week) { e.finder.filters.Replace(w, nil) }

// AwaitBehind waits until the background work that has begun is done. Use it for an engine that
// begins no other meanwhile.
func (e *Engine) AwaitBehind(t testing.TB) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.core.behind.Wait()
	}()
	select {
	case <-done:
	case <-time.After(Patience):
		t.Errorf("background work does not end:\n%s", Stacks())
	}
}

// AwaitTaken waits until n callers in tests wait for their answers, and the committer has decided
// all that it can and waits for something else. If that does not happen, the test fails but
// continues, so that it releases what it blocks.
func (e *Engine) AwaitTaken(t testing.TB, n int) {
	t.Helper()
	await(t, fmt.Sprint("the requests of ", n, " callers are not taken"), func() bool { return e.taken(n) })
}

// AwaitCallers waits until n callers in tests wait for their answers. It fails as AwaitTaken does.
func (e *Engine) AwaitCallers(t testing.TB, n int) {
	t.Helper()
	await(t, fmt.Sprint("fewer than ", n, " callers wait"), func() bool {
		callers := 0
		for _, stack := range stacks() {
			if isCaller(stack) {
				callers++
			}
		}
		return callers >= n
	})
}

func await(t testing.TB, failure string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Errorf("%s:\n%s", failure, Stacks())
			return
		}
	}
}

// Patience bounds the waits of tests that would otherwise block: a busy machine may take long.
const Patience = time.Minute

// Stacks returns the stacks of all goroutines.
func Stacks() string { return strings.Join(stacks(), "\n\n") }

// stacks returns the stacks of all goroutines: nothing else shows that a goroutine has begun to
// wait.
func stacks() []string {
	buf := make([]byte, 1<<20)
	return strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
}

// isCaller reports whether a goroutine of a test, and not background work, waits for the answer to
// a request.
func isCaller(stack string) bool {
	return strings.Contains(stack, "engine.(*ticket).await(") && strings.Contains(stack, "/engine_test.")
}

func (e *Engine) taken(n int) bool {
	waits := false // the committer waits for a batch to be applied, and takes no request meanwhile
	for _, stack := range stacks() {
		state, _, _ := strings.Cut(stack, "]")
		switch {
		case isCaller(stack):
			n--
		case strings.Contains(stack, "engine.(*committer).commitLoop(") && (strings.Contains(state, "[run") || strings.Contains(state, "[syscall")):
			return false
		case strings.Contains(stack, "engine.(*committer).commitLoop("):
			waits = waits || strings.Contains(state, "[sync.Cond.Wait")
		}
	}
	return n <= 0 && (waits || len(e.queue.requests) == 0)
}

// SnapshotRunning reports whether a snapshot is being written: no other one begins until it is
// done.
func (e *Engine) SnapshotRunning() bool { return e.snaps.Status().Running }

// Snapshots returns the batch up to which each of the two snapshots on disk is complete, 0 for
// none.
func (e *Engine) Snapshots() [2]uint64 { return e.snaps.Status().OnDisk }

// RecentWriteBytes returns the counted memory of recent writes.
func (e *Engine) RecentWriteBytes() int { return e.transactor.history.RecentBytes() }

// ForgetSums empties the cache of sums, as if other keys had displaced them.
func (e *Engine) ForgetSums() {
	e.transactor.sums.mu.Lock()
	defer e.transactor.sums.mu.Unlock()
	e.transactor.sums.lru.Purge()
}

// SumBytes returns the memory that the cache of sums accounts for.
func (e *Engine) SumBytes() int {
	e.transactor.sums.mu.Lock()
	defer e.transactor.sums.mu.Unlock()
	return e.transactor.sums.bytes
}

// Reservations returns how many claims open transactions hold.
func (e *Engine) Reservations() int { return e.transactor.reserved.Count() }

// Prepare prepares an at-most-once claim on an event, as TryClaim does before it is handed over.
// decide hands it over and returns the verdict.
func (e *Engine) Prepare(t testing.TB, ev Event) (decide func() Result) {
	t.Helper()
	r, results := e.queue.spares.newOwn(), make([]Result, 1)
	if err := e.finder.prepare(r, []Event{ev}, results); err != nil || r.open == 0 {
		t.Fatalf("the event is not for the committer to decide: %v, %v", results[0], err)
	}
	return func() Result {
		if err := e.queue.submit(t.Context(), r); err != nil {
			t.Error(err)
		}
		return results[0]
	}
}
