package pebble

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/crashfs"
)

const patienceInTests = 120 * time.Second

// An applier is a store, or one that a test has broken.
type applier interface {
	LastSeq() uint64
	Apply(b *storage.Batch) (wait func() error, err error)
}

// unwaited breaks a rule: wait does not wait.
type unwaited struct{ *Store }

func (u unwaited) Apply(b *storage.Batch) (wait func() error, err error) {
	_, err = u.Store.Apply(b)
	return func() error { return nil }, err
}

// run applies batches from the store's next one to last, keeps a few of them unsynced, and records
// in acked what was acknowledged. It stops at the first error.
func run(s applier, last uint64, n int, acked *atomic.Uint64) error {
	type pending struct {
		seq  uint64
		wait func() error
	}
	var queue []pending
	settle := func(keep int) error {
		for len(queue) > keep {
			if err := queue[0].wait(); err != nil {
				return err
			}
			acked.Store(queue[0].seq)
			queue = queue[1:]
		}
		return nil
	}
	for seq := s.LastSeq() + 1; seq <= last; seq++ {
		wait, err := s.Apply(batchOf(seq, n))
		if err != nil {
			return errors.Join(err, settle(0))
		}
		queue = append(queue, pending{seq, wait})
		if err := settle(3); err != nil {
			return err
		}
	}
	return settle(0)
}

// prefixOf returns the last batch of the contents, which must be those of a prefix.
func prefixOf(s *Store, n int) (uint64, error) {
	got, err := contents(s)
	if err != nil {
		return 0, err
	}
	if !maps.Equal(got, model(s.LastSeq(), n)) {
		return 0, fmt.Errorf("%d entries are not those of batches 1 to %d", len(got), s.LastSeq())
	}
	return s.LastSeq(), nil
}

// A slowLog makes each sync of the log take that long.
type slowLog time.Duration

func (slowLog) String() string { return "(slow log)" }

func (d slowLog) MaybeError(op errorfs.Op) error {
	if d > 0 && onLog(errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo)(op) {
		time.Sleep(time.Duration(d))
	}
	return nil
}

// crashes applies batches and cuts the power at random moments, unsynced without a wait for the
// syncs; it returns how many acknowledged
// batches were missing.
func crashes(t *testing.T, unsynced bool, slow slowLog, seed uint64, rounds int) (lost int) {
	const n = 20
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, kept := range []int{0, 50, 100} {
		fsys := crashfs.New()
		var acked atomic.Uint64
		for round := range rounds {
			s, err := Open("store", Options{FS: errorfs.Wrap(fsys, slow), SmallTables: true, CacheBytes: 1 << 20})
			if err != nil {
				t.Fatalf("seed %d, %d %% kept, round %d: %v", seed, kept, round, err)
			}
			last, err := prefixOf(s, n)
			if err != nil {
				t.Fatalf("seed %d, %d %% kept, round %d: %v", seed, kept, round, err)
			}
			if last < acked.Load() {
				lost++
			}
			acked.Store(last)
			var crashed *crashfs.FS
			var told uint64
			stop := last + 1 + uint64(rng.IntN(60))
			crash := make(chan struct{})
			go func() {
				defer close(crash)
				for acked.Load() < stop {
					time.Sleep(100 * time.Microsecond)
				}
				told = acked.Load()
				crashed = fsys.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: rand.New(rand.NewPCG(seed, uint64(round)))})
			}()
			within(t, patienceInTests, "a run", func() {
				var a applier = s
				if unsynced {
					a = unwaited{s}
				}
				if err := run(a, stop+30, n, &acked); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
				<-crash
			})
			mustClose(t, s)
			fsys = crashed
			acked.Store(told)
		}
	}
	return lost
}

func TestAcknowledgedBatchesSurviveAPowerCut(t *testing.T) {
	t.Parallel()
	seeds, rounds := uint64(2), 4
	if os.Getenv("HAPAX_SWEEP") == "all" {
		seeds, rounds = 20, 12
	}
	for seed := range seeds {
		if lost := crashes(t, false, 0, seed, rounds); lost != 0 {
			t.Fatalf("seed %d: %d crashes lost acknowledged batches", seed, lost)
		}
	}
}

// The control: a store that does not wait loses batches.
func TestAcknowledgingBeforeTheSyncIsSeenToLose(t *testing.T) {
	for seed := range uint64(50) { // one seed is nearly always enough, because no cut misses a slow sync
		if crashes(t, true, slowLog(20*time.Millisecond), seed, 4) != 0 {
			return
		}
	}
	t.Fatal("no acknowledged batch was lost without waiting for the sync: the crash test tests nothing")
}

func sweepWorkload(fsys vfs.FS, acked *atomic.Uint64) error {
	s, err := Open("store", Options{FS: fsys, SmallTables: true, CacheBytes: 1 << 20})
	if err != nil {
		return err
	}
	if err := errors.Join(run(s, 40, 50, acked), s.TrimJournal(1), s.WriteSidecar("x", writeString("x"))); err != nil {
		return errors.Join(err, s.Close())
	}
	return s.Close()
}

// Every operation of a workload fails once: whatever the store then returns, no acknowledged batch
// is missing later, and nothing hangs or dies.
func TestAnyFailingOperationLosesNothing(t *testing.T) {
	t.Parallel()
	counted := &counter{at: -1}
	var acked atomic.Uint64
	if err := sweepWorkload(errorfs.Wrap(vfs.NewMem(), counted), &acked); err != nil {
		t.Fatal(err)
	}
	ops := counted.n.Load()
	step := stepInTests(13)
	failed := 0
	for at := int64(0); at < ops; at += step {
		what := fmt.Sprintf("operation %d of %d", at, ops)
		mem := vfs.NewMem()
		inj := &counter{at: at}
		acked.Store(0)
		var err error
		within(t, patienceInTests, what, func() { err = sweepWorkload(errorfs.Wrap(mem, inj), &acked) })
		if err != nil {
			failed++
			if !errors.Is(err, errorfs.ErrInjected) {
				t.Errorf("%s (%s): the error does not wrap the cause: %v", what, inj.op(), err)
			}
		}
		within(t, patienceInTests, what+", reopened", func() {
			s, err := Open("store", Options{FS: mem, SmallTables: true, CacheBytes: 1 << 20})
			if err != nil {
				t.Errorf("%s (%s): reopening: %v", what, inj.op(), err)
				return
			}
			last, err := prefixOf(s, 50)
			if err != nil || last < acked.Load() {
				t.Errorf("%s (%s): batches to %d were acknowledged, %d are there: %v", what, inj.op(), acked.Load(), last, err)
			}
			mustClose(t, s)
		})
	}
	t.Logf("%d operations, every %d. failed once, %d runs saw an error", ops, step, failed)
}

// counter counts operations and fails the one with the number at.
type counter struct {
	at   int64
	n    atomic.Int64
	what atomic.Value
}

func (c *counter) String() string { return "(counter)" }

func (c *counter) MaybeError(op errorfs.Op) error {
	if c.n.Add(1)-1 != c.at {
		return nil
	}
	c.what.Store(fmt.Sprintf("kind %d on %s", op.Kind, op.Path))
	return errorfs.ErrInjected
}

func (c *counter) op() any { return c.what.Load() }

func writeString(content string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, content)
		return err
	}
}

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 2)) }

// An attestation of a batch that a power cut can still take away would make an undamaged store look
// damaged.
func TestNoBatchIsAttestedBeforeItIsDurable(t *testing.T) {
	mem := crashfs.New()
	g := newGate(onLog(errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo))
	s := openSmall(t, errorfs.Wrap(mem, g))
	mustApply(t, s, batchOf(1, 20))
	g.shut.Store(true)
	wait, err := s.Apply(batchOf(2, 20)) // before the first batch is attested, unless the machine is slow
	if err != nil {
		t.Fatal(err)
	}
	var crashed *crashfs.FS
	eventually(t, "the first batch is attested", func() bool {
		crashed = mem.CrashClone(vfs.CrashCloneCfg{})
		a, err := decodeAttestation(filesOf(t, crashed, "store")[attestName])
		return err == nil && a.seq > 0
	})
	g.letGo()
	if err := wait(); err != nil {
		t.Error(err)
	}
	mustClose(t, s)
	s = openSmall(t, crashed)
	if last, err := prefixOf(s, 20); err != nil || last != 1 {
		t.Errorf("after a power cut the newest batch is %d, want 1: %v", last, err)
	}
	mustClose(t, s)
}
