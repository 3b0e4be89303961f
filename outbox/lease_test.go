package outbox

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/entry"
)

// steal writes a lease of another relay of this process into the store.
func (r *rig) steal(since time.Time) leaseRecord {
	r.t.Helper()
	other := leaseRecord{owner: [16]byte{1}, since: since, ttl: DefaultLeaseTTL}
	r.t.Cleanup((&lease{owner: other.owner}).live(r.eng))
	r.put(other)
	return other
}

// put writes a lease into the store.
func (r *rig) put(other leaseRecord) {
	r.t.Helper()
	if err := r.eng.Update(ctx, func(tx *engine.Tx) error {
		return driver.TxIn(tx, entry.Space).Put(entry.LeaseKey, other.encode())
	}, engine.Retries(5)); err != nil {
		r.t.Fatal(err)
	}
}

// holder returns the lease in the store.
func (r *rig) holder() (l leaseRecord, found bool) {
	r.t.Helper()
	value, found, err := driver.In(r.eng, entry.Space).Get(ctx, entry.LeaseKey)
	if err == nil && found {
		l, err = parseLease(value)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return l, found
}

func TestOneOfSeveralRelaysPublishes(t *testing.T) {
	r := newRig(t)
	var stops []func() error
	var relays []*Relay
	for range 3 {
		relay := r.relay(Options{})
		relays = append(relays, relay)
		stops = append(stops, r.run(relay))
	}
	for n := range 20 {
		r.produce(ids("m", 20)[n])
		r.broker.await(t, n+1)
	}
	r.drained()
	publishing := 0
	for _, relay := range relays {
		if testutil.ToFloat64(relay.shared.metrics.sent) > 0 {
			publishing++
		}
	}
	if publishing != 1 {
		t.Errorf("%d relays have published", publishing)
	}
	wantIDs(t, r.broker.ids(), ids("m", 20)...)
	l, _ := r.holder()
	for i, relay := range relays { // the one that has the lease ends, and another one continues
		if relay.shared.lease.owner == l.owner {
			if err := stops[i](); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.produce("after")
	for len(r.broker.ids()) == 20 {
		r.clock.next()
	}
	wantIDs(t, r.broker.ids()[20:], "after")
}

// A relay that the machine stops in the middle of a batch continues after its lease has expired.
func TestPausedRelayThatContinuesAfterItsLeaseSendsNothingMore(t *testing.T) {
	r := newRig(t)
	paused, wake := make(chan struct{}), make(chan struct{})
	sleeper := r.relay(Options{})
	sleeper.shared.dial = func(...kgo.Opt) (client, error) {
		return &sleepyClient{&fakeClient{b: r.broker}, paused, wake}, nil
	}
	r.produce(ids("m", 10)...)
	r.run(sleeper)
	<-paused
	r.clock.advance(DefaultLeaseTTL + time.Second)
	r.run(r.relay(Options{}))
	r.broker.await(t, 10)
	r.drained()
	close(wake)
	until(t, "the lost lease is detected", func() bool { return testutil.ToFloat64(sleeper.shared.metrics.leaseLost) == 1 })
	got := r.broker.ids()
	if len(got) != 11 {
		t.Errorf("10 messages were published %d times: %q", len(got), got)
	}
	r.produce("more")
	until(t, "the other relay continues", func() bool { return slices.Contains(r.broker.ids(), "more") })
}

// A sleepyClient sleeps inside its first Produce.
type sleepyClient struct {
	*fakeClient
	paused, wake chan struct{}
}

func (c *sleepyClient) Produce(ctx context.Context, rec *kgo.Record, promise func(*kgo.Record, error)) {
	select {
	case <-c.wake:
	default:
		close(c.paused)
		<-c.wake
	}
	c.fakeClient.Produce(ctx, rec, promise)
}

func TestBatchStopsWhenTheLeaseCannotBeRenewed(t *testing.T) {
	r := newRig(t)
	relay := r.relay(Options{Batch: Batch{Time: 20 * time.Second}})
	r.run(relay)
	r.produce("0")
	r.drained()
	until(t, "an idle relay", r.clock.waiting)
	r.clock.advance(4 * time.Second)
	r.broker.setHold(true)
	r.produce("1@k", "2@k", "3@k")
	r.broker.awaitHeld(1)
	r.steal(r.clock.Now())
	r.clock.advance(16 * time.Second) // the time of the renewal, not that of the batch
	until(t, "the lost lease is detected", func() bool { return testutil.ToFloat64(relay.shared.metrics.leaseLost) == 1 })
	r.broker.setHold(false)
	r.broker.release()
	wantIDs(t, r.broker.ids(), "0", "1")
	if n := pending(t, r.eng); n != 3 {
		t.Errorf("%d messages are pending: those acknowledged without a lease belong to the other relay", n)
	}
}

func TestLeaseIsRenewedDuringALongBatch(t *testing.T) {
	r := newRig(t)
	r.broker.setHold(true)
	r.produce("1", "2")
	r.run(r.relay(Options{Lease: Lease{TTL: time.Minute, Margin: 50 * time.Second}, Batch: Batch{Time: 10 * time.Second}}))
	r.broker.awaitHeld(2)
	before, _ := r.holder()
	r.clock.advance(10 * time.Second) // also the time of the batch: the messages fail
	until(t, "a renewed lease", func() bool { now, _ := r.holder(); return now.since.After(before.since) })
}

// The store was locked by the process that has taken the lease. So it has ended, and its messages need
// not wait: the clock does not move.
func TestLeaseOfADeadProcessIsTakenAtOnce(t *testing.T) {
	r := newRig(t)
	r.put(leaseRecord{owner: [16]byte{2}, since: r.clock.Now(), ttl: DefaultLeaseTTL})
	r.produce("m")
	r.run(r.relay(Options{}))
	r.drained()
	wantIDs(t, r.broker.ids(), "m")
}

// Also that of a relay whose run has ended without a release, because the store had failed.
func TestLeaseOfARunThatHasEndedIsTakenAtOnce(t *testing.T) {
	r := newRig(t)
	r.broker.setHold(true)
	r.produce("m")
	stop := r.run(r.relay(Options{}))
	r.broker.awaitHeld(1)
	r.mem.FailAt(storetest.OpApply, 1, errBad)
	r.broker.release()
	if err := stop(); err == nil {
		t.Fatal("the store has not failed")
	}
	r.broker.setHold(false)
	r.eng = openEngine(t, r.mem.CrashClone(0), r.clock)
	if _, found := r.holder(); !found {
		t.Fatal("the lease was released")
	}
	r.run(r.relay(Options{}))
	r.drained()
	wantIDs(t, r.broker.ids(), "m", "m")
}

// A relay of this process may continue after a pause.
func TestLeaseOfAPausedRelayExpires(t *testing.T) {
	for name, taken := range map[string]time.Duration{
		"taken now": 0, "taken before the clock was set back": 100 * time.Hour, "long ago": -100 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			began := r.clock.Now()
			r.steal(began.Add(taken))
			r.produce("m")
			r.run(r.relay(Options{}))
			if taken < 0 {
				r.broker.await(t, 1)
				return
			}
			for len(r.broker.ids()) == 0 {
				r.clock.next()
				until(t, "a timer or a record", func() bool { return len(r.broker.ids()) == 1 || r.clock.waiting() })
			}
			if waited := r.clock.Now().Sub(began); waited < DefaultLeaseTTL || waited > DefaultLeaseTTL+DefaultInterval {
				t.Errorf("published after %v, a lease lasts %v", waited, DefaultLeaseTTL)
			}
		})
	}
}

func TestClockThatJumpsForwardDoublesNothing(t *testing.T) {
	r := newRig(t)
	a, b := r.relay(Options{}), r.relay(Options{})
	r.run(a)
	r.run(b)
	for n, m := range ids("m", 10) {
		r.clock.advance(time.Duration(n) * time.Hour) // nothing is in flight
		r.produce(m)
		r.broker.await(t, n+1)
		r.drained()
	}
	wantIDs(t, r.broker.ids(), ids("m", 10)...)
}

func TestOnlyTheOwnerReleasesTheLease(t *testing.T) {
	r := newRig(t)
	relay := r.relay(Options{})
	if left, err := relay.shared.lease.take(ctx, r.eng); left != 0 || err != nil {
		t.Fatal(left, err)
	}
	other := r.steal(r.clock.Now())
	if err := relay.shared.lease.release(r.eng); err != nil {
		t.Fatal(err)
	}
	if l, found := r.holder(); !found || l.owner != other.owner {
		t.Errorf("the lease of the other relay was released: %v %v", l, found)
	}
	if left, err := relay.shared.lease.take(ctx, r.eng); left != DefaultLeaseTTL || err != nil {
		t.Errorf("a lease of another relay: %v left, %v", left, err)
	}
}

func TestLeaseIsReleasedAtTheEnd(t *testing.T) {
	r := newRig(t)
	stop := r.run(r.relay(Options{}))
	r.produce("m")
	r.drained()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if l, found := r.holder(); found {
		t.Errorf("%+v", l)
	}
}

func TestIdleRelayWritesNothing(t *testing.T) {
	r := newRig(t)
	r.produce("m")
	r.run(r.relay(Options{}))
	r.drained()
	until(t, "the lease is released", func() bool {
		if r.clock.waiting() {
			r.clock.next()
		}
		_, held := r.holder()
		return !held
	})
	before := r.mem.Calls(storetest.OpApply)
	for range 20 {
		r.clock.next()
	}
	if after := r.mem.Calls(storetest.OpApply); after != before {
		t.Errorf("%d batches", after-before)
	}
}

func TestNoSendStartsThatCouldOutlastTheLease(t *testing.T) {
	r := newRig(t)
	l := r.relay(Options{}).shared.lease
	if _, err := l.take(ctx, r.eng); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		elapsed, send time.Duration
		want          bool
	}{{0, 30 * time.Second, true}, {0, 31 * time.Second, false}, {20 * time.Second, 10 * time.Second, true}, {5 * time.Second, 10*time.Second + 1, false}} {
		r.clock.advance(c.elapsed)
		if got := l.covers(c.send); got != c.want {
			t.Errorf("%v after it was taken, a send of %v may start: %v", r.clock.Now().Sub(start), c.send, got)
		}
	}
	r.clock.advance(-time.Hour)
	if l.covers(time.Second) {
		t.Error("a send may start although the clock was set back")
	}
}
