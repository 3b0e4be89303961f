package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

var errDisk = errors.New("the disk has failed")

// own is a mode without transactions whose handler records its calls.
func (r *rig) own() AtMostOnce {
	return AtMostOnce(func(ctx context.Context, rec *Record) error {
		r.note(ctx, rec)
		return nil
	})
}

// A reopener is the test's Options.ReopenStore.
type reopener struct {
	t testing.TB

	mu    sync.Mutex // guards the rest
	next  []func() (*storetest.Mem, error)
	eng   *engine.Engine // the last one
	mem   *storetest.Mem
	calls int
}

func (o *reopener) open(context.Context) (*engine.Engine, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	if o.eng != nil && o.eng.Err() == nil { // several consumers share it
		return o.eng, nil
	}
	if len(o.next) == 0 {
		return nil, errDisk
	}
	m, err := o.next[0]()
	if err != nil {
		return nil, err
	}
	o.next = o.next[1:]
	eng, err := engine.Open(m, engine.Options{})
	if err != nil {
		return nil, err
	}
	o.t.Cleanup(func() { _ = eng.Close() })
	o.eng, o.mem = eng, m
	return eng, nil
}

// offer sets the store that the next successful call opens.
func (o *reopener) offer(next func() (*storetest.Mem, error)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.next = append(o.next, next)
}

func (o *reopener) last() (*engine.Engine, *storetest.Mem) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.eng, o.mem
}

// powerCut returns what remains of a store after a power failure, with this many of its batches
// that were not durable.
func powerCut(m *storetest.Mem, keep int) func() (*storetest.Mem, error) {
	return func() (*storetest.Mem, error) { return m.CrashClone(keep), nil }
}

// startOpen runs a consumer that continues without its store.
func (r *rig) startOpen(t testing.TB, eng *engine.Engine, change ...func(*Options)) (*member, *reopener) {
	t.Helper()
	o := &reopener{t: t, eng: eng}
	saved := r.eng
	r.eng = eng
	defer func() { r.eng = saved }()
	m := r.start(t, r.own(), append([]func(*Options){func(opt *Options) { opt.ReopenStore = o.open }}, change...)...)
	return m, o
}

// commitOf returns the group's commit, -1 for none.
func (r *rig) commitOf(t testing.TB, partition int32) (int64, string) {
	t.Helper()
	all, err := kadm.NewClient(r.Client(t)).FetchOffsets(t.Context(), r.group)
	if err != nil {
		t.Fatal(err)
	}
	o, found := all.Lookup(r.topic, partition)
	if !found {
		return -1, ""
	}
	return o.At, o.Metadata
}

func (r *rig) untilCommitted(t testing.TB, offset int64, open bool) {
	t.Helper()
	kafkatest.Until(t, fmt.Sprintf("a commit of %d", offset), func() bool {
		at, metadata := r.commitOf(t, 0)
		return at == offset && resume.ParseOpenMark(metadata).Is == open
	})
}

func (r *rig) wantHandled(t testing.TB, ids ...string) {
	t.Helper()
	if got := r.handledIDs(); !slices.Equal(got, ids) {
		t.Errorf("handled %q, want %q", got, ids)
	}
}

func untilReady(t testing.TB, m *member) {
	t.Helper()
	kafkatest.Until(t, "readiness", func() bool { return m.Ready() == nil })
}

func TestConsumerContinuesWithoutItsStore(t *testing.T) {
	for name, pinned := range map[string]fixedShare{"member": {}, "pinned": {count: 1}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			m, o := r.startOpen(t, r.eng, func(opt *Options) { opt.Membership.pinned = pinned })
			r.send(t, 0, "a", "a")
			r.untilHandled(t, 1)
			r.untilStored(t, 0, 2)
			untilReady(t, m)
			m.counts(t, 0, "unprotected")

			r.mem.Fail(errDisk)
			r.send(t, 0, "b", "c", "c")
			r.untilHandled(t, 4)
			r.untilCommitted(t, 5, true)
			r.wantHandled(t, "a", "b", "c", "c")
			if err := m.Ready(); !errors.Is(err, ErrNotReady) || !errors.Is(err, ErrUnprotected) || !errors.Is(err, engine.ErrStopped) {
				t.Errorf("Ready: %v", err)
			}
			if err := m.Live(); err != nil {
				t.Errorf("Live: %v, but a restart would not help", err)
			}
			m.counts(t, 1, "unprotected")
			m.counts(t, 3, "unprotected_total", r.topic)
			for _, x := range r.handled()[1:] {
				if x.verdict != engine.Failed {
					t.Errorf("%+v has a claim", x)
				}
			}
			if err := m.AdoptOffset(t.Context(), r.topic, 0, TrustKafka, "a test"); !errors.Is(err, ErrUnprotected) {
				t.Errorf("AdoptOffset: %v", err)
			}

			o.offer(powerCut(r.mem, 0))
			untilReady(t, m)
			r.eng, r.mem = o.last()
			r.untilStored(t, 0, 5)
			r.send(t, 0, "a", "d", "d")
			r.untilStored(t, 0, 8)
			r.untilCommitted(t, 8, false)
			m.counts(t, 0, "unprotected")
			m.counts(t, 3, "unprotected_total", r.topic)
			m.counts(t, 3, "records_total", "duplicate")
			adoptions, err := m.Adoptions(t.Context())
			if err != nil || len(adoptions) != 1 || adoptions[0].Kind != "RanOpen" || adoptions[0].Store != 2 || adoptions[0].Offset != 5 {
				t.Errorf("adoptions %+v, %v", adoptions, err)
			}
			m.stop(t)
			r.wantHandled(t, "a", "b", "c", "c", "d")
			if !m.logs.has("level=ERROR msg=\"the store has failed") {
				t.Error("no error is logged")
			}
			if m.logs.has(errCommitChanged.Error()) {
				t.Error("its own commit is mistaken for that of another process")
			}
		})
	}
}

// After it is open again, the store fails in each operation in turn, from the first write to those
// of a batch.
func TestStoreThatFailsAgainAtAnyStep(t *testing.T) {
	for _, op := range []storetest.Op{storetest.OpApply, storetest.OpWait, storetest.OpState} {
		for step := 1; step <= 8; step++ {
			t.Run(fmt.Sprintf("%s %d", op, step), func(t *testing.T) {
				r := newRig(t, 1)
				m, o := r.startOpen(t, r.eng)
				r.send(t, 0, "a")
				r.untilHandled(t, 1)
				r.mem.Fail(errDisk)
				r.send(t, 0, "b", "c")
				r.untilHandled(t, 3)

				var second *storetest.Mem
				o.offer(func() (*storetest.Mem, error) {
					second = r.mem.CrashClone(0)
					second.FailAt(op, step, errDisk)
					return second, nil
				})
				o.offer(func() (*storetest.Mem, error) { return second.CrashClone(step % 2), nil })
				kafkatest.Until(t, "a store that is opened", func() bool { eng, _ := o.last(); return eng != r.eng })
				r.send(t, 0, "d", "e", "f")
				r.untilHandled(t, 6)
				untilReady(t, m)
				r.send(t, 0, "g")
				r.untilHandled(t, 7)
				untilReady(t, m)
				r.untilCommitted(t, 7, false)
				_, r.mem = o.last()
				r.open(t, r.mem.CrashClone(0))
				m.stop(t)
				if n := r.stored(t, 0); n != 7 {
					t.Errorf("the store is at %d", n)
				}
				r.wantHandled(t, "a", "b", "c", "d", "e", "f", "g")
			})
		}
	}
}

// The batch that was committing when the store failed survives: its records are claimed and not
// handled.
func TestBatchOfUnknownOutcomeIsHandledWithoutClaims(t *testing.T) {
	for _, restart := range []bool{false, true} {
		for keep := range 2 {
			t.Run(fmt.Sprintf("restart=%v keep=%d", restart, keep), func(t *testing.T) {
				r := newRig(t, 1)
				m, o := r.startOpen(t, r.eng)
				r.send(t, 0, "a")
				r.untilHandled(t, 1)
				m.pause(t, r.topic)
				r.send(t, 0, "b", "c", "d")
				r.mem.FailAt(storetest.OpWait, 1, errDisk)
				cut := powerCut(r.mem, keep)
				if !restart {
					o.offer(cut) // at once
				}
				if err := m.Resume(r.topic); err != nil {
					t.Fatal(err)
				}
				r.untilHandled(t, 4)
				if restart { // the process dies before it has committed anything but the mark
					m.stop(t)
					_, metadata := r.commitOf(t, 0)
					r.runs = nil
					r.Commit(t, r.group, r.offset(0, 1, metadata))
					mem, _ := cut()
					eng := openMem(t, mem, engine.Options{})
					m, o = r.startOpen(t, eng)
					o.eng, o.mem = eng, mem
					r.untilHandled(t, 3)
				}
				untilReady(t, m)
				r.send(t, 0, "e", "e")
				r.untilCommitted(t, 6, false)
				m.stop(t)
				if restart {
					r.wantHandled(t, "b", "c", "d", "e")
				} else {
					r.wantHandled(t, "a", "b", "c", "d", "e")
				}
			})
		}
	}
}

// A batch ends before an event that another transaction holds. Only the records that it has claimed
// are handled without claims.
func TestShortBatchOfUnknownOutcomeIsHandledWithoutClaims(t *testing.T) {
	for keep := range 2 {
		t.Run(fmt.Sprintf("keep=%d", keep), func(t *testing.T) {
			r := newRig(t, 1)
			m, _ := r.startOpen(t, r.eng)
			r.send(t, 0, "a")
			r.untilHandled(t, 1)
			m.pause(t, r.topic)
			recs := []*kgo.Record{r.event(0, "b"), r.event(0, "c"), r.event(0, "d")}
			for _, rec := range recs {
				rec.Timestamp = time.Now()
			}
			held, release := make(chan struct{}), make(chan struct{})
			var holder sync.WaitGroup
			holder.Go(func() {
				_ = r.eng.Update(t.Context(), func(tx *engine.Tx) error {
					res, err := tx.TryClaim(engine.Event{
						Scope: r.group, ID: []byte("c"), Time: recs[1].Timestamp, Origin: engine.Origin{Topic: r.topic, Offset: 2},
					})
					if err != nil || res.Verdict != engine.Claimed {
						t.Errorf("c is %v, %v", res.Verdict, err)
					}
					close(held)
					<-release
					return err
				})
			})
			kafkatest.Receive(t, held)
			r.mem.FailAt(storetest.OpWait, 1, errDisk)
			r.Produce(t, recs...)
			if err := m.Resume(r.topic); err != nil {
				t.Fatal(err)
			}
			r.untilHandled(t, 4)
			close(release)
			holder.Wait()
			m.stop(t)
			_, metadata := r.commitOf(t, 0)
			if until := resume.ParseOpenMark(metadata).Until; until != 2 {
				t.Errorf("the mark says %d: %s", until, metadata)
			}
			r.runs = nil
			r.Commit(t, r.group, r.offset(0, 1, metadata)) // it died before it had committed anything but the mark
			r.open(t, r.mem.CrashClone(keep))
			m, _ = r.startOpen(t, r.eng)
			r.untilHandled(t, 3)
			untilReady(t, m)
			r.send(t, 0, "e", "e")
			r.untilCommitted(t, 6, false)
			m.stop(t)
			r.wantHandled(t, "b", "c", "d", "e")
		})
	}
}

// The store fails while a batch commits, and the consumer is asked to end: there is no time to
// continue without claims. The next one handles the records that may have been claimed.
func TestBatchOfUnknownOutcomeAtTheEnd(t *testing.T) {
	for name, pinned := range map[string]fixedShare{"member": {}, "pinned": {count: 1}} {
		for keep := range 2 {
			t.Run(fmt.Sprintf("%s keep=%d", name, keep), func(t *testing.T) {
				r := newRig(t, 1)
				asked := func(o *Options) { o.Membership.pinned = pinned }
				m, _ := r.startOpen(t, r.eng, asked)
				r.send(t, 0, "a")
				r.untilHandled(t, 1)
				r.untilCommitted(t, 1, false)
				m.pause(t, r.topic)
				r.send(t, 0, "b", "c", "d")
				p := m.parts.get(topicPartition{r.topic, 0})
				var once sync.Once
				r.mem.Before(storetest.OpWait, func(int) (err error) {
					once.Do(func() {
						m.cancel()
						<-p.ending.Done()
						err = errDisk
					})
					return err
				})
				if err := m.Resume(r.topic); err != nil {
					t.Fatal(err)
				}
				m.stop(t)
				r.wantHandled(t, "a")
				r.open(t, r.mem.CrashClone(keep))
				m, _ = r.startOpen(t, r.eng, asked)
				r.untilHandled(t, 4)
				untilReady(t, m)
				r.send(t, 0, "e", "e")
				r.untilCommitted(t, 6, false)
				m.stop(t)
				r.wantHandled(t, "a", "b", "c", "d", "e")
			})
		}
	}
}

// The store fails while a handler runs, and then the consumer is asked to end. The claims of the
// other records cannot be withdrawn.
func TestClaimsThatCannotBeWithdrawnAreHandledByTheNextOwner(t *testing.T) {
	r := newRig(t, 1)
	runs, release := make(chan struct{}), make(chan struct{})
	mode := AtMostOnce(func(ctx context.Context, rec *Record) error {
		r.note(ctx, rec)
		if string(rec.Event.ID) == "b" {
			close(runs)
			<-release
		}
		return nil
	})
	o := &reopener{t: t, eng: r.eng}
	m := r.start(t, mode, func(opt *Options) { opt.ReopenStore = o.open })
	r.send(t, 0, "a")
	r.untilHandled(t, 1)
	m.pause(t, r.topic)
	r.send(t, 0, "b", "c", "d")
	if err := m.Resume(r.topic); err != nil {
		t.Fatal(err)
	}
	kafkatest.Receive(t, runs)
	p := m.parts.get(topicPartition{r.topic, 0})
	r.mem.Fail(errDisk)
	m.cancel()
	kafkatest.Receive(t, p.ending.Done())
	close(release)
	m.stop(t)
	r.wantHandled(t, "a", "b")
	m.counts(t, 0, "lost_total")
	r.crash(t)
	m, _ = r.startOpen(t, r.eng)
	r.untilHandled(t, 4)
	untilReady(t, m)
	r.send(t, 0, "e", "e")
	r.untilCommitted(t, 6, false)
	m.stop(t)
	r.wantHandled(t, "a", "b", "c", "d", "e")
}

// A process dies without its store. The next one has the store again, and Kafka's offset is ahead
// of it.
func TestProcessThatDiesWithoutItsStore(t *testing.T) {
	r := newRig(t, 1)
	m, _ := r.startOpen(t, r.eng)
	r.send(t, 0, "a")
	r.untilHandled(t, 1)
	r.mem.Fail(errDisk)
	r.send(t, 0, "b", "c", "d")
	r.untilHandled(t, 4)
	m.stop(t)
	_, metadata := r.commitOf(t, 0)
	r.Commit(t, r.group, r.offset(0, 3, metadata)) // it died before it had committed the last one
	r.crash(t)
	m = r.start(t, r.own()) // Options.ReopenStore is not needed for it
	r.untilStored(t, 0, 4)
	r.send(t, 0, "a", "d", "e")
	r.untilHandled(t, 6)
	r.untilStored(t, 0, 7)
	m.stop(t)
	r.wantHandled(t, "a", "b", "c", "d", "d", "e")
	if adoptions, err := m.Adoptions(t.Context()); err != nil || len(adoptions) != 1 || adoptions[0].Offset != 3 {
		t.Errorf("adoptions %+v, %v", adoptions, err)
	}
}

// The power fails after each batch of the reopened store, the one of the adoption included.
func TestPowerFailuresAfterTheStoreIsOpenAgain(t *testing.T) {
	r := newRig(t, 1)
	m, o := r.startOpen(t, r.eng)
	r.send(t, 0, "a")
	r.untilHandled(t, 1)
	r.mem.Fail(errDisk)
	r.send(t, 0, "b", "c")
	r.untilCommitted(t, 3, true)
	_, metadata := r.commitOf(t, 0)
	var clones []*storetest.Mem
	var mu sync.Mutex
	o.offer(func() (*storetest.Mem, error) {
		again := r.mem.CrashClone(0)
		again.Before(storetest.OpApply, func(int) error {
			mu.Lock()
			defer mu.Unlock()
			clones = append(clones, again.CrashClone(0))
			return nil
		})
		return again, nil
	})
	untilReady(t, m)
	m.stop(t)
	if len(clones) < 2 {
		t.Fatalf("%d batches", len(clones))
	}
	for i, clone := range clones {
		r.open(t, clone)
		// the commit with the store's identity is not made yet
		r.Commit(t, r.group, r.offset(0, 3, metadata))
		r.runs = nil
		m := r.start(t, r.own())
		id := fmt.Sprint("next", i)
		r.send(t, 0, id)
		r.untilHandled(t, 1+i)
		m.stop(t)
		if got := r.handledIDs(); got[0] != "next0" || len(got) != 1+i {
			t.Errorf("after %d batches %q are handled", i, got)
		}
	}
}

func TestStoreThatCannotBeOpenedAtTheStart(t *testing.T) {
	for _, committed := range []bool{false, true} {
		t.Run(fmt.Sprintf("committed=%v", committed), func(t *testing.T) {
			r := newRig(t, 1)
			r.send(t, 0, "a", "b")
			if committed {
				m := r.start(t, r.own())
				r.untilHandled(t, 2)
				r.untilCommitted(t, 2, false)
				m.stop(t)
				r.runs = nil
				r.send(t, 0, "c")
			}
			m, o := r.startOpen(t, nil)
			want := []string{"a", "b"}
			if committed {
				want = []string{"c"}
			}
			r.untilHandled(t, len(want))
			r.untilCommitted(t, int64(2+len(want)%2), true)
			if err := m.Ready(); !errors.Is(err, ErrUnprotected) || !errors.Is(err, errDisk) {
				t.Errorf("Ready: %v", err)
			}
			if _, err := m.Adoptions(t.Context()); !errors.Is(err, ErrUnprotected) {
				t.Errorf("Adoptions: %v", err)
			}
			o.offer(powerCut(r.mem, 0))
			untilReady(t, m)
			r.send(t, 0, "x", "x")
			r.untilCommitted(t, int64(4+len(want)%2), false)
			m.stop(t)
			r.wantHandled(t, append(want, "x")...)
		})
	}
}

// An empty store in place of the failed one lacks its claims.
func TestAnotherStoreIsNotMistakenForTheFailedOne(t *testing.T) {
	r := newRig(t, 1)
	m, o := r.startOpen(t, r.eng)
	r.send(t, 0, "a")
	r.untilHandled(t, 1)
	r.mem.Fail(errDisk)
	r.send(t, 0, "b")
	r.untilHandled(t, 2)
	o.offer(func() (*storetest.Mem, error) { return storetest.NewMem(storage.Identity{}), nil })
	if e := m.stoppedOne(t); !errors.Is(e, ErrForeignStore) {
		t.Errorf("the partition stopped for %v", e)
	}
	m.stop(t)
}

func TestDeadLetterWaitsForTheStore(t *testing.T) {
	for keep := range 2 {
		t.Run(fmt.Sprintf("keep=%d", keep), func(t *testing.T) { deadLetterWaitsForTheStore(t, keep) })
	}
}

func deadLetterWaitsForTheStore(t *testing.T, keep int) {
	r := newRig(t, 1)
	m, o := r.startOpen(t, r.eng, withDeadLetters, func(opt *Options) { opt.Routes[0].Identify.NoPosition = true })
	r.send(t, 0, "a")
	r.untilHandled(t, 1)
	bad := r.event(0, "x")
	bad.Headers = nil
	m.pause(t, r.topic) // so that all are in one batch, which the store has or not
	r.mem.FailAt(storetest.OpWait, 1, errDisk)
	r.Produce(t, r.event(0, "b"), bad, r.event(0, "c"))
	if err := m.Resume(r.topic); err != nil {
		t.Fatal(err)
	}
	if e := m.stoppedOne(t); e.Reason != "store" || !errors.Is(e, ErrUnprotected) {
		t.Errorf("the partition stopped for %v", e)
	}
	r.wantHandled(t, "a", "b")
	o.offer(powerCut(r.mem, keep))
	r.letters(t, 1)
	r.untilHandled(t, 3)
	m.stop(t)
	r.wantHandled(t, "a", "b", "c")
	if n := r.letterCount(t); n != 1 {
		t.Errorf("%d dead letters", n)
	}
}

// Two consumers of a process share the engine. Records that one of them has handled without claims
// are not handled again by the other.
func TestPartitionsMoveWithoutTheStore(t *testing.T) {
	r := newRig(t, 4)
	m1, o := r.startOpen(t, r.eng)
	ids := numbered("a", 40)
	for i, id := range ids {
		r.send(t, int32(i%4), id)
	}
	r.untilHandled(t, 40)
	r.mem.Fail(errDisk)
	for i, id := range numbered("b", 40) {
		r.send(t, int32(i%4), id)
	}
	r.untilHandled(t, 80)
	m2 := r.start(t, r.own(), func(opt *Options) { opt.ReopenStore = o.open })
	kafkatest.Until(t, "both to have partitions", func() bool { return len(m2.parts.all()) == 2 && len(m1.parts.all()) == 2 })
	for i, id := range numbered("c", 40) {
		r.send(t, int32(i%4), id)
	}
	r.untilHandled(t, 120)
	o.offer(powerCut(r.mem, 0))
	untilReady(t, m1)
	untilReady(t, m2)
	m2.stop(t)
	for i, id := range numbered("d", 40) {
		r.send(t, int32(i%4), id)
	}
	r.untilHandled(t, 160)
	m1.stop(t)
	got := r.handledIDs()
	slices.Sort(got)
	if len(got) != 160 || len(slices.Compact(got)) != 160 {
		t.Errorf("%d records are handled, %d of them different", len(r.handledIDs()), len(slices.Compact(got)))
	}
}

func TestHangingFailOpenDoesNotDelayTheEnd(t *testing.T) {
	r := newRig(t, 1)
	hangs, release := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(release) })
	m := r.start(t, r.own(), func(opt *Options) {
		opt.ReopenStore = func(context.Context) (*engine.Engine, error) {
			close(hangs)
			<-release
			return nil, errDisk
		}
	})
	r.send(t, 0, "a")
	r.untilHandled(t, 1)
	r.mem.Fail(errDisk)
	r.send(t, 0, "b")
	kafkatest.Receive(t, hangs)
	r.untilHandled(t, 2)
	m.stop(t)
}

func TestFailOpenIsForAtMostOnce(t *testing.T) {
	o := someOptions()
	o.Routes[0].Mode, o.Routes[0].DeadLetters = Transactional{Handle: ignore, MaxAttempts: 1}, &deadletter.Options{}
	o.ReopenStore = func(context.Context) (*engine.Engine, error) { return nil, errDisk }
	if _, err := New(memEngine(t), o); !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), "Transactional") {
		t.Errorf("New: %v", err)
	}
	o.ReopenStore = nil
	if _, err := New(nil, o); !errors.Is(err, ErrOption) {
		t.Errorf("New without an engine: %v", err)
	}
}

// Without the store it is unknown whether the group has read a partition without a commit: with
// Latest, the partition waits for the store.
func TestLatestWaitsForTheStore(t *testing.T) {
	for name, known := range map[string]bool{"new group": false, "the store has an offset": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.send(t, 0, "a", "b")
			want := []string{"c"}
			if known {
				err := r.eng.Update(t.Context(), func(tx *engine.Tx) error {
					return tx.SetOffset(r.position(0), engine.Offset{Next: 1, LeaderEpoch: -1, TopicID: r.TopicID(t, r.topic)})
				})
				if err != nil {
					t.Fatal(err)
				}
				want = []string{"b", "c"}
			}
			m, o := r.startOpen(t, nil, func(opt *Options) { opt.Routes[0].Start = Latest })
			if e := m.stoppedOne(t); e.Reason != "store" || !errors.Is(e, ErrUnprotected) {
				t.Errorf("the partition stopped for %v", e)
			}
			r.send(t, 0, "c")
			o.offer(powerCut(r.mem, 0))
			r.untilHandled(t, len(want))
			r.untilCommitted(t, 3, false)
			m.stop(t)
			r.wantHandled(t, want...)
		})
	}
}

// A commit by neither this consumer nor its store does not say where reading was.
func TestOffsetResetWithoutTheStoreIsNotAdopted(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b")
	m := r.start(t, r.own())
	r.untilHandled(t, 2)
	r.untilCommitted(t, 2, false)
	m.stop(t)
	r.send(t, 0, "c", "d", "e")
	r.Commit(t, r.group, r.offset(0, 4, ""))
	m, o := r.startOpen(t, nil)
	if e := m.stoppedOne(t); e.Reason != "position" || !errors.As(e, new(*PositionError)) || !errors.Is(e, ErrUnprotected) {
		t.Errorf("the partition stopped for %v", e)
	}
	o.offer(powerCut(r.mem, 0))
	kafkatest.Until(t, "the disagreement with the store", func() bool {
		all := m.Stopped()
		return len(all) == 1 && errors.Is(all[0], ErrOffsetReset)
	})
	m.stop(t)
	r.wantHandled(t, "a", "b")
}

// The mark says which records may be claimed and not handled, also to a process without ReopenStore.
func TestProcessWithoutReopenStoreTakesTheMark(t *testing.T) {
	for keep := range 2 {
		t.Run(fmt.Sprintf("keep=%d", keep), func(t *testing.T) {
			r := newRig(t, 1)
			r.leaveMark(t, keep)
			m := r.start(t, r.own())
			r.untilHandled(t, 3) // a copy in the same batch has no claim, either
			r.send(t, 0, "e", "e")
			r.untilCommitted(t, 6, false)
			m.stop(t)
			r.wantHandled(t, "b", "c", "d", "e")
		})
	}
}

// leaveMark makes a consumer handle b, c and d without claims while the outcome of their batch is
// unknown, and opens the store as a crash leaves it: with the batch if keep is 1. Kafka then has
// only the mark that names them, with the offset before them.
func (r *rig) leaveMark(t *testing.T, keep int) {
	t.Helper()
	m, _ := r.startOpen(t, r.eng)
	r.send(t, 0, "a")
	r.untilHandled(t, 1)
	m.pause(t, r.topic)
	r.send(t, 0, "b", "c", "d")
	r.mem.FailAt(storetest.OpWait, 1, errDisk)
	if err := m.Resume(r.topic); err != nil {
		t.Fatal(err)
	}
	r.untilHandled(t, 4)
	m.stop(t)
	_, metadata := r.commitOf(t, 0)
	r.Commit(t, r.group, r.offset(0, 1, metadata))
	r.runs = nil
	r.open(t, r.mem.CrashClone(keep))
}

// The records that the mark names are handled without claims, and later ones are claimed, even if
// they were fetched together.
func TestRecordsAfterTheMarkAreClaimed(t *testing.T) {
	r := newRig(t, 1)
	r.leaveMark(t, 1)
	r.send(t, 0, "e", "e", "e")
	m := r.start(t, r.own())
	r.untilCommitted(t, 7, false)
	r.untilHandled(t, 4)
	m.stop(t)
	r.wantHandled(t, "b", "c", "d", "e")
}

// A mark whose records are no longer in the log delays nothing: the store has the offset.
func TestMarkWhoseRecordsWereRemoved(t *testing.T) {
	for start, want := range map[int64][]string{2: {"c", "d", "e"}, 4: {"e"}} {
		t.Run(fmt.Sprintf("the log begins at %d", start), func(t *testing.T) {
			r := newRig(t, 1)
			r.leaveMark(t, 1)
			r.send(t, 0, "e")
			r.removeBelow(t, start)
			m := r.start(t, r.own())
			r.untilCommitted(t, 5, false)
			r.untilHandled(t, len(want))
			m.stop(t)
			r.wantHandled(t, want...)
		})
	}
}

// A mark of another store says nothing about this store's claims: nothing is handled.
func TestMarkOfAnotherStoreStopsThePartition(t *testing.T) {
	r := newRig(t, 1)
	r.leaveMark(t, 1)
	r.open(t, storetest.NewMem(storage.Identity{}))
	err := r.eng.Update(t.Context(), func(tx *engine.Tx) error {
		return tx.SetOffset(r.position(0), engine.Offset{Next: 4, LeaderEpoch: -1, TopicID: r.TopicID(t, r.topic)})
	})
	if err != nil {
		t.Fatal(err)
	}
	m := r.start(t, r.own())
	if e := m.stoppedOne(t); !errors.Is(e, ErrForeignStore) {
		t.Errorf("the partition stopped for %v", e)
	}
	m.stop(t)
	r.wantHandled(t)
}

// removeBelow removes the records of partition 0 below an offset from the log.
func (r *rig) removeBelow(t *testing.T, offset int64) {
	t.Helper()
	gone := make(kadm.Offsets)
	gone.Add(kadm.Offset{Topic: r.topic, Partition: 0, At: offset})
	if _, err := kadm.NewClient(r.Client(t)).DeleteRecords(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
}
