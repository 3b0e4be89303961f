package kafkaadapter

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/owner"
)

func TestFailingRecordIsUndoneAlone(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b", "poison", "c", "d")
	m := r.start(t, r.work(3, failing(errHandler, "poison")))
	r.untilStored(t, 0, 5)
	m.stop(t)
	r.checkOnce(t, "a", "b", "c", "d")
	if n := r.effects(t, "poison"); n != 0 {
		t.Errorf("the failed record took effect %d times", n)
	}
	var tries []int
	for _, x := range r.handled() {
		if x.id == "poison" {
			tries = append(tries, x.attempt)
		}
	}
	if !slices.Equal(tries, []int{1, 2, 3}) {
		t.Errorf("attempts %v", tries)
	}
	if got := slices.Compact(r.handledIDs()); !slices.Equal(got, []string{"a", "b", "poison", "c", "d"}) {
		t.Errorf("order %q", got)
	}
	if a := r.attemptsAt(t, 0); a != (owner.Attempts{}) {
		t.Errorf("attempts are still kept: %+v", a)
	}
	if dead := r.letters(t, 1)[0]; string(dead.Value) != "value-poison" {
		t.Errorf("dead letter %q", dead.Value)
	}
}

func TestPrefixOfAFailedBatchIsKept(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b", "poison", "c")
	m := r.start(t, r.work(1000, failing(errHandler, "poison")), func(o *Options) {
		o.backoff.Min, o.backoff.Max = time.Hour, time.Hour
	})
	r.untilStored(t, 0, 2)
	kafkatest.Until(t, "a stored attempt", func() bool { return r.attemptsAt(t, 0) == owner.Attempts{Offset: 2, N: 1} })
	if r.effects(t, "a") != 1 || r.effects(t, "b") != 1 || r.stored(t, 0) != 2 {
		t.Errorf("offset %d, effects %d and %d", r.stored(t, 0), r.effects(t, "a"), r.effects(t, "b"))
	}
	m.stop(t) // the backoff does not delay it
	if got := r.handledIDs(); !slices.Equal(got, []string{"a", "b", "poison"}) {
		t.Errorf("handled %q: records before the failed one do not wait for its backoff", got)
	}
}

func TestAttemptsSurviveARestart(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "poison")
	mode := r.work(4, failing(errHandler, "poison"))
	slow := func(o *Options) { o.backoff.Min, o.backoff.Max = time.Hour, time.Hour }
	for n := range uint32(3) {
		m := r.start(t, mode, slow)
		kafkatest.Until(t, "an attempt", func() bool { return r.attemptsAt(t, 0).N == n+1 })
		m.stop(t)
	}
	m := r.start(t, mode, slow)
	r.letters(t, 1)
	r.untilStored(t, 0, 1)
	m.stop(t)
	var tries []int
	for _, x := range r.handled() {
		tries = append(tries, x.attempt)
	}
	if !slices.Equal(tries, []int{1, 2, 3, 4}) {
		t.Errorf("attempts %v", tries)
	}
}

// The backoffs are an hour: a record that is not retried waits for none.
func TestLastAttemptIsFollowedByNoBackoff(t *testing.T) {
	for name, err := range map[string]error{"limit": errHandler, "permanent": Permanent(errHandler)} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			attempts := 1
			if name == "permanent" {
				attempts = 1000
			}
			r.send(t, 0, "poison", "a")
			m := r.start(t, r.work(attempts, failing(err, "poison")), func(o *Options) {
				o.backoff.Min, o.backoff.Max = time.Hour, time.Hour
			})
			r.untilStored(t, 0, 2)
			m.stop(t)
			if got := r.handledIDs(); !slices.Equal(got, []string{"poison", "a"}) {
				t.Errorf("handled %q", got)
			}
			r.letters(t, 1)
		})
	}
}

func TestPanicIsAFailedAttempt(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "poison", "b")
	m := r.start(t, r.work(2, func(_ context.Context, _ *engine.Tx, rec *Record) error {
		if string(rec.Event.ID) == "poison" {
			panic("no such thing")
		}
		return nil
	}))
	r.untilStored(t, 0, 3)
	m.stop(t)
	r.checkOnce(t, "a", "b")
	dead := values(r.letters(t, 1)[0])
	if !strings.Contains(dead["hapax_dlt_error"], "no such thing") || dead["hapax_dlt_attempts"] != "2" || dead["hapax_dlt_error_type"] != "*kafkaadapter.PanicError" {
		t.Errorf("dead letter %q", dead)
	}
	if !m.logs.has("failure_test.go") {
		t.Error("the log does not show where it panicked")
	}
}

// A codedError is an error of which a handler returns a nil pointer.
type codedError struct {
	text  string
	cause error
}

func (e *codedError) Error() string { return e.text }
func (e *codedError) Unwrap() error { return e.cause }

func TestErrorThatPanicsIsAFailedAttempt(t *testing.T) {
	wrong := (*codedError)(nil)
	for name, mode := range map[string]func(r *rig) Mode{
		"transactional": func(r *rig) Mode { return r.work(2, failing(wrong, "a")) },
		"at most once": func(r *rig) Mode {
			return AtMostOnce(func(ctx context.Context, rec *Record) error { r.note(ctx, rec); return wrong })
		},
		"batch": func(r *rig) Mode {
			return Transactional{MaxAttempts: 2, HandleBatch: func(context.Context, *engine.Tx, []*Record) error { return wrong }}
		},
		"decode": func(r *rig) Mode {
			work := r.work(2, nil)
			work.Decode = func(context.Context, *kgo.Record) (any, error) { return nil, wrong }
			return work
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			mode := mode(r)
			m := r.start(t, mode)
			r.send(t, 0, "a")
			if _, ok := mode.(AtMostOnce); ok {
				m.counts(t, 1, "lost_total")
			} else if dead := values(r.letters(t, 1)[0]); dead["hapax_dlt_error_type"] != "*kafkaadapter.PanicError" {
				t.Errorf("dead letter %q", dead)
			}
			m.stop(t)
		})
	}
}

// A narrowError is an error whose Is and As expect errors of its own type only.
type narrowError struct{ code int }

func (e narrowError) Error() string        { return "narrow" }
func (e narrowError) Is(target error) bool { return target.(narrowError) == e }

type narrowerError struct{ narrowError }

func (e narrowerError) As(target any) bool { *target.(*narrowerError) = e; return true }

// Only the error of a record after the first of a batch is compared with others.
func TestErrorThatCannotBeComparedIsAFailedAttempt(t *testing.T) {
	for name, wrong := range map[string]error{"Is": narrowError{1}, "As": narrowerError{}} {
		for _, concurrency := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s/%d", name, concurrency), func(t *testing.T) {
				r := newRig(t, 1)
				r.send(t, 0, "a", "b", "c")
				m := r.start(t, r.work(2, failing(wrong, "b")), sideBySide(concurrency))
				r.untilStored(t, 0, 3)
				m.stop(t)
				r.checkOnce(t, "a", "c")
				if dead := values(r.letters(t, 1)[0]); dead["hapax_dlt_event_id"] != "b" {
					t.Errorf("dead letter %q", dead)
				}
			})
		}
	}
}

func TestEachRecordAlone(t *testing.T) {
	r := newRig(t, 1)
	ids := numbered("a", 20)
	r.send(t, 0, ids...)
	m := r.start(t, r.work(1, func(_ context.Context, _ *engine.Tx, rec *Record) error {
		if next := r.stored(t, 0); next != rec.Offset {
			t.Errorf("record %d is handled when the store is at %d", rec.Offset, next)
		}
		return nil
	}), func(o *Options) { o.MaxBatch = 1 })
	r.untilStored(t, 0, 20)
	m.stop(t)
	r.checkOnce(t, ids...)
}

// The process dies in the handler: the store has what survived, and the old process writes nothing
// more to it.
func TestRecordThatKillsTheProcessBecomesADeadLetter(t *testing.T) {
	r := newRig(t, 1)
	ids := numbered("a", 10)
	r.send(t, 0, ids[:5]...)
	r.send(t, 0, "deadly")
	r.send(t, 0, ids[5:]...)
	const limit = 3
	lives := 0
	for ; r.letterCount(t) == 0 && lives < 20; lives++ {
		died, release := make(chan struct{}), make(chan struct{})
		var once atomic.Bool
		m := r.start(t, r.work(limit, func(_ context.Context, _ *engine.Tx, rec *Record) error {
			if string(rec.Event.ID) == "deadly" {
				if once.CompareAndSwap(false, true) {
					close(died)
				}
				<-release
			}
			return nil
		}), func(o *Options) { o.shutdownTimeout = time.Millisecond })
		kafkatest.Until(t, "the death of the process, or the dead letter", func() bool {
			select {
			case <-died:
				return true
			default:
				return r.letterCount(t) > 0
			}
		})
		if r.letterCount(t) > 0 {
			r.untilStored(t, 0, 11)
			close(release)
			m.stop(t)
			break
		}
		old := r.eng
		r.crash(t) // the old engine's store is dead
		close(release)
		m.cancel()
		kafkatest.Receive(t, m.done)
		_ = old.Close() // its error says that its store has died
	}
	if lives > limit+1 {
		t.Errorf("it took %d processes, %d attempts are allowed", lives, limit)
	}
	r.checkOnce(t, ids...)
	calls := 0
	for _, x := range r.handled() {
		if x.id == "deadly" {
			calls++
		}
	}
	// the first process did not know that it had to store attempts first
	if calls < limit || calls > limit+1 {
		t.Errorf("%d calls, %d attempts are allowed", calls, limit)
	}
	dead := values(r.letters(t, 1)[0])
	if dead["message_id"] != "deadly" || dead["hapax_dlt_attempts"] != fmt.Sprint(limit) || !strings.Contains(dead["hapax_dlt_error"], "may have died") {
		t.Errorf("dead letter %q", dead)
	}
}

func TestAfterACrashEachAttemptIsStoredBeforeItsHandler(t *testing.T) {
	r := newRig(t, 1)
	ids := numbered("a", 100)
	r.send(t, 0, ids...)
	r.died(t, 0)
	before := 0
	m := r.start(t, r.work(1, func(ctx context.Context, _ *engine.Tx, rec *Record) error {
		if r.attemptsAt(t, 0) == (owner.Attempts{Offset: rec.Offset, N: 1}) {
			before++
		} else if rec.Offset < firstWidth {
			t.Errorf("record %d is handled, and its attempt is not stored", rec.Offset)
		}
		return nil
	}))
	r.untilStored(t, 0, 100)
	m.stop(t)
	r.checkOnce(t, ids...)
	if before != firstWidth {
		t.Errorf("%d records were handled one by one, the batches contained %d", before, firstWidth)
	}
	if a := r.attemptsAt(t, 0); a != (owner.Attempts{}) {
		t.Errorf("attempts are still kept: %+v", a)
	}
	for _, x := range r.handled() {
		if x.attempt != 1 {
			t.Errorf("%+v", x)
		}
	}
}

// hold claims an event in a transaction that stays open until release is called, and is then rolled
// back.
func (r *rig) hold(t *testing.T, id string) (release func()) {
	t.Helper()
	held, end, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_ = r.eng.Update(context.Background(), func(tx *engine.Tx) error {
			_, err := tx.TryClaim(engine.Event{
				Scope: r.group, ID: []byte(id), Time: time.Now(), Origin: engine.Origin{Topic: "x"},
			})
			close(held)
			<-end
			if err == nil {
				err = errHandler
			}
			return err
		})
	}()
	kafkatest.Receive(t, held)
	release = func() { close(end); <-done }
	return release
}

func TestRecordInFlightElsewhereIsJudgedAgain(t *testing.T) {
	for _, unclean := range []bool{false, true} {
		t.Run(fmt.Sprintf("unclean=%v", unclean), func(t *testing.T) {
			r := newRig(t, 1)
			if unclean {
				r.died(t, 0)
			}
			release := r.hold(t, "held")
			r.send(t, 0, "a", "b", "held", "c")
			m := r.start(t, r.work(2, nil))
			r.untilStored(t, 0, 2)
			r.send(t, 0, numbered("x", 3)...)
			kafkatest.Until(t, "rounds of judging", func() bool { return m.rounds(t, r.topic) > 8 })
			if n := r.stored(t, 0); n != 2 || r.effects(t, "a") != 1 || r.effects(t, "c") != 0 {
				t.Errorf("the store is at %d", n)
			}
			release()
			r.untilStored(t, 0, 7)
			m.counts(t, 7, "ids_total", "header")
			m.stop(t)
			r.checkOnce(t, "a", "b", "held", "c", "x0", "x1", "x2")
			if n := r.letterCount(t); n != 0 {
				t.Errorf("%d dead letters: a repeated judgement is no attempt", n)
			}
			for _, x := range r.handled() {
				if x.attempt != 1 {
					t.Errorf("%+v", x)
				}
			}
		})
	}
}

// Another caller of the scope, which is not a consumer, has the event under a lease.
func TestARecordThatIsPendingElsewhereIsJudgedAgain(t *testing.T) {
	r := newRig(t, 1)
	elsewhere, err := r.eng.TryClaim(context.Background(), engine.Event{
		Scope: r.group, ID: []byte("leased"), Time: time.Now(), Lease: time.Hour, Origin: engine.Origin{Topic: "x"},
	})
	if err != nil || elsewhere.Lease == nil {
		t.Fatal(elsewhere, err)
	}
	r.send(t, 0, "a", "leased", "b")
	m := r.start(t, r.work(2, nil))
	r.untilStored(t, 0, 1)
	kafkatest.Until(t, "rounds of judging", func() bool { return m.rounds(t, r.topic) > 3 })
	if n := r.stored(t, 0); n != 1 {
		t.Errorf("the store is at %d", n)
	}
	if err := r.eng.Release(context.Background(), elsewhere.Lease); err != nil {
		t.Fatal(err)
	}
	r.untilStored(t, 0, 3)
	m.stop(t)
	r.checkOnce(t, "a", "leased", "b")
}

func TestConflictingTransactionRunsAgain(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b", "c")
	var conflicts atomic.Int32
	m := r.start(t, r.work(1, func(_ context.Context, tx *engine.Tx, rec *Record) error {
		if _, _, err := tx.Get([]byte("balance")); err != nil {
			return err
		}
		if string(rec.Event.ID) == "b" && conflicts.Add(1) <= 20 {
			err := r.eng.Update(context.Background(), func(other *engine.Tx) error {
				return other.Put([]byte("balance"), []byte{byte(conflicts.Load())})
			})
			if err != nil {
				t.Error(err)
			}
		}
		return nil
	}))
	r.untilStored(t, 0, 3)
	m.stop(t)
	r.checkOnce(t, "a", "b", "c")
	if n := r.letterCount(t); n != 0 || conflicts.Load() < 21 {
		t.Errorf("%d dead letters after %d tries", n, conflicts.Load())
	}
}

func TestFailedStoreEndsRun(t *testing.T) {
	r := newRig(t, 1)
	m := r.start(t, r.work(1, nil))
	r.send(t, 0, "a")
	r.untilStored(t, 0, 1)
	r.mem.Fail(errHandler)
	r.send(t, 0, "b")
	kafkatest.Receive(t, m.done)
	if m.err == nil || !strings.Contains(m.err.Error(), errHandler.Error()) {
		t.Errorf("Run: %v", m.err)
	}
}

// The size of the next batch doubles after each one, even an empty one.
func TestRecordMayFailVeryOften(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b")
	r.start(t, r.work(80, failing(errHandler, "a")), func(o *Options) {
		o.backoff.Min, o.backoff.Max = time.Microsecond, time.Microsecond
	})
	r.untilStored(t, 0, 2)
	r.checkOnce(t, "b")
	r.letters(t, 1)
}

// The store counts attempts in 32 bits.
func TestPermanentNeedsNoLimitOfAttempts(t *testing.T) {
	r := newRig(t, 1)
	m := r.start(t, r.work(math.MaxInt, failing(Permanent(errHandler), "a")))
	r.send(t, 0, "a", "b")
	r.untilStored(t, 0, 2)
	m.stop(t)
	if got := r.handledIDs(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("handled %q", got)
	}
	if n := r.letterCount(t); n != 1 {
		t.Errorf("%d dead letters, want 1", n)
	}
}
