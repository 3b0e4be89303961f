package engine_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

var allOps = []storetest.Op{
	storetest.OpApply, storetest.OpWait, storetest.OpClaim, storetest.OpState, storetest.OpScanState, storetest.OpBuckets,
	storetest.OpScan, storetest.OpJournal, storetest.OpTrimJournal, storetest.OpDrop, storetest.OpReclaim, storetest.OpUsage,
	storetest.OpBucketBytes, storetest.OpWriteSidecar, storetest.OpReadSidecar, storetest.OpBackup, storetest.OpVerify,
}

// stopping lists the operations whose failure stops the engine, because it can no longer judge or
// write.
var stopping = map[storetest.Op]bool{
	storetest.OpApply: true, storetest.OpWait: true, storetest.OpClaim: true, storetest.OpState: true, storetest.OpBuckets: true,
	storetest.OpDrop: true, storetest.OpReclaim: true, storetest.OpBucketBytes: true,
}

// A witness records what an engine has acknowledged.
type witness struct {
	mu        sync.Mutex
	claimed   map[string]bool
	forgotten map[string]bool // attempted, acknowledged or not
	balance   string
	oldest    bool // a drop was acknowledged
	dropping  bool // a drop was attempted
	errs      []error
}

func (w *witness) note(err error, fn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.errs = append(w.errs, err)
		return
	}
	fn()
}

func oldEvent(id string) engine.Event {
	ev := event(id)
	ev.Time = noon.AddDate(0, 0, -7*engine.DefaultRetentionWeeks)
	return ev
}

// work calls most operations, some of them concurrently, and continues after errors.
func (w *witness) work(t *testing.T, e *engine.Engine) {
	own := func(ev engine.Event) {
		r, err := e.TryClaim(ctx, ev)
		w.note(err, func() {
			if r.Verdict == engine.Claimed || r.Verdict == engine.Duplicate {
				w.claimed[string(ev.ID)] = true
			}
		})
		if err != nil && r.Verdict != engine.Failed {
			t.Errorf("told %v with error %v", r.Verdict, err)
		}
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 4 {
				own(event(fmt.Sprint("own", g, i)))
				own(event(fmt.Sprint("shared", i)))
			}
		})
	}
	wg.Wait()
	own(oldEvent("old"))
	own(event("shared0")) // a duplicate
	err := e.Update(ctx, func(tx *engine.Tx) error {
		_, _, getErr := tx.Get([]byte("balance"))
		_, err := tx.TryClaim(event("tx"))
		return errors.Join(getErr, err, tx.Put([]byte("balance"), []byte("7")))
	})
	w.note(err, func() { w.balance = "7"; w.claimed["tx"] = true })
	w.note(e.SetHold(ctx, "h", noon), func() {})
	w.forgotten["own00"] = true
	_, err = e.Admin().Forget(ctx, "billing", []byte("own00"), noon)
	w.note(err, func() { delete(w.claimed, "own00") })
	_, _, err = e.Admin().Lookup(ctx, "billing", []byte("tx"), noon)
	w.note(err, func() {})
	_, err = e.Weeks(ctx)
	w.note(err, func() {})
	w.dropping = true
	_, err = e.Retention().DropWeek(ctx, e.Retention().OldestWeek())
	w.note(err, func() { w.oldest = true })
	w.note(e.Retention().Reclaimed(ctx), func() {})
	_, err = e.Admin().Verify(ctx)
	w.note(err, func() {})
	w.note(e.Admin().Backup(ctx, "backup"), func() {})
	_, err = e.Stats()
	w.note(err, func() {})
	own(event("last"))
}

// check opens the state after a crash and looks for all acknowledged results.
func (w *witness) check(t *testing.T, m *storetest.Mem) {
	e := open(t, m, engine.Options{})
	for id := range w.claimed {
		if id == "old" && w.dropping || w.forgotten[id] {
			continue
		}
		ev := event(id)
		if id == "old" {
			ev = oldEvent(id)
		}
		if r := claim(t, e, ev); r.Verdict != engine.Duplicate {
			t.Errorf("%q was acknowledged, and is %v after the crash", id, r.Verdict)
		}
	}
	if w.balance != "" {
		wantKept(t, e, map[string]string{"balance": w.balance})
	}
	if w.oldest {
		wantVerdict(t, claim(t, e, oldEvent("old")), engine.TooOld)
	}
	eventually(t, "the background work of Open is done", func() bool {
		s, err := e.Stats()
		return err != nil || !s.FilterRebuilding
	})
	if r, err := e.Admin().Verify(ctx); err != nil || r.Total != 0 {
		t.Errorf("verifying: %+v, %v", r, err)
	}
	if err := e.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
}

// prepared returns a store that already has claims.
func prepared(t *testing.T) *storetest.Mem {
	m := storetest.NewMem(storage.Identity{})
	e := open(t, m, engine.Options{})
	claim(t, e, event("first"))
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	m, err := m.Disk().Open("mem", storage.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestEveryFailingOperationOfTheStoreIsFailStop(t *testing.T) {
	m := prepared(t)
	e := open(t, m, engine.Options{RecentClaims: -1})
	(&witness{claimed: map[string]bool{}, forgotten: map[string]bool{}}).work(t, e)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	swept := 0
	for _, op := range allOps {
		calls := m.Calls(op) // from a run without failures; the number varies a little
		for n := 1; n <= calls; n++ {
			failAt(t, op, n)
			swept++
		}
	}
	t.Logf("%d failures", swept)
}

func failAt(t *testing.T, op storetest.Op, n int) {
	t.Run(fmt.Sprintf("%s-%d", op, n), func(t *testing.T) {
		before := runtime.NumGoroutine()
		m := prepared(t)
		cause := errors.New("the disk is on fire")
		m.FailAt(op, n, cause)
		hit := func() bool { return m.Calls(op) >= n }
		w := &witness{claimed: map[string]bool{"first": true}, forgotten: map[string]bool{}}
		e, err := engine.Open(m, engine.Options{RecentClaims: -1, ExpectedPerWeek: 1000, Clock: (&clock{t: noon}).now})
		if err != nil {
			if !errors.Is(err, cause) {
				t.Errorf("opening: %v", err)
			}
			w.check(t, m.CrashClone(0))
			if err := m.Close(); err != nil {
				t.Errorf("closing the store after a failed opening: %v", err)
			}
			awaitGoroutines(t, before)
			return
		}
		w.work(t, e)
		if stopping[op] && hit() { // perhaps in the background, a moment ago
			eventually(t, "the engine stops", func() bool { return e.Err() != nil })
		}
		failed := e.Err()
		if failed != nil && (!errors.Is(failed, engine.ErrStopped) || !errors.Is(failed, cause)) {
			t.Errorf("stopped with %v", failed)
		}
		for _, err := range w.errs {
			stopped := errors.Is(err, engine.ErrStopped)
			if !errors.Is(err, cause) || stopping[op] && !stopped {
				t.Errorf("a caller was told %v", err)
			}
		}
		if failed != nil {
			if r, err := e.TryClaim(ctx, event("after")); r.Verdict != engine.Failed || !errors.Is(err, engine.ErrStopped) {
				t.Errorf("after the failure: got %v, %v", r.Verdict, err)
			}
			if err := e.Update(ctx, func(*engine.Tx) error { t.Error("the closure runs"); return nil }); !errors.Is(err, engine.ErrStopped) {
				t.Errorf("after the failure: Update: %v", err)
			}
		}
		for keep := range m.Unsynced() + 1 {
			w.check(t, m.CrashClone(keep))
		}
		err = e.Close()
		if failed == nil {
			failed = e.Err() // in the background, meanwhile
		}
		if (err == nil) != (failed == nil) || failed != nil && !errors.Is(err, cause) {
			t.Errorf("closing: %v", err)
		}
		awaitGoroutines(t, before)
	})
}

// awaitGoroutines fails if there are more goroutines than before, and they do not end.
func awaitGoroutines(t *testing.T, before int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if runtime.NumGoroutine() <= before {
			return
		}
	}
	buf := make([]byte, 1<<16)
	t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
}

func TestAFailedSyncAnswersAllWaiters(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	m.HoldSyncs()
	const n = 20
	errs := make(chan error, n)
	for i := range n {
		go func() {
			var err error
			switch i % 4 {
			case 0:
				_, err = e.TryClaim(ctx, event("same"))
			case 1:
				_, err = e.TryClaimBatch(ctx, []engine.Event{event(fmt.Sprint(i)), event("same")})
			case 2:
				err = e.Update(ctx, func(tx *engine.Tx) error { return tx.Put([]byte("k"), nil) })
			case 3:
				err = e.SetHold(ctx, fmt.Sprint(i), noon)
			}
			errs <- err
		}()
	}
	awaitHeld(t, m)
	time.Sleep(10 * time.Millisecond)
	cause := errors.New("no space left")
	m.Fail(cause)
	for range n {
		select {
		case err := <-errs:
			if !errors.Is(err, engine.ErrStopped) || !errors.Is(err, cause) {
				t.Errorf("told %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("a caller waits forever")
		}
	}
	after := open(t, m.CrashClone(0), engine.Options{})
	wantVerdict(t, claim(t, after, event("same")), engine.Claimed)
}

// hasty is a store that reports a batch as durable before it is.
type hasty struct{ *storetest.Mem }

func (h hasty) Apply(b *storage.Batch) (func() error, error) {
	_, err := h.Mem.Apply(b)
	return func() error { return nil }, err
}

// lostAfterPowerCut counts the acknowledged claims and transactions that are lost after a power
// failure.
func lostAfterPowerCut(t *testing.T, m *storetest.Mem, store storage.Store) (lost int) {
	e := open(t, store, engine.Options{})
	for i := range 5 {
		wantVerdict(t, claim(t, e, event(fmt.Sprint("own", i))), engine.Claimed)
		update(t, e, func(tx *engine.Tx) { wantTx(t, tx, event(fmt.Sprint("tx", i)), engine.Claimed) })
	}
	after := open(t, m.CrashClone(0), engine.Options{})
	for i := range 5 {
		for _, kind := range []string{"own", "tx"} {
			if claim(t, after, event(fmt.Sprint(kind, i))).Verdict == engine.Claimed {
				lost++
			}
		}
	}
	return lost
}

func TestAcknowledgedSurvivesAPowerFailureAndTheCheckDetectsAStoreThatDoesNotSync(t *testing.T) {
	honest := storetest.NewMem(storage.Identity{})
	if lost := lostAfterPowerCut(t, honest, honest); lost != 0 {
		t.Errorf("%d acknowledged claims are lost", lost)
	}
	m := storetest.NewMem(storage.Identity{})
	if lost := lostAfterPowerCut(t, m, hasty{m}); lost == 0 {
		t.Error("the check does not detect a store that does not sync")
	}
}

func TestErrorsOfAStoppedEngineNameTheCauseOnce(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	m.FailAt(storetest.OpApply, 1, errBoom)
	_, err := e.TryClaim(ctx, event("a"))
	if !errors.Is(err, errBoom) || strings.Count(err.Error(), "boom") != 1 {
		t.Error(err)
	}
}

// A store that fails during a commit leaves its outcome unknown: both outcomes occur, and the error
// says so. Every other error says that nothing was applied.
func TestOutcomeOfACommitIsUnknownAfterAFailedSync(t *testing.T) {
	for kept, want := range []engine.Verdict{engine.Claimed, engine.Duplicate} {
		e, m := openMem(t, engine.Options{})
		m.HoldSyncs()
		done := make(chan error, 2)
		go func() {
			done <- e.Update(ctx, func(tx *engine.Tx) error { _, err := tx.TryClaim(event("a")); return err })
		}()
		awaitHeld(t, m)
		crashed := m.CrashClone(kept)
		m.Fail(errDisk)
		if err := receive(t, done); !errors.Is(err, engine.ErrOutcomeUnknown) || !errors.Is(err, engine.ErrStopped) || !errors.Is(err, errDisk) {
			t.Errorf("Update returns %v", err)
		}
		for what, err := range map[string]error{
			"Update":   e.Update(ctx, func(tx *engine.Tx) error { return tx.Put([]byte("k"), nil) }),
			"TryClaim": errOf(e.TryClaim(ctx, event("b"))),
		} {
			if !errors.Is(err, engine.ErrStopped) || errors.Is(err, engine.ErrOutcomeUnknown) {
				t.Errorf("%s of a stopped engine returns %v", what, err)
			}
		}
		wantVerdict(t, claim(t, open(t, crashed, engine.Options{}), event("a")), want)
	}
	e, m := openMem(t, engine.Options{})
	m.FailAt(storetest.OpWait, 1, errDisk)
	if _, err := e.TryClaim(ctx, event("a")); !errors.Is(err, engine.ErrOutcomeUnknown) {
		t.Errorf("TryClaim returns %v", err)
	}
}

// Requests after the failed batch were not handed to the store: they have no effect, and their
// error says so.
func TestCommitThatNeverReachedTheStoreHasAKnownOutcome(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	claim(t, e, event("first"))
	begun, fail := make(chan struct{}), make(chan struct{})
	m.Before(storetest.OpApply, func(int) error {
		close(begun)
		<-fail
		return errDisk
	})
	errs := make(chan error, 2)
	go func() { errs <- errOf(e.TryClaim(ctx, event("a"))) }()
	receive(t, begun)
	behind := make(chan error, 1)
	go func() { behind <- errOf(e.TryClaim(ctx, event("b"))) }()
	e.AwaitTaken(t, 2)
	close(fail)
	if err := receive(t, errs); !errors.Is(err, engine.ErrOutcomeUnknown) {
		t.Errorf("the batch that failed returns %v", err)
	}
	if err := receive(t, behind); !errors.Is(err, engine.ErrStopped) || errors.Is(err, engine.ErrOutcomeUnknown) {
		t.Errorf("the batch after it returns %v", err)
	}
}

var errDisk = errors.New("the disk is on fire")

func errOf[T any](_ T, err error) error { return err }
