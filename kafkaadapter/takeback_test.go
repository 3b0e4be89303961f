package kafkaadapter

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// stuckAt is a mode whose handler records its calls, and blocks at one event until release is
// closed.
func (r *rig) stuckAt(id string) (mode AtMostOnce, began, release chan struct{}) {
	began, release = make(chan struct{}), make(chan struct{})
	mode = AtMostOnce(func(ctx context.Context, rec *Record) error {
		r.note(ctx, rec)
		if string(rec.Event.ID) == id {
			close(began)
			<-release
		}
		return nil
	})
	return mode, began, release
}

// noting is a mode whose handler records its calls.
func (r *rig) noting() AtMostOnce {
	return AtMostOnce(func(ctx context.Context, rec *Record) error { r.note(ctx, rec); return nil })
}

// kafkaAt returns the group's offset in Kafka.
func (r *rig) kafkaAt(t *testing.T) int64 {
	t.Helper()
	o, _ := r.Committed(t, r.group, r.topic, 0)
	return o.At
}

// The first batch claims 64 records up front; the consumer is asked to end while the eleventh is
// handled.
func TestOrderlyEndWithdrawsTheClaimsThatHaveNotBegun(t *testing.T) {
	r := newRig(t, 1)
	ids := numbered("a", firstWidth)
	r.send(t, 0, ids...)
	mode, began, release := r.stuckAt("a10")
	m := r.start(t, mode)
	kafkatest.Receive(t, began)
	if n := r.stored(t, 0); n < 12 {
		t.Fatalf("the store is at %d: nothing was claimed ahead", n)
	}
	p := m.parts.get(topicPartition{r.topic, 0})
	m.cancel()
	kafkatest.Receive(t, p.ending.Done())
	close(release)
	m.stop(t)
	if n, at := r.stored(t, 0), r.kafkaAt(t); n != 11 || at != 11 || len(r.handled()) != 11 {
		t.Errorf("the store is at %d and Kafka at %d after %d calls", n, at, len(r.handled()))
	}
	m.counts(t, 0, "lost_total")
	m.counts(t, 11, "records_total", "claimed") // the remaining ones
	r.crash(t)                                  // the withdrawal is durable
	m = r.start(t, r.noting())
	r.untilHandled(t, len(ids))
	m.stop(t)
	m.counts(t, firstWidth-11, "records_total", "claimed")
	if got := r.handledIDs(); !slices.Equal(got, ids) {
		t.Errorf("handled %q", got)
	}
}

// A handler that does not end in time is cut off. Later events of its batch are not lost with it.
func TestOnlyBegunEventsAreLostWhenTheHandlerIsCutOff(t *testing.T) {
	r := newRig(t, 1)
	ids := numbered("a", firstWidth)
	r.send(t, 0, ids...)
	mode, began, release := r.stuckAt("a10")
	m := r.start(t, mode, func(o *Options) { o.shutdownTimeout = 20 * time.Millisecond })
	kafkatest.Receive(t, began)
	p := m.parts.get(topicPartition{r.topic, 0})
	m.cancel()
	kafkatest.Receive(t, m.done)
	if !errors.Is(m.err, context.DeadlineExceeded) {
		t.Errorf("Run: %v", m.err)
	}
	again := r.start(t, r.noting())
	r.untilHandled(t, len(ids))
	close(release)
	kafkatest.Receive(t, p.done)
	again.stop(t)
	m.counts(t, 11, "records_total", "claimed")
	again.counts(t, firstWidth-11, "records_total", "claimed")
	if got := r.handledIDs(); !slices.Equal(got, ids) {
		t.Errorf("handled %q", got)
	}
}

// The group's offset follows the handlers, so that it is not ahead of the store after claims are
// withdrawn, nor if the process dies instead.
func TestKafkaIsNotAheadOfTheHandlers(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, numbered("a", firstWidth)...)
	mode, began, release := r.stuckAt("a10")
	m := r.start(t, mode, func(o *Options) { o.commitInterval = time.Millisecond })
	kafkatest.Receive(t, began)
	claimed := r.stored(t, 0)
	p := m.parts.get(topicPartition{r.topic, 0})
	kafkatest.Until(t, "the commit of the begun records", func() bool { return r.kafkaAt(t) >= 11 })
	if err := m.commits.commit(t.Context(), these(p), commitTime); err != nil || r.kafkaAt(t) != 11 {
		t.Errorf("Kafka is at %d", r.kafkaAt(t))
	}
	old := r.eng
	r.crash(t)
	m.cancel()
	kafkatest.Receive(t, p.ending.Done())
	close(release)
	kafkatest.Receive(t, m.done)
	_ = old.Close() // its error says that its store has died
	r.send(t, 0, "last")
	m = r.start(t, r.noting())
	r.untilHandled(t, 11+firstWidth+1-int(claimed))
	m.stop(t)
	select {
	case stop := <-m.stops:
		t.Errorf("stopped: %v", stop)
	default:
	}
	if n := len(r.handled()); n != 11+firstWidth+1-int(claimed) {
		t.Errorf("%d calls: %d events were claimed when the process died", n, claimed)
	}
}

// No handler has begun yet: the group's offset is that of the first record.
func TestKafkaIsNotAheadBeforeTheFirstHandler(t *testing.T) {
	r := newRig(t, 1)
	p := r.detachedWith(t, r.noting())
	for offset, id := range []string{"", "a", "b"} {
		if rec := r.event(0, id); id != "" {
			rec.Offset, rec.Timestamp = int64(offset), time.Now()
			p.state.taken = append(p.state.taken, rec)
		}
	}
	b, err := p.commitBatch(2)
	if err != nil || len(b.result.claimed) != 2 || r.stored(t, 0) != 3 {
		t.Fatalf("%d of 2 are claimed, the store is at %d, %v", len(b.result.claimed), r.stored(t, 0), err)
	}
	if next := p.partition.offsets.next(); next != 1 {
		t.Errorf("Kafka may have %d", next)
	}
}

// A member joins while handlers of both partitions run: the new member gets the records of its
// partition that have not begun.
func TestRebalanceWithdrawsTheClaimsThatHaveNotBegun(t *testing.T) {
	r := newRig(t, 2)
	ids := [][]string{numbered("a", firstWidth), numbered("b", firstWidth)}
	for partition := range ids {
		r.send(t, int32(partition), ids[partition]...)
	}
	began, release := make(chan struct{}, 2), make(chan struct{})
	first := r.start(t, AtMostOnce(func(ctx context.Context, rec *Record) error {
		r.note(ctx, rec)
		if rec.Offset == 10 {
			began <- struct{}{}
			<-release
		}
		return nil
	}))
	kafkatest.Receive(t, began)
	kafkatest.Receive(t, began)
	a, b := first.parts.get(topicPartition{r.topic, 0}), first.parts.get(topicPartition{r.topic, 1})
	second := r.start(t, r.noting())
	kafkatest.Until(t, "a partition that moves", func() bool { return a.isEnding() || b.isEnding() })
	moves := a
	if b.isEnding() {
		moves = b
	}
	close(release)
	kafkatest.Receive(t, moves.done)
	r.untilHandled(t, 2*firstWidth)
	first.stop(t)
	second.stop(t)
	first.counts(t, firstWidth+11, "records_total", "claimed")
	second.counts(t, firstWidth-11, "records_total", "claimed")
	for _, m := range []*member{first, second} {
		m.counts(t, 0, "lost_total")
	}
	want, got := slices.Concat(ids...), r.handledIDs()
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("handled %q", got)
	}
}

func TestNoClaimOfALostPartitionIsWithdrawn(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, numbered("a", firstWidth)...)
	mode, began, release := r.stuckAt("a10")
	m := r.start(t, mode)
	kafkatest.Receive(t, began)
	claimed := r.stored(t, 0)
	p := m.parts.get(topicPartition{r.topic, 0})
	m.assign.lost(map[string][]int32{r.topic: {0}})
	close(release)
	kafkatest.Receive(t, p.done)
	m.counts(t, float64(claimed-11), "lost_total")
	m.counts(t, float64(claimed), "records_total", "claimed")
	if n := r.stored(t, 0); n != claimed {
		t.Errorf("the store is at %d, it was at %d", n, claimed)
	}
}

// Records after one whose claim is withdrawn are judged again: a dead letter is made once, and a
// duplicate remains one.
func TestDeadLettersAndDuplicatesAfterWithdrawnClaims(t *testing.T) {
	r := newRig(t, 1)
	bad := func() *kgo.Record { return &kgo.Record{Topic: r.topic, Value: []byte("who?")} }
	r.Produce(t, bad(), r.event(0, "a"), r.event(0, "b"), bad(), r.event(0, "b"), r.event(0, "c"))
	mode, began, release := r.stuckAt("a")
	noPosition := func(o *Options) { o.Routes[0].Identify.NoPosition = true }
	m := r.start(t, mode, noPosition, withDeadLetters)
	kafkatest.Receive(t, began)
	if n := r.stored(t, 0); n != 6 {
		t.Fatalf("the store is at %d: the batch should contain all records", n)
	}
	p := m.parts.get(topicPartition{r.topic, 0})
	m.cancel()
	kafkatest.Receive(t, p.ending.Done())
	close(release)
	m.stop(t)
	if n := r.stored(t, 0); n != 2 {
		t.Errorf("the store is at %d", n)
	}
	m.counts(t, 1, "records_total") // "a" alone; later records are counted when they are judged again
	m.counts(t, 1, "ids_total")
	m = r.start(t, r.noting(), noPosition, withDeadLetters)
	r.untilStored(t, 0, 6)
	r.untilHandled(t, 3)
	m.counts(t, 2, "dead_letters_total")
	m.stop(t)
	m.counts(t, 2, "records_total", "claimed")
	m.counts(t, 1, "records_total", "duplicate")
	m.counts(t, 3, "ids_total")
	if n := r.letterCount(t); n != 2 {
		t.Errorf("%d dead letters", n)
	}
	if got := strings.Join(r.handledIDs(), " "); got != "a b c" {
		t.Errorf("handled %q", got)
	}
}

// The hold is set back with the offset: the weeks of the withdrawn claims are needed again.
func TestHoldIsSetBackWithTheOffset(t *testing.T) {
	r := newRig(t, 1)
	old := r.event(0, "b")
	old.Timestamp = time.Now().AddDate(0, 0, -21)
	r.Produce(t, r.event(0, "a"), old)
	mode, began, release := r.stuckAt("a")
	m := r.start(t, mode)
	kafkatest.Receive(t, began)
	p := m.parts.get(topicPartition{r.topic, 0})
	p.hold.set(time.Now()) // as in a partition that is caught up
	err := r.eng.Update(t.Context(), func(tx *engine.Tx) error { return as(tx).SetHold(p.hold.name, time.Now()) })
	m.cancel()
	kafkatest.Receive(t, p.ending.Done())
	close(release)
	m.stop(t)
	if h := r.eng.Holds(); err != nil || len(h) != 1 || h[0].At.After(old.Timestamp) {
		t.Errorf("the hold is at %v, %v", h, err)
	}
}

// A handler that ends its goroutine ends Run, and loses its own event.
func TestHandlerThatEndsItsGoroutineLosesOnlyItsEvent(t *testing.T) {
	for _, handlers := range []int{1, 2} {
		r := newRig(t, 1)
		r.send(t, 0, "a", "bad", "b", "c", "d")
		second := make(chan struct{}) // the event after the bad one has begun, if it runs in parallel
		m := r.start(t, AtMostOnce(func(ctx context.Context, rec *Record) error {
			r.note(ctx, rec)
			switch string(rec.Event.ID) {
			case "bad":
				if handlers > 1 {
					<-second
				}
				runtime.Goexit()
			case "b":
				close(second)
				return errHandler
			}
			return nil
		}), func(o *Options) { o.Routes[0].Concurrency.handlers = handlers })
		kafkatest.Receive(t, m.done)
		lost := m.logs.count("they are lost")
		again := r.start(t, r.noting())
		kafkatest.Until(t, "the last event", func() bool { return slices.Contains(r.handledIDs(), "d") })
		again.stop(t)
		got := r.handledIDs()
		slices.Sort(got) // those that run in parallel are recorded in any order
		if !slices.Equal(got, []string{"a", "b", "bad", "c", "d"}) || lost != handlers {
			t.Errorf("%d handlers: handled %q, %d were reported as lost\n%s", handlers, got, lost, m.logs)
		}
	}
}

// Another consumer has become the owner while claims wait for their handlers: its offset is not set
// back.
func TestClaimsOfAnotherOwnerAreNotWithdrawn(t *testing.T) {
	r := newRig(t, 1)
	runs, release := make(chan struct{}), make(chan struct{})
	m := r.start(t, AtMostOnce(func(ctx context.Context, rec *Record) error {
		r.note(ctx, rec)
		if string(rec.Event.ID) == "b" {
			close(runs)
			<-release
		}
		return nil
	}))
	r.send(t, 0, "a")
	r.untilHandled(t, 1)
	m.pause(t, r.topic)
	r.send(t, 0, "b", "c", "d")
	if err := m.Resume(r.topic); err != nil {
		t.Fatal(err)
	}
	kafkatest.Receive(t, runs)
	reached := r.stored(t, 0)
	p := m.parts.get(topicPartition{r.topic, 0})
	r.died(t, 0) // whichever owner it was, it is the owner now
	m.cancel()
	kafkatest.Receive(t, p.ending.Done())
	close(release)
	m.stop(t)
	if n := r.stored(t, 0); n != reached {
		t.Errorf("the store went from %d to %d", reached, n)
	}
	m.counts(t, float64(reached-2), "lost_total")
}

// The group revokes a partition while Run ends. The claims that wait for their handlers are
// withdrawn once, and none of them is lost.
func TestPartitionIsCutOffOnce(t *testing.T) {
	r := newRig(t, 1)
	mode, runs, release := r.stuckAt("b")
	m := r.start(t, mode, func(o *Options) {
		o.DrainTimeout, o.shutdownTimeout = 300*time.Millisecond, 300*time.Millisecond
	})
	r.send(t, 0, "a")
	r.untilStored(t, 0, 1)
	m.pause(t, r.topic)
	r.send(t, 0, "b", "c", "d")
	if err := m.Resume(r.topic); err != nil {
		t.Fatal(err)
	}
	kafkatest.Receive(t, runs)
	p := m.parts.get(topicPartition{r.topic, 0})
	m.cancel()
	kafkatest.Receive(t, p.ending.Done())
	m.assign.revoked(map[string][]int32{r.topic: {0}})
	kafkatest.Receive(t, p.released)
	close(release)
	kafkatest.Receive(t, m.done)
	if stored, lost, fenced := r.stored(t, 0), m.metric(t, "lost_total"), m.metric(t, "fenced_total"); stored != 2 || lost != 0 || fenced != 1 {
		t.Errorf("the store is at %d, %v events are lost, %v handlers cut off; want 2, 0, 1", stored, lost, fenced)
	}
}

// The claims of a partition that is cut off are withdrawn by another goroutine: the next batch does
// not use the memory of its records.
func TestNextBatchUsesTheMemoryOfADoneBatchOnly(t *testing.T) {
	r := newRig(t, 1)
	p := r.detachedWith(t, r.noting())
	commit := func(id string) *batch {
		rec := r.event(0, id)
		rec.Offset, rec.Timestamp = p.state.next, time.Now()
		p.state.taken = append(p.state.taken[:0], rec)
		b, err := p.commitBatch(1)
		if err != nil || len(b.result.claimed) != 1 {
			t.Fatalf("%d of 1 is claimed, %v", len(b.result.claimed), err)
		}
		return b
	}
	done := commit("a")
	memory := &done.result.claimed[0]
	if !p.partition.handleClaimed(done) || memory.delivery != nil {
		t.Errorf("a record that was handled is kept: %v", memory.delivery)
	}
	cut := commit("b")
	if &cut.result.claimed[0] != memory {
		t.Error("the second batch has memory of its own")
	}
	p.partition.backlog.fill(&cut.result)
	_, rest := p.partition.backlog.cut()
	p.partition.giveBack() // as at the end of its handlers
	commit("c")
	if len(rest) != 1 || string(rest[0].delivery.Event.ID) != "b" {
		t.Errorf("the record to withdraw was replaced: %v", rest)
	}
}

// The goroutine of a partition that is cut off takes no other records: it would reuse the memory of
// those whose claims another goroutine withdraws.
func TestPartitionThatIsCutOffTakesNoOtherRecords(t *testing.T) {
	r := newRig(t, 1)
	var p *worker
	p = r.detachedWith(t, AtMostOnce(func(context.Context, *Record) error {
		if _, rest := p.partition.backlog.cut(); len(rest) != 1 {
			t.Errorf("%d claims are left", len(rest))
		}
		go p.partition.cancel(ErrFenced)
		return nil
	}))
	for i, id := range []string{"a", "b"} {
		rec := r.event(0, id)
		rec.Offset, rec.Timestamp = p.state.next+int64(i), time.Now()
		p.state.taken = append(p.state.taken, rec)
	}
	b, err := p.commitBatch(2)
	if err != nil || len(b.result.claimed) != 2 {
		t.Fatalf("%d of 2 are claimed, %v", len(b.result.claimed), err)
	}
	if p.partition.handleClaimed(b) {
		t.Error("the partition goes on")
	}
}
