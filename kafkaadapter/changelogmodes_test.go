package kafkaadapter

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/tenure"
)

// inKafka keeps the changelogs in topics of the broker, and the copies in a directory.
func inKafka(dir string) func(*Options) {
	return func(o *Options) {
		o.Changelog.logs, o.Changelog.Replication = nil, 1
		o.Changelog.Copies, o.Changelog.Memory = pebble.Copies(dir, pebble.Options{}), 16<<20
	}
}

// The changelogs are topics of the broker: a rolling restart without volumes loses and repeats nothing.
func TestMembersRestartWithoutVolumes(t *testing.T) {
	f := newFleet(t, 3)
	mode := f.work(3, nil)
	join := func() *ship { return f.join(t, mode, nil, inKafka(t.TempDir())) }
	ships := []*ship{join(), join(), join()}
	f.sendMore(t, 20)
	f.untilDone(t, ships...)
	for i := range ships {
		f.sendMore(t, 20)
		ships[i].stop(t)
		ships[i] = join()
		f.untilDone(t, ships...)
	}
	lost, more := 0, 0
	for p := range f.partitions {
		for _, id := range f.ids[p] {
			switch n := f.effect(t, ships, p, id); {
			case n == 0:
				lost++
			case n > 1:
				more++
			}
		}
	}
	if lost+more > 0 {
		t.Errorf("%d events are lost, and %d took effect more than once", lost, more)
	}
	for _, s := range ships {
		s.stop(t)
	}
	topic := f.group + "." + f.topic + ".changelog"
	if end := f.Log(t, topic, 0).End; end == 0 {
		t.Errorf("%s has no records", topic)
	}
}

// effect is how often an event took effect in the store of its partition.
func (f *fleet) effect(t testing.TB, members []*ship, partition int32, id string) (n byte) {
	t.Helper()
	kafkatest.Until(t, "the owner of a partition", func() bool {
		for _, m := range members {
			eng, err := m.Engine(f.position(partition))
			if err != nil {
				continue
			}
			err = eng.Update(context.Background(), func(tx *engine.Tx) error {
				b, found, err := tx.Get(countKey(id))
				if n = 0; found {
					n = b[len(b)-1]
				}
				return err
			})
			return err == nil
		}
		return false
	})
	return n
}

// OnOwned has the engine of the partition until its context ends, and the partition is given up only when it
// has returned.
func TestOnOwnedRunsAsLongAsThePartitionIsOwned(t *testing.T) {
	f := newFleet(t, 2)
	var running, calls atomic.Int32
	owned := func(o *Options) {
		o.Changelog.OnOwned = func(ctx context.Context, p engine.OffsetKey, eng *engine.Engine) {
			running.Add(1)
			defer running.Add(-1)
			if err := eng.Update(ctx, func(tx *engine.Tx) error { return tx.Put([]byte("seen"), []byte(p.Topic)) }); err != nil {
				t.Errorf("writing to an owned engine: %v", err)
			}
			calls.Add(1)
			<-ctx.Done()
			if err := eng.Update(context.Background(), func(tx *engine.Tx) error { return tx.Put([]byte("end"), nil) }); err != nil {
				t.Errorf("the engine has ended before OnOwned: %v", err)
			}
		}
	}
	a := f.join(t, f.work(1, nil), vfs.NewMem(), owned)
	f.sendMore(t, 5)
	f.untilDone(t, a)
	kafkatest.Until(t, "OnOwned of both partitions", func() bool { return calls.Load() == 2 })
	a.stop(t)
	if n := running.Load(); n != 0 {
		t.Errorf("%d calls of OnOwned run after Run has returned", n)
	}
	if _, err := a.Engine(f.position(0)); !errors.Is(err, ErrNotOwned) {
		t.Errorf("the engine of a partition after the end: %v", err)
	}
}

// An OnOwned that ignores its context keeps the next engine of the partition closed, and is the stated reason.
func TestOnOwnedThatDoesNotReturnIsNamed(t *testing.T) {
	f := newFleet(t, 1)
	returns := make(chan struct{})
	var calls atomic.Int32
	a := f.join(t, f.work(1, nil), vfs.NewMem(), func(o *Options) {
		o.SilenceTimeout = time.Second
		o.Changelog.OnOwned = func(context.Context, engine.OffsetKey, *engine.Engine) {
			calls.Add(1)
			<-returns
		}
	})
	f.sendMore(t, 5)
	f.untilDone(t, a)
	kafkatest.Until(t, "OnOwned", func() bool { return calls.Load() == 1 })
	log := f.logs.log(a.shared.opt.Changelog.topic(f.group, f.topic), 0)
	s, err := replica.Open(context.Background(), log, pebbleCopies(vfs.NewMem())("other", 0, 0), replica.Options{}) // fences it
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	f.sendMore(t, 5)
	kafkatest.Until(t, "the stop", func() bool {
		all := a.Stopped()
		return len(all) == 1 && all[0].Reason == "handler" && errors.Is(all[0], errOnOwned)
	})
	close(returns)
	f.untilDone(t, a)
	kafkatest.Until(t, "OnOwned with the next engine", func() bool { return calls.Load() == 2 })
	a.stop(t)
	f.checkAudit(t)
}

// What shutdown has left is the time for the stores.
func TestStoresEndWithinTheTimeOfShutdown(t *testing.T) {
	f := newFleet(t, 1)
	returns := make(chan struct{})
	a := f.join(t, f.work(1, nil), vfs.NewMem(), func(o *Options) {
		o.Changelog.OnOwned = func(context.Context, engine.OffsetKey, *engine.Engine) { <-returns }
	})
	f.sendMore(t, 5)
	f.untilDone(t, a)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c := &Consumer{shared: &shared{opt: a.shared.opt, stores: a.shared.stores}}
		c.shared.opt.shutdownTimeout = time.Hour
		c.endStores(time.Now().Add(-time.Hour))
	}()
	kafkatest.Receive(t, ended)
	close(returns)
	a.stop(t)
}

// With AtMostOnce, HandleBatch and dead letters, what the store has follows the partition.
func TestOtherModesFollowThePartition(t *testing.T) {
	t.Run("AtMostOnce", func(t *testing.T) {
		f := newFleet(t, 1)
		mode := f.noting()
		atMostOnce := func(o *Options) { o.Routes[0].Policies = RejectUnclaimable() }
		for range 3 {
			a := f.join(t, mode, vfs.NewMem(), atMostOnce)
			f.sendMore(t, 20)
			f.untilDone(t, a)
			a.stop(t)
		}
		ids := f.handledIDs()
		slices.Sort(ids)
		if once := slices.Compact(slices.Clone(ids)); len(ids) != len(once) || len(once) != len(f.ids[0]) {
			t.Errorf("of %d events %d were handled, in %d calls", len(f.ids[0]), len(once), len(ids))
		}
	})
	t.Run("HandleBatch", func(t *testing.T) {
		f := newFleet(t, 1)
		mode := Transactional{MaxAttempts: 3, HandleBatch: func(_ context.Context, tx *engine.Tx, recs []*Record) error {
			for _, rec := range recs {
				if err := count(tx, string(rec.Event.ID)); err != nil {
					return err
				}
			}
			return nil
		}}
		for range 3 {
			a := f.join(t, mode, vfs.NewMem())
			f.sendMore(t, 20)
			f.untilDone(t, a)
			a.stop(t)
		}
		f.checkAudit(t)
	})
	t.Run("dead letters", func(t *testing.T) {
		f := newFleet(t, 1)
		a := f.join(t, f.work(2, failing(errHandler, "poison")), vfs.NewMem())
		f.sendMore(t, 3)
		f.send(t, 0, "poison")
		f.sent[0]++
		letter := f.letters(t, 1)[0]
		f.untilDone(t, a)
		a.stop(t)
		b := f.join(t, f.work(2, nil), vfs.NewMem())
		replay := func() *kgo.Record {
			return &kgo.Record{Topic: f.topic, Partition: 0, Key: letter.Key, Value: letter.Value, Headers: letter.Headers}
		}
		f.Produce(t, replay(), replay())
		f.send(t, 0, "poison") // a copy that is no replay
		f.sent[0] += 3
		f.untilDone(t, b)
		b.stop(t)
		if n := len(slices.DeleteFunc(f.handled(), func(r run) bool { return r.id != "poison" || !r.reopened })); n != 1 {
			t.Errorf("the dead letter was handled again %d times", n)
		}
		f.ids[0] = append(f.ids[0], "poison")
		f.checkAudit(t)
	})
	t.Run("attempts", func(t *testing.T) { // an attempt of the owner before counts
		f := newFleet(t, 1)
		entered := make(chan struct{}, 10)
		a := f.join(t, f.work(2, func(ctx context.Context, _ *engine.Tx, rec *Record) error {
			if rec.Attempt == 2 {
				entered <- struct{}{}
				<-ctx.Done()
			}
			return errHandler
		}), vfs.NewMem(), func(o *Options) { o.DrainTimeout, o.shutdownTimeout = time.Second, time.Second })
		f.send(t, 0, "poison")
		f.sent[0] = 1
		kafkatest.Receive(t, entered)
		a.kill(t)
		b := f.join(t, f.work(2, func(_ context.Context, _ *engine.Tx, rec *Record) error {
			if rec.Attempt < 2 {
				t.Errorf("attempt %d is made again", rec.Attempt)
			}
			return errHandler
		}), vfs.NewMem())
		f.letters(t, 1)
		b.stop(t)
	})
}

// A partition whose changelog does not answer says so, and does not hinder the end.
func TestRestoringIsReported(t *testing.T) {
	f := newFleet(t, 1)
	away := newValve()
	away.shut()
	a := f.join(t, f.work(1, nil), vfs.NewMem(), func(o *Options) {
		o.Changelog.logs, o.SilenceTimeout = memberLogs{&f.logs, away}, 200*time.Millisecond
	})
	kafkatest.Until(t, "Ready to name the state", func() bool {
		err := a.Ready()
		return err != nil && strings.Contains(err.Error(), "restoring")
	})
	a.counts(t, 1, "partition_stopped", "unreachable")
	if e := a.stoppedOne(t); !errors.Is(e, tenure.ErrSilent) {
		t.Errorf("the partition stops with %v", e)
	}
	away.reopen()
	f.sendMore(t, 5)
	f.untilDone(t, a)
	kafkatest.Until(t, "Ready", func() bool { return a.Ready() == nil })
	a.stop(t)
	f.checkAudit(t)
}
