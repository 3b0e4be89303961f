package kafkaadapter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/owner"
)

// sideBySide lets n handlers of a partition run in parallel, in batches of unlimited duration.
func sideBySide(n int) func(*Options) {
	return func(o *Options) { o.Routes[0].Concurrency.handlers, o.batchTime = n, time.Hour }
}

// keyed returns an event with a key.
func (r *rig) keyed(key, id string) *kgo.Record {
	rec := r.event(0, id)
	rec.Key = []byte(key)
	return rec
}

// A barrier holds handlers until n have come. If they do not come in time, it fails each of them,
// so that the test ends.
type barrier struct {
	n    int32
	came atomic.Int32
	open chan struct{}

	late   chan struct{}
	giveUp func()
}

func newBarrier(n int32) *barrier {
	b := &barrier{n: n, open: make(chan struct{}), late: make(chan struct{})}
	b.giveUp = sync.OnceFunc(func() { close(b.late) })
	return b
}

func (b *barrier) wait(ctx context.Context) error {
	if b.came.Add(1) == b.n {
		close(b.open)
	}
	select {
	case <-b.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Minute):
		b.giveUp()
	case <-b.late:
	}
	return errors.New("the others do not come")
}

// untilOthers returns when all but one wait, or one has failed.
func (b *barrier) untilOthers() {
	over := time.Now().Add(time.Minute)
	for b.came.Load() < b.n-1 {
		select {
		case <-b.late:
			return
		default:
			runtime.Gosched()
		}
		if time.Now().After(over) {
			b.giveUp()
		}
	}
}

// modes returns handlers of both modes that call f.
func (r *rig) modes(f func(context.Context, *Record) error) map[string]Mode {
	return map[string]Mode{
		"transactional": r.work(1, func(ctx context.Context, _ *engine.Tx, rec *Record) error { return f(ctx, rec) }),
		"at most once": AtMostOnce(func(ctx context.Context, rec *Record) error {
			r.note(ctx, rec)
			return f(ctx, rec)
		}),
	}
}

func TestHandlersOfDifferentKeysRunSideBySide(t *testing.T) {
	const n = 8
	for _, name := range []string{"transactional", "at most once"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			together := newBarrier(n)
			var failed atomic.Int32
			mode := r.modes(func(ctx context.Context, _ *Record) error {
				err := together.wait(ctx)
				if err != nil {
					failed.Add(1)
				}
				return err
			})[name]
			r.send(t, 0, numbered("a", n)...)
			m := r.start(t, mode, sideBySide(n))
			kafkatest.Until(t, "all handlers", func() bool { return len(r.handled()) == n })
			r.untilStored(t, 0, n)
			m.stop(t)
			if failed.Load() != 0 || len(r.handled()) != n {
				t.Errorf("%d of %d calls did not meet the others", failed.Load(), len(r.handled()))
			}
		})
	}
}

// Records of one key are handled in order, never in parallel, whether the key is Kafka's or the
// application's.
func TestHandlersOfOneKeyRunInOrder(t *testing.T) {
	const keys, each = 4, 30
	byID := func(rec *Record) []byte { return rec.Event.ID[:2] }
	for _, name := range []string{"transactional", "at most once"} {
		for by, key := range map[string]func(*Record) []byte{"the record's": nil, "the application's": byID} {
			t.Run(name+" "+by, func(t *testing.T) {
				r := newRig(t, 1)
				var mu sync.Mutex
				busy, last := make(map[string]bool), make(map[string]int64)
				mode := r.modes(func(_ context.Context, rec *Record) error {
					k := string(rec.Event.ID[:2])
					mu.Lock()
					before, found := last[k]
					if busy[k] || found && before >= rec.Offset {
						t.Errorf("record %d of key %s runs after %d, which still runs: %t", rec.Offset, k, before, busy[k])
					}
					busy[k], last[k] = true, rec.Offset
					mu.Unlock()
					for range rand.IntN(20) {
						runtime.Gosched()
					}
					mu.Lock()
					defer mu.Unlock()
					busy[k] = false
					return nil
				})[name]
				var recs []*kgo.Record
				var ids []string
				for i := range keys * each {
					k := fmt.Sprintf("k%d", rand.IntN(keys))
					id := fmt.Sprintf("%s-%d", k, i)
					if ids = append(ids, id); key != nil {
						k = id
					}
					recs = append(recs, r.keyed(k, id))
				}
				r.Produce(t, recs...)
				m := r.start(t, mode, sideBySide(8), func(o *Options) { o.Routes[0].Concurrency.key = key })
				kafkatest.Until(t, "all handlers", func() bool { return len(r.handled()) == keys*each })
				r.untilStored(t, 0, keys*each)
				m.stop(t)
				if got := r.handledIDs(); len(got) != len(ids) {
					t.Errorf("%d calls for %d events", len(got), len(ids))
				}
			})
		}
	}
}

// A failure rolls back its record and the later ones, handled or not, and no earlier one.
func TestFailureBesideOthersCommitsThePrefix(t *testing.T) {
	const n = 8
	for name, failure := range map[string]func() error{
		"error": func() error { return errHandler },
		"panic": func() error { panic("the handler cannot") },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			ids := numbered("a", n)
			r.send(t, 0, ids...)
			others := newBarrier(n)
			var second, undone atomic.Bool
			m := r.start(t, r.work(3, func(ctx context.Context, _ *engine.Tx, rec *Record) error {
				switch {
				case second.Load():
					return nil
				case string(rec.Event.ID) != "a3":
					if r.stored(t, 0) > 0 {
						return nil
					}
					return others.wait(ctx)
				case rec.Attempt == 1:
					if err := others.wait(ctx); err != nil {
						return err
					}
					return failure()
				}
				second.Store(true)
				done := r.effects(t, "a0") == 1 && r.effects(t, "a2") == 1
				undone.Store(done && r.effects(t, "a4") == 0 && r.stored(t, 0) == 3 && r.attemptsAt(t, 0) == owner.Attempts{Offset: 3, N: 1})
				return nil
			}), sideBySide(n))
			r.untilStored(t, 0, n)
			m.counts(t, 1, "failed_attempts_total")
			m.counts(t, n, "records_total", "claimed")
			m.stop(t)
			r.checkOnce(t, ids...)
			if !undone.Load() {
				t.Errorf("the second attempt did not find the three records before it committed, its own attempt counted, and the later records rolled back")
			}
			for _, x := range r.handled() {
				if want := x.id == "a3"; x.attempt > 1 && !want {
					t.Errorf("%+v counts an attempt of another record", x)
				}
			}
		})
	}
}

// Records with different keys that change one application key run again, and the sum is as if they
// ran one after the other.
func TestHandlersThatShareAnApplicationKeyRunAgain(t *testing.T) {
	const n = 8
	r := newRig(t, 1)
	ids := numbered("a", n)
	r.send(t, 0, ids...)
	together := newBarrier(n)
	m := r.start(t, r.work(1, func(ctx context.Context, tx *engine.Tx, rec *Record) error {
		b, _, err := tx.Get([]byte("order"))
		if err != nil {
			return err
		}
		if err := together.wait(ctx); err != nil { // all have read before the first is joined
			return err
		}
		if rec.Offset == 5 && len(b) < 5 {
			return errHandler // on values of an outdated part
		}
		return tx.Put([]byte("order"), append(slices.Clone(b), byte(rec.Offset)))
	}), sideBySide(n))
	r.untilStored(t, 0, n)
	m.stop(t)
	r.checkOnce(t, ids...)
	if got := r.get(t, []byte("order")); !slices.Equal(got, []byte{0, 1, 2, 3, 4, 5, 6, 7}) {
		t.Errorf("the records took effect in the order %v", got)
	}
	if m.metric(t, "failed_attempts_total") != 0 || r.letterCount(t) != 0 {
		t.Error("a failure of an outdated part counts")
	}
}

// The second record with the same event waits for the first, and is a duplicate without a call of
// the handler.
func TestDuplicatesBesideEachOtherAreHandledOnce(t *testing.T) {
	r := newRig(t, 1)
	r.Produce(t, r.keyed("k0", "a"), r.keyed("k1", "a"), r.keyed("k2", "b"), r.keyed("k3", "a"))
	together := newBarrier(2)
	m := r.start(t, r.work(1, func(ctx context.Context, _ *engine.Tx, _ *Record) error { return together.wait(ctx) }), sideBySide(4))
	r.untilStored(t, 0, 4)
	m.counts(t, 2, "records_total", "duplicate")
	m.counts(t, 2, "records_total", "claimed")
	m.stop(t)
	r.checkOnce(t, "a", "b")
	if n := len(r.handled()); n != 2 {
		t.Errorf("%d calls for two events", n)
	}
}

// A record whose key cannot be found is handled alone.
func TestRecordWithoutAFindableKeyIsHandledAlone(t *testing.T) {
	const n = 24
	for _, name := range []string{"transactional", "at most once"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			var running atomic.Int32
			mode := r.modes(func(_ context.Context, rec *Record) error {
				others := running.Add(1) - 1
				defer running.Add(-1)
				for range 50 {
					runtime.Gosched()
				}
				if now := running.Load() - 1; rec.Offset%4 == 1 && others+now > 0 {
					t.Errorf("record %d runs in parallel with %d and %d others", rec.Offset, others, now)
				}
				return nil
			})[name]
			r.send(t, 0, numbered("a", n)...)
			m := r.start(t, mode, sideBySide(4), func(o *Options) {
				o.Routes[0].Concurrency.key = func(rec *Record) []byte {
					if rec.Offset%4 == 1 {
						panic("no key")
					}
					return nil
				}
			})
			kafkatest.Until(t, "all handlers", func() bool { return len(r.handled()) == n })
			r.untilStored(t, 0, n)
			m.stop(t)
		})
	}
}

// An assignment that ends begins no more handlers, and commits what is done.
func TestEndBeginsNoMoreHandlers(t *testing.T) {
	const n, handlers = 16, 4
	r := newRig(t, 1)
	r.send(t, 0, numbered("a", n)...)
	together, started := newBarrier(handlers), make(chan *member, 1)
	m := r.start(t, r.work(1, func(ctx context.Context, _ *engine.Tx, rec *Record) error {
		if rec.Offset == 0 {
			m := <-started
			p := m.parts.get(topicPartition{r.topic, 0})
			together.untilOthers() // all that can begin have begun
			m.cancel()
			<-p.ending.Done()
		}
		return together.wait(ctx)
	}), sideBySide(handlers))
	started <- m
	kafkatest.Receive(t, m.done)
	if got := len(r.handled()); got != handlers {
		t.Errorf("%d handlers were called, %d had begun before the end", got, handlers)
	}
	if next := r.stored(t, 0); next != handlers {
		t.Errorf("the store is at %d", next)
	}
	r.checkOnce(t, numbered("a", handlers)...)
}

// Handlers of AtMostOnce begin in the order of offsets. When the assignment ends, the claims of
// those that have not begun are withdrawn.
func TestEndTakesBackWhatHasNotBegunSideBySide(t *testing.T) {
	const n, handlers = 16, 4
	r := newRig(t, 1)
	var recs []*kgo.Record
	for i, id := range numbered("a", n) {
		key := id
		if i == handlers { // it waits for the first, and the later ones wait for it
			key = "a0"
		}
		recs = append(recs, r.keyed(key, id))
	}
	r.Produce(t, recs...)
	together, started := newBarrier(handlers), make(chan *member, 1)
	m := r.start(t, r.modes(func(ctx context.Context, rec *Record) error {
		if rec.Offset == 0 {
			m := <-started
			p := m.parts.get(topicPartition{r.topic, 0})
			together.untilOthers() // all that can begin have begun
			m.cancel()
			<-p.ending.Done()
		}
		return together.wait(ctx)
	})["at most once"], sideBySide(handlers))
	started <- m
	kafkatest.Receive(t, m.done)
	if got := len(r.handled()); got != handlers || r.stored(t, 0) != handlers {
		t.Errorf("%d handlers were called, %d had begun before the end; the store is at %d", got, handlers, r.stored(t, 0))
	}
	m = r.start(t, r.modes(func(context.Context, *Record) error { return nil })["at most once"], sideBySide(handlers))
	r.untilStored(t, 0, n)
	kafkatest.Until(t, "all handlers", func() bool { return len(r.handled()) >= n })
	m.stop(t)
	got := r.handledIDs()
	slices.Sort(got)
	want := numbered("a", n)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("handled %v", got)
	}
}

// After an unclean stop, records are handled one by one, and their attempts are stored first.
func TestAfterAnUncleanStopNothingRunsSideBySide(t *testing.T) {
	const n = firstWidth + 16
	r := newRig(t, 1)
	ids := numbered("a", n)
	r.send(t, 0, ids...)
	r.died(t, 0)
	var running atomic.Int32
	together := newBarrier(2)
	m := r.start(t, r.work(1, func(ctx context.Context, _ *engine.Tx, rec *Record) error {
		defer running.Add(-1)
		others := running.Add(1) - 1
		if rec.Offset >= firstWidth {
			return together.wait(ctx)
		}
		if others > 0 || r.attemptsAt(t, 0) != (owner.Attempts{Offset: rec.Offset, N: 1}) {
			t.Errorf("record %d runs in parallel with %d others, its attempts are %+v", rec.Offset, others, r.attemptsAt(t, 0))
		}
		return nil
	}), sideBySide(4))
	r.untilStored(t, 0, n)
	m.stop(t)
	r.checkOnce(t, ids...)
}

// A handler that ends its goroutine ends Run with an error, and the records in parallel with it do
// not commit.
func TestHandlerThatEndsItsGoroutineEndsRun(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, numbered("a", 4)...)
	together := newBarrier(4)
	m := r.start(t, r.work(1, func(ctx context.Context, _ *engine.Tx, rec *Record) error {
		err := together.wait(ctx)
		if rec.Offset == 2 {
			runtime.Goexit()
		}
		return err
	}), sideBySide(4))
	kafkatest.Receive(t, m.done)
	if m.err == nil {
		t.Error("Run returned no error")
	}
	if next := r.stored(t, 0); next > 0 {
		t.Errorf("the store is at %d", next)
	}
}

// Each lost event is counted once, and those in parallel with it are handled.
func TestLossBesideOthersIsCounted(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, numbered("a", 8)...)
	together := newBarrier(8)
	m := r.start(t, r.modes(func(ctx context.Context, rec *Record) error {
		if err := together.wait(ctx); err != nil {
			return err
		}
		if rec.Offset%4 == 1 {
			return errHandler
		}
		return nil
	})["at most once"], sideBySide(8))
	r.untilStored(t, 0, 8)
	m.counts(t, 2, "lost_total")
	m.stop(t)
}

// The power fails while records are in progress: each event takes effect once, and the records of
// each key are in order.
func TestPowerFailuresWhileHandlersRunSideBySide(t *testing.T) {
	const keys, events, rounds = 10, 300, 8
	r := newRig(t, 1)
	recs, ids := make([]*kgo.Record, events), numbered("e", events)
	for i := range recs {
		recs[i] = r.keyed(fmt.Sprint(rand.IntN(keys)), ids[i])
	}
	r.Produce(t, recs...)
	handler := func(_ context.Context, tx *engine.Tx, rec *Record) error {
		last := append([]byte("last/"), rec.Key...)
		b, found, err := tx.Get(last)
		if err != nil {
			return err
		}
		if found && int64(binary.BigEndian.Uint64(b)) >= rec.Offset {
			t.Errorf("record %d of key %s takes effect after %d", rec.Offset, rec.Key, binary.BigEndian.Uint64(b))
		}
		if err := tx.Add([]byte("sum"), 1); err != nil {
			return err
		}
		if rand.IntN(30) == 0 {
			return errHandler
		}
		return tx.Put(last, binary.BigEndian.AppendUint64(nil, uint64(rec.Offset)))
	}
	for range rounds {
		calls, cut := rand.Int32N(60)+1, make(chan struct{})
		var left atomic.Int32
		left.Store(calls)
		m := r.start(t, r.work(1000, func(ctx context.Context, tx *engine.Tx, rec *Record) error {
			if left.Add(-1) == 0 {
				close(cut)
			}
			return handler(ctx, tx, rec)
		}), sideBySide(8), func(o *Options) { o.shutdownTimeout = time.Millisecond })
		kafkatest.Until(t, "the power failure, or the last event", func() bool {
			select {
			case <-cut:
				return true
			default:
				return r.stored(t, 0) >= events
			}
		})
		if r.stored(t, 0) >= events {
			break
		}
		old := r.eng
		r.crash(t)
		m.cancel()
		kafkatest.Receive(t, m.done)
		_ = old.Close()
	}
	m := r.start(t, r.work(1000, handler), sideBySide(8))
	r.untilStored(t, 0, events)
	m.stop(t)
	r.checkOnce(t, ids...)
	if n, err := engine.DecodeInt64(r.get(t, []byte("sum"))); n != events || err != nil {
		t.Errorf("the sum is %d, %v", n, err)
	}
}

func TestOverdueIsTheLongestOfHandlersSideBySide(t *testing.T) {
	p := &handlers{ends: make([]atomic.Int64, 3)}
	if p.overdue() >= 0 {
		t.Error("overdue without a handler")
	}
	p.ends[0].Store(time.Now().Add(time.Hour).UnixNano())
	p.ends[2].Store(time.Now().Add(-time.Hour).UnixNano())
	if late := p.overdue(); late < time.Hour {
		t.Errorf("overdue for %v, one handler has been overdue for an hour", late)
	}
}
