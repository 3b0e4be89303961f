package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
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

// traffic produces events on all partitions, one in five of them twice, until it is ended; then it
// returns their ids.
func (r *rig) traffic(t *testing.T) (end func() []string) {
	t.Helper()
	c := r.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	ctx, cancel := context.WithCancel(t.Context())
	var ids []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			var recs []*kgo.Record
			for range 20 {
				id := fmt.Sprintf("e%d", len(ids))
				ids = append(ids, id)
				recs = append(recs, r.event(int32(len(ids))%r.partitions, id))
				if len(ids)%5 == 0 {
					recs = append(recs, r.event(rand.Int32N(r.partitions), ids[rand.IntN(len(ids))]))
				}
			}
			if err := c.ProduceSync(context.Background(), recs...).FirstErr(); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond): // other tests need the processors too
			}
		}
	}()
	return func() []string {
		cancel()
		kafkatest.Receive(t, done)
		return ids
	}
}

// A gap is the longest time without a handled record.
type gap struct {
	mu      sync.Mutex
	last    time.Time
	longest time.Duration
}

func (g *gap) tick() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := time.Now(); !g.last.IsZero() {
		g.longest = max(g.longest, now.Sub(g.last))
	}
	g.last = time.Now()
}

func (g *gap) take() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := g.longest
	g.longest = 0
	return d
}

// Members of one process that share a store join, leave and block under load.
func TestMembersOfOneProcessExchangePartitions(t *testing.T) {
	onEachStore(t, membersOfOneProcessExchangePartitions)
}

func membersOfOneProcessExchangePartitions(t *testing.T, s newStore) {
	const rounds = 20
	r := newRigOn(t, s, 6)
	var g gap
	var stall atomic.Bool
	over := make(chan struct{})
	mode := r.work(5, func(ctx context.Context, _ *engine.Tx, rec *Record) error {
		g.tick()
		if rec.Offset%97 == 13 {
			return errHandler // and is retried, perhaps by another member
		}
		if stall.CompareAndSwap(true, false) {
			select {
			case <-ctx.Done(): // it is cut off
				return ctx.Err()
			case <-over: // its partition stayed
			}
		}
		return nil
	})
	mode.Handle = failingOnce(mode.Handle)
	drain := func(o *Options) {
		o.DrainTimeout, o.shutdownTimeout = 50*time.Millisecond, 50*time.Millisecond
		o.Telemetry.Logger = slog.New(slog.DiscardHandler)
	}
	end := r.traffic(t)
	members := []*member{r.start(t, mode, drain)}
	r.UntilMembers(t, r.group, 1, r.topic)
	var gaps []time.Duration
	for i := range rounds {
		before := len(r.handled())
		stall.Store(i%5 == 4)
		if len(members) == 3 || len(members) > 1 && i%2 == 1 {
			victim := rand.IntN(len(members))
			members[victim].cancel()
			kafkatest.Receive(t, members[victim].done)
			if err := members[victim].err; err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("round %d: %v", i, err)
			}
			members = slices.Delete(members, victim, victim+1)
		} else {
			members = append(members, r.start(t, mode, drain))
		}
		kafkatest.Until(t, "progress", func() bool { return len(r.handled()) > before+100 })
		gaps = append(gaps, g.take().Round(time.Millisecond))
	}
	stall.Store(false)
	close(over)
	ids := end()
	for p := range r.partitions {
		r.untilStored(t, p, r.Log(t, r.topic, p).End)
	}
	for _, m := range members {
		m.cancel()
		kafkatest.Receive(t, m.done)
		// a copy may still be handled, for longer than DrainTimeout
		if m.err != nil && !errors.Is(m.err, context.DeadlineExceeded) {
			t.Errorf("in the end: %v", m.err)
		}
	}
	r.checkOnce(t, ids...)
	if n := r.letterCount(t); n > 0 {
		t.Errorf("%d dead letters: %v", n, values(r.letters(t, 1)[0]))
	}
	t.Logf("%d events, %d rounds; longest time without a handled record, by round: %v", len(ids), rounds, gaps)
}

// failingOnce makes a record fail at its first attempt only.
func failingOnce(f func(context.Context, *engine.Tx, *Record) error) func(context.Context, *engine.Tx, *Record) error {
	return func(ctx context.Context, tx *engine.Tx, rec *Record) error {
		err := f(ctx, tx, rec)
		if rec.Attempt > 1 && errors.Is(err, errHandler) {
			return nil
		}
		return err
	}
}

// stuck is a mode whose handler blocks for one id until release, even after its context has ended,
// and then continues.
func (r *rig) stuck(id string) (mode Transactional, began, release chan struct{}, verdict chan error) {
	began, release, verdict = make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var once atomic.Bool
	mode = r.work(5, func(ctx context.Context, tx *engine.Tx, rec *Record) error {
		if string(rec.Event.ID) == id && once.CompareAndSwap(false, true) {
			close(began)
			<-release
			err := tx.Put([]byte("zombie"), []byte("was here"))
			verdict <- err
			return err
		}
		return nil
	})
	return mode, began, release, verdict
}

func TestHandlerThatBlocksIsFenced(t *testing.T) { onEachStore(t, stuckHandlerIsFenced) }

func stuckHandlerIsFenced(t *testing.T, s newStore) {
	r := newRigOn(t, s, 2)
	mode, began, release, verdict := r.stuck("b")
	drain := func(o *Options) { o.DrainTimeout = 20 * time.Millisecond }
	first := r.start(t, mode, drain, func(o *Options) { o.shutdownTimeout = time.Millisecond })
	r.UntilMembers(t, r.group, 1, r.topic)
	for p := range r.partitions { // one of the partitions moves
		r.send(t, p, fmt.Sprint("warm", p))
		r.untilStored(t, p, 1)
	}
	assigned := func(m *member) (all []int32) {
		for _, p := range m.parts.all() {
			all = append(all, p.pos.Partition)
		}
		return all
	}
	// The handler blocks on a partition that the group is about to move. Because the group chooses
	// the partition, both are tried.
	r.send(t, 0, "a", "b", "c")
	kafkatest.Receive(t, began)
	second := r.start(t, mode, drain)
	kafkatest.Until(t, "the second member's partition", func() bool { return len(assigned(second)) == 1 })
	if slices.Contains(assigned(second), 0) {
		r.untilStored(t, 0, 4) // handled by the second one
	} else {
		first.cancel() // the first one is cut off, and leaves
		kafkatest.Receive(t, first.done)
		if !errors.Is(first.err, context.DeadlineExceeded) {
			t.Errorf("Run of a member whose handler blocks: %v", first.err)
		}
		r.untilStored(t, 0, 4)
	}
	offset := r.stored(t, 0)
	close(release)
	if err := kafkatest.Receive(t, verdict); !errors.Is(err, engine.ErrNoTransaction) {
		t.Errorf("a cut off handler writes: %v", err)
	}
	first.cancel()
	kafkatest.Receive(t, first.done)
	r.send(t, 0, "d")
	r.untilStored(t, 0, offset+1)
	second.stop(t)
	if r.get(t, []byte("zombie")) != nil {
		t.Error("a batch of an old assignment committed")
	}
	r.checkOnce(t, "a", "b", "c", "d", "warm0", "warm1")
	if !first.logs.has("a handler still runs") {
		t.Errorf("the reason is not logged:\n%s", first.logs)
	}
}

// After the callback has returned, nothing of the old assignment commits. The test checks this in
// the store, with a batch that only has to commit when the callback is called.
func TestNothingCommitsAfterARevoke(t *testing.T) { onEachStore(t, nothingCommitsAfterARevoke) }

func nothingCommitsAfterARevoke(t *testing.T, s newStore) {
	for name, give := range map[string]func(c *Consumer, lost map[string][]int32){
		"revoked": func(c *Consumer, lost map[string][]int32) { c.assign.revoked(lost) },
		"lost":    func(c *Consumer, lost map[string][]int32) { c.assign.lost(lost) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRigOn(t, s, 1)
			mode, began, release, verdict := r.stuck("b")
			m := r.start(t, mode, func(o *Options) { o.DrainTimeout, o.shutdownTimeout = time.Millisecond, time.Millisecond })
			r.send(t, 0, "a", "b")
			kafkatest.Receive(t, began)
			p := m.parts.get(topicPartition{r.topic, 0})
			give(m.Consumer, map[string][]int32{r.topic: {0}})
			before := r.stored(t, 0)
			close(release)
			kafkatest.Receive(t, verdict)
			kafkatest.Receive(t, p.done)
			if now := r.stored(t, 0); now != before || r.get(t, []byte("zombie")) != nil {
				t.Errorf("the store went from %d to %d", before, now)
			}
			if p.ctx.Err() == nil {
				t.Error("the handler's context continues")
			}
		})
	}
}

// A partition that was cut off has no owner in the store when the callback of the group returns: the
// batch that still runs conflicts with the release, and the next owner handles no record one by one.
func TestPartitionThatIsCutOffHasNoOwner(t *testing.T) {
	r := newRig(t, 1)
	mode, began, release, verdict := r.stuck("b")
	m := r.start(t, mode, func(o *Options) { o.DrainTimeout, o.shutdownTimeout = time.Millisecond, time.Millisecond })
	r.send(t, 0, "a", "b")
	kafkatest.Receive(t, began)
	p := m.parts.get(topicPartition{r.topic, 0})
	stored := func() owner.Record {
		o, err := parseOwner(r.get(t, partitionKey(keyOwner, r.position(0))))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	if o := stored(); !p.fence.Owns(o) {
		t.Errorf("the owner is %x, another one", o.Token)
	}
	m.assign.revoked(map[string][]int32{r.topic: {0}})
	if o := stored(); o.Token != [16]byte{} {
		t.Errorf("the owner is still %x", o.Token)
	}
	close(release)
	kafkatest.Receive(t, verdict)
	kafkatest.Receive(t, p.done)
}

// The group may revoke a partition while Run ends and waits for its handler. After the callback has
// returned, nothing of the partition commits then, either.
func TestNothingCommitsAfterARevokeWhileRunEnds(t *testing.T) {
	onEachStore(t, nothingCommitsAfterARevokeWhileRunEnds)
}

func nothingCommitsAfterARevokeWhileRunEnds(t *testing.T, s newStore) {
	for name, give := range map[string]func(c *Consumer, lost map[string][]int32){
		"revoked": func(c *Consumer, lost map[string][]int32) { c.assign.revoked(lost) },
		"lost":    func(c *Consumer, lost map[string][]int32) { c.assign.lost(lost) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRigOn(t, s, 1)
			mode, began, release, verdict := r.stuck("b")
			m := r.start(t, mode, func(o *Options) { o.DrainTimeout, o.shutdownTimeout = time.Millisecond, time.Minute })
			r.send(t, 0, "a", "b")
			kafkatest.Receive(t, began)
			p := m.parts.get(topicPartition{r.topic, 0})
			m.cancel()
			kafkatest.Receive(t, p.ending.Done())
			give(m.Consumer, map[string][]int32{r.topic: {0}})
			before := r.stored(t, 0)
			close(release)
			kafkatest.Receive(t, verdict)
			kafkatest.Receive(t, m.done)
			if now := r.stored(t, 0); now != before || r.get(t, []byte("zombie")) != nil {
				t.Errorf("the store went from %d to %d", before, now)
			}
		})
	}
}

// Another owner in the store is enough to stop a member. If the group still assigns it the
// partition after a heartbeat, the other owner has lost the partition.
func TestFencedMemberTakesItsPartitionOverAgain(t *testing.T) {
	onEachStore(t, fencedMemberTakesItsPartitionOverAgain)
}

func fencedMemberTakesItsPartitionOverAgain(t *testing.T, s newStore) {
	r := newRigOn(t, s, 1)
	r.send(t, 0, "a")
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 1)
	r.died(t, 0) // whichever owner it was, it is the owner now
	r.send(t, 0, "b")
	if e := m.stoppedOne(t); !errors.Is(e, ErrFenced) || e.Reason != "fenced" {
		t.Errorf("stopped: %v", e)
	}
	r.untilStored(t, 0, 2)
	kafkatest.Until(t, "the partition to be read", func() bool { return len(m.Stopped()) == 0 })
	m.stop(t)
	r.checkOnce(t, "a", "b")
}

// If another member takes the partition over, its owner has not died: its records are not counted
// as failed.
func TestBeingFencedIsNoAttempt(t *testing.T) { onEachStore(t, beingFencedIsNoAttempt) }

func beingFencedIsNoAttempt(t *testing.T, s newStore) {
	r := newRigOn(t, s, 1)
	// the other member takes the partition while the handler runs; three times the maximum number
	// of attempts
	left := 6
	m := r.start(t, r.work(2, func(context.Context, *engine.Tx, *Record) error {
		if left > 0 {
			left--
			r.died(t, 0)
		}
		return nil
	}))
	r.send(t, 0, "a", "b")
	r.untilStored(t, 0, 2)
	m.stop(t)
	if n := r.letterCount(t); n > 0 {
		t.Errorf("%d dead letters of records whose handler has not failed", n)
	}
	r.checkOnce(t, "a", "b")
}

func TestHandlerMayEndItsBatchBeforeARevoke(t *testing.T) {
	onEachStore(t, handlerMayEndItsBatchBeforeARevoke)
}

func handlerMayEndItsBatchBeforeARevoke(t *testing.T, s newStore) {
	r := newRigOn(t, s, 1)
	mode, began, release, verdict := r.stuck("b")
	m := r.start(t, mode, func(o *Options) { o.DrainTimeout = time.Minute })
	r.send(t, 0, "a", "b")
	kafkatest.Receive(t, began)
	p := m.parts.get(topicPartition{r.topic, 0})
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.assign.revoked(map[string][]int32{r.topic: {0}})
	}()
	kafkatest.Receive(t, p.ending.Done())
	close(release)
	if err := kafkatest.Receive(t, verdict); err != nil {
		t.Error(err)
	}
	kafkatest.Receive(t, done)
	r.checkOnce(t, "a", "b")
	if n := r.stored(t, 0); n != 2 {
		t.Errorf("the store is at %d", n)
	}
	if o, _ := r.Committed(t, r.group, r.topic, 0); o.At != 2 {
		t.Errorf("Kafka has %d when the partition is revoked", o.At)
	}
}

func TestMembersWithAStoreEachStop(t *testing.T) { onEachStore(t, membersWithAStoreEachStop) }

func membersWithAStoreEachStop(t *testing.T, s newStore) {
	r := newRigOn(t, s, 2)
	r.send(t, 0, numbered("a", 5)...)
	r.send(t, 1, numbered("b", 5)...)
	first := r.start(t, r.work(1, nil))
	r.UntilCommitted(t, r.group, r.topic, 0, 5)
	r.UntilCommitted(t, r.group, r.topic, 1, 5)
	shared := r.eng
	r.replaceStore(t)
	second := r.start(t, r.work(1, nil))
	if e := second.stoppedOne(t); !errors.Is(e, ErrForeignStore) {
		t.Errorf("stopped: %v", e)
	}
	if n := len(first.Stopped()); n != 0 {
		t.Errorf("the first member has %d stopped partitions", n)
	}
	second.stop(t)
	r.eng = shared
	r.send(t, 0, "c")
	r.send(t, 1, "d")
	r.untilStored(t, 0, 6)
	r.untilStored(t, 1, 6)
	first.stop(t)
	r.checkOnce(t, append(numbered("a", 5), "c", "d")...)
}
