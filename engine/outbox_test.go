package engine_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/entry"
)

// outboxOf reads the entries of a store's outbox whose keys begin with prefix, in key order.
func outboxOf(t testing.TB, m *storetest.Mem, prefix []byte) (entries []entry.Entry) {
	t.Helper()
	err := m.ScanState(storage.Span{Prefix: append([]byte("xoutbox\x00"), prefix...)}, func(_, value []byte) error {
		e, err := entry.Parse(bytes.Clone(value))
		entries = append(entries, e)
		return err
	})
	if err != nil {
		t.Fatal("reading the outbox:", err)
	}
	return entries
}

func wantOutbox(t testing.TB, m *storetest.Mem, prefix []byte, ids ...string) {
	t.Helper()
	var got []string
	for _, e := range outboxOf(t, m, prefix) {
		got = append(got, e.ID)
	}
	if strings.Join(got, " ") != strings.Join(ids, " ") {
		t.Fatalf("the outbox has %q, want %q", got, ids)
	}
}

func mustProduce(t testing.TB, tx *engine.Tx, id string) {
	t.Helper()
	if got, err := tx.Produce(engine.Message{ID: id, Topic: "out"}); err != nil || got != id {
		t.Fatalf("producing %q: %q %v", id, got, err)
	}
}

func TestProduceWithoutATransactionTouchesNothing(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	var ended *engine.Tx
	update(t, e, func(tx *engine.Tx) { ended = tx })
	settle(t, e, m)
	before := m.Calls(storetest.OpApply) + m.Calls(storetest.OpState)
	for _, tx := range []*engine.Tx{nil, ended} {
		if _, err := tx.Produce(engine.Message{Topic: "out"}); !errors.Is(err, engine.ErrNoTransaction) {
			t.Error(err)
		}
	}
	if after := m.Calls(storetest.OpApply) + m.Calls(storetest.OpState); after != before {
		t.Errorf("the store was called %d times", after-before)
	}
}

func TestMessageCommitsWithClaimAndStateOrNotAtAll(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	work := func(tx *engine.Tx) error {
		wantTx(t, tx, event("a"), engine.Claimed)
		mustPut(t, tx, "balance", "1")
		mustProduce(t, tx, "m")
		return nil
	}
	if err := e.Update(ctx, func(tx *engine.Tx) error { return errors.Join(work(tx), errBoom) }); !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	wantOutbox(t, m, entry.ReadyPrefix)
	m.HoldSyncs()
	done := make(chan error)
	go func() { done <- e.Update(ctx, work) }()
	awaitHeld(t, m)
	for unsynced := range m.Unsynced() + 1 {
		crashed := m.CrashClone(unsynced)
		after := open(t, crashed, engine.Options{})
		_, claimed, err := after.Admin().Lookup(ctx, event("a").Scope, event("a").ID, event("a").Time)
		if err != nil {
			t.Fatal(err)
		}
		if sent := len(outboxOf(t, crashed, entry.ReadyPrefix)) == 1; sent != claimed {
			t.Errorf("after a crash: claimed %v, message %v", claimed, sent)
		}
	}
	m.ReleaseSyncs()
	if err := receive(t, done); err != nil {
		t.Fatal(err)
	}
	wantOutbox(t, m, entry.ReadyPrefix, "m")
}

func TestSavepointUndoesMessages(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	update(t, e, func(tx *engine.Tx) {
		mustProduce(t, tx, "kept")
		s, err := tx.Savepoint()
		if err != nil {
			t.Fatal(err)
		}
		mustProduce(t, tx, "undone")
		if err := tx.RollbackTo(s); err != nil {
			t.Fatal(err)
		}
		mustProduce(t, tx, "after")
	})
	wantOutbox(t, m, entry.ReadyPrefix, "kept", "after")
}

func TestMessagesAreInTheOrderOfCommits(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	update(t, e, func(outer *engine.Tx) {
		mustProduce(t, outer, "outer 1")
		update(t, e, func(inner *engine.Tx) { // no conflict: no transaction reads the outbox
			mustProduce(t, inner, "inner 1")
			mustProduce(t, inner, "inner 2")
		})
		mustProduce(t, outer, "outer 2")
	})
	m = m.CrashClone(0)
	again := open(t, m, engine.Options{})
	update(t, again, func(tx *engine.Tx) { mustProduce(t, tx, "after the crash") })
	wantOutbox(t, m, entry.ReadyPrefix, "inner 1", "inner 2", "outer 1", "outer 2", "after the crash")
}

func TestMessagesDueLaterAreOrderedByDueTime(t *testing.T) {
	e, m, clock := openAt(t, engine.Options{})
	now := clock.now()
	update(t, e, func(tx *engine.Tx) {
		for id, due := range map[string]time.Duration{"2 h": 2 * time.Hour, "1 h": time.Hour, "past": -time.Hour} {
			if _, err := tx.Produce(engine.Message{ID: id, Topic: "out", Due: now.Add(due)}); err != nil {
				t.Fatal(err)
			}
		}
	})
	wantOutbox(t, m, entry.ReadyPrefix, "past")
	wantOutbox(t, m, entry.DelayedPrefix, "1 h", "2 h")
	if got := outboxOf(t, m, entry.DelayedPrefix)[0]; got.Due != now.Add(time.Hour).UnixMilli() || got.Created != now.UnixMilli() || got.Time != got.Due || got.Stamped {
		t.Errorf("%+v", got)
	}
	if got := outboxOf(t, m, entry.ReadyPrefix)[0]; got.Time != got.Created || got.Stamped {
		t.Errorf("%+v", got)
	}
}

func TestMessageKeepsAllItsFields(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	value := []byte("v")
	var id string
	update(t, e, func(tx *engine.Tx) {
		var err error
		id, err = tx.Produce(engine.Message{
			Topic: "out", Partition: new(int32(0)), Key: []byte("k"), Value: value, OrderingKey: []byte("o"),
			Headers: []engine.MessageHeader{{Key: "h", Value: nil}, {Key: "i", Value: value}}, Time: time.UnixMilli(1),
		})
		if err != nil {
			t.Fatal(err)
		}
		value[0] = 'x' // the message was copied
		mustProduce(t, tx, "tombstone")
	})
	if u, err := uuid.Parse(id); err != nil || u.Version() != 7 {
		t.Errorf("the id %q is no UUIDv7: %v", id, err)
	}
	all := outboxOf(t, m, entry.ReadyPrefix)
	got := all[0]
	if got.ID != id || got.Topic != "out" || got.Partition != 0 || string(got.Key) != "k" || string(got.Value) != "v" ||
		string(got.OrderingKey) != "o" || len(got.Headers) != 2 || got.Headers[0].Key != "h" || got.Headers[0].Value != nil ||
		string(got.Headers[1].Value) != "v" || got.Time != 1 || !got.Stamped {
		t.Errorf("%+v", got)
	}
	if got := all[1]; got.Value != nil || got.Partition != entry.NoPartition || got.OrderingKey != nil {
		t.Errorf("%+v", got)
	}
}

func TestMessageBeyondALimitIsRejected(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	update(t, e, func(tx *engine.Tx) {
		for field, msg := range map[string]engine.Message{
			"topic":        {},
			"id":           {Topic: "t", ID: strings.Repeat("i", limits.MessageIDBytes+1)},
			"partition":    {Topic: "t", Partition: new(int32(-1))},
			"ordering key": {Topic: "t", OrderingKey: make([]byte, limits.OrderingKeyBytes+1)},
			"headers":      {Topic: "t", Headers: make([]engine.MessageHeader, limits.MessageHeaders+1)},
			"size":         {Topic: "t", Key: make([]byte, 1<<20), Value: make([]byte, limits.MessageBytes-1<<20)},
			"time":         {Topic: "t", Time: time.Date(1969, 12, 31, 23, 59, 59, 0, time.UTC)},
			"due time":     {Topic: "t", Due: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
		} {
			var refused *engine.ArgumentError
			if _, err := tx.Produce(msg); !errors.As(err, &refused) || refused.Argument != "message "+field {
				t.Errorf("%s: %v", field, err)
			}
		}
		for n := range 9 {
			_, err := tx.Produce(engine.Message{Topic: "t", Value: make([]byte, limits.MessageBytes-1)})
			if full := n >= 8; full != errors.Is(err, engine.ErrLimit) {
				t.Errorf("message %d of nearly 4 MiB: %v", n, err)
			}
		}
	})
	if n := len(outboxOf(t, m, entry.ReadyPrefix)); n != 8 {
		t.Errorf("%d messages", n)
	}
}

// A full outbox refuses messages and nothing else, also after a restart, until the relay has removed
// some: it deletes their keys and counts them.
func TestFullOutboxRefusesMessages(t *testing.T) {
	const limit = 10_000
	e, m := openMem(t, engine.Options{MaxOutboxBytes: limit})
	produce := func() error {
		return e.Update(ctx, func(tx *engine.Tx) error {
			_, err := tx.Produce(engine.Message{Topic: "out", Value: make([]byte, 1000)})
			return err
		})
	}
	fill := func() (n int) {
		for ; ; n++ {
			if err := produce(); err != nil {
				if !errors.Is(err, engine.ErrOutboxFull) {
					t.Fatal(err)
				}
				return n
			}
		}
	}
	if n := fill(); n < 5 || n > 9 {
		t.Errorf("%d messages of 1,000 bytes have room in %d", n, limit)
	}
	size := func() uint64 {
		s, err := e.Stats()
		if err != nil || s.MaxOutboxBytes != limit {
			t.Fatal(s.MaxOutboxBytes, err)
		}
		return s.OutboxBytes
	}
	full := size()
	if full > limit || full < limit-2000 {
		t.Errorf("the full outbox has %d bytes", full)
	}
	update(t, e, func(tx *engine.Tx) {
		wantTx(t, tx, event("a"), engine.Claimed)
		mustPut(t, tx, "k", "v")
	})
	settle(t, e, m)
	e = open(t, m.CrashClone(m.Unsynced()), engine.Options{MaxOutboxBytes: limit})
	if err := produce(); !errors.Is(err, engine.ErrOutboxFull) || size() != full {
		t.Errorf("after a restart: %d bytes, %v", size(), err)
	}
	one := outboxOf(t, m, entry.ReadyPrefix)[0]
	update(t, e, func(tx *engine.Tx) {
		space := driver.TxIn(tx, entry.Space)
		if err := errors.Join(space.Delete(entry.ReadyKey(1)), space.Put(entry.GoneKey, entry.Gone{Entries: 1, Bytes: one.Bytes()}.Append(nil))); err != nil {
			t.Fatal(err)
		}
	})
	if n := fill(); n != 1 || size() != full {
		t.Errorf("%d messages have room instead of one that was removed, %d bytes", n, size())
	}
}

func TestProducedIsReportedWhenDurable(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	reported := make(chan struct{}, 10)
	stop := driver.OnProduced(e, func() { reported <- struct{}{} })
	m.HoldSyncs()
	done := make(chan error)
	go func() {
		done <- e.Update(ctx, func(tx *engine.Tx) error { mustProduce(t, tx, "m"); return nil })
	}()
	awaitHeld(t, m)
	if len(reported) != 0 {
		t.Error("reported before it is durable")
	}
	m.ReleaseSyncs()
	if err := receive(t, done); err != nil {
		t.Fatal(err)
	}
	receive(t, reported)
	update(t, e, func(tx *engine.Tx) { mustPut(t, tx, "k", "v") })
	stop()
	update(t, e, func(tx *engine.Tx) { mustProduce(t, tx, "n") })
	if len(reported) != 0 {
		t.Error("reported without a message, or after stop")
	}
}

func TestAnyNumberOfProducersDoNotConflict(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	const producers, each = 8, 50
	done := make(chan error, producers)
	for range producers {
		go func() {
			for range each {
				if err := e.Update(ctx, func(tx *engine.Tx) error {
					_, err := tx.Produce(engine.Message{Topic: "out"})
					return err
				}); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range producers {
		if err := receive(t, done); err != nil {
			t.Error(err)
		}
	}
	if n := len(outboxOf(t, m, entry.ReadyPrefix)); n != producers*each {
		t.Errorf("%d messages", n)
	}
}
