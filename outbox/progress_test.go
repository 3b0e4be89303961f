package outbox

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/zeebo/xxh3"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/entry"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// A store that was restored from a backup assigns a key again to another message.
func TestListedEntryIsRemovedOnlyIfItIsTheSameMessage(t *testing.T) {
	r := newRig(t)
	r.produce("published", "another one with the same key")
	s := &connection{shared: r.relay(Options{}).shared, progress: &progress{}}
	if _, err := s.shared.lease.take(ctx, r.eng); err != nil {
		t.Fatal(err)
	}
	if _, err := s.remove(ctx, []listed{
		{entry.ReadyKey(1), xxh3.HashString("published")},
		{entry.ReadyKey(2), xxh3.HashString("of the time after the backup")},
		{entry.ReadyKey(3), xxh3.HashString("removed before")},
	}); err != nil {
		t.Fatal(err)
	}
	left := entries(t, r.eng, entry.ReadyPrefix)
	if len(left) != 1 || left[0].ID != "another one with the same key" {
		t.Errorf("%+v", left)
	}
	if f, err := s.shared.figures(ctx); f.pending != 1 || err != nil {
		t.Errorf("%+v %v", f, err)
	}
}

func TestListedEntriesCountAsSentOnceTheyAreRemoved(t *testing.T) {
	r := newRig(t)
	r.produce("published")
	s := &connection{shared: r.relay(Options{}).shared, progress: &progress{}}
	list := []listed{{entry.ReadyKey(1), xxh3.HashString("published")}}
	if _, err := s.shared.lease.take(ctx, r.eng); err != nil {
		t.Fatal(err)
	}
	other := r.steal(r.clock.Now())
	if _, err := s.remove(ctx, list); !errors.Is(err, errLeaseLost) {
		t.Fatal(err)
	}
	if n := testutil.ToFloat64(s.shared.metrics.sent); n != 0 {
		t.Errorf("%v messages were sent before one was removed", n)
	}
	r.clock.advance(other.ttl)
	if left, err := s.shared.lease.take(ctx, r.eng); left != 0 || err != nil {
		t.Fatal(left, err)
	}
	if _, err := s.remove(ctx, list); err != nil {
		t.Fatal(err)
	}
	if n := testutil.ToFloat64(s.shared.metrics.sent); n != 1 {
		t.Errorf("%v messages were sent, want 1", n)
	}
}

// After a backup was restored, the application has produced the same message again, and it was
// published again. Then the same backup was restored once more.
func TestEntryThatIsListedTwiceCountsOnce(t *testing.T) {
	r := newRig(t)
	r.produce("published", "another one")
	s := &connection{shared: r.relay(Options{}).shared, progress: &progress{}}
	if _, err := s.shared.lease.take(ctx, r.eng); err != nil {
		t.Fatal(err)
	}
	l := listed{entry.ReadyKey(1), xxh3.HashString("published")}
	if removed, err := s.remove(ctx, []listed{l, l}); removed != 1 || err != nil {
		t.Errorf("%d were removed, %v", removed, err)
	}
	if f, err := s.shared.figures(ctx); f.pending != 1 || err != nil {
		t.Errorf("%+v %v", f, err)
	}
}

// progress returns what a relay of the store writes to its progress topic.
func (r *rig) progress(o Options) *progress {
	r.t.Helper()
	p := &progress{topic: o.ExactlyOnce.ProgressTopic, store: uuid.UUID(r.eng.Identity().UUID).String(), secret: bytes.Repeat([]byte{7}, 32)}
	if err := r.eng.Update(ctx, func(tx *engine.Tx) error {
		secret, found, err := driver.TxIn(tx, entry.Space).Get(entry.SecretKey)
		if found {
			p.secret = secret
		}
		if found || err != nil {
			return err
		}
		return driver.TxIn(tx, entry.Space).Put(entry.SecretKey, p.secret)
	}, engine.Retries(5)); err != nil {
		r.t.Fatal(err)
	}
	return p
}

// publish ends a transaction of the relay of a store with a record of progress, which it returns.
func (r *rig) publishProgress(b *kafkatest.Broker, p *progress, how kgo.TransactionEndTry, items ...*item) *kgo.Record {
	r.t.Helper()
	client := b.Client(r.t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID(transactionalID(r.eng.Identity())))
	id, epoch, err := client.ProducerID(ctx)
	if err == nil {
		err = client.BeginTransaction()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	p.by = producerID{id, epoch}
	rec := p.record(items).record()
	if err := client.ProduceSync(ctx, rec).FirstErr(); err != nil {
		r.t.Fatal(err)
	}
	if err := client.EndTransaction(ctx, how); err != nil {
		r.t.Fatal(err)
	}
	return &kgo.Record{Topic: rec.Topic, Key: rec.Key, Value: rec.Value, Headers: rec.Headers}
}

// recovers fails the test unless the recovery of a relay removes that many messages, and ignores that
// many records.
func (r *rig) recovers(o Options, removed, ignored int) {
	r.t.Helper()
	relay, err := New(r.eng, o)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := relay.shared.lease.take(ctx, r.eng); err != nil {
		r.t.Fatal(err)
	}
	c := &connection{shared: relay.shared}
	defer c.abandon()
	if n, err := c.recover(ctx); n != removed || err != nil || c.progress.foreign != ignored {
		r.t.Errorf("%d were removed, %v; %d records were ignored", n, err, c.progress.foreign)
	}
}

// listing is an item as a record of progress lists it.
func listing(n int) *item {
	return &item{Entry: entry.Entry{ID: fmt.Sprint("m", n)}, key: entry.ReadyKey(uint64(n + 1))}
}

// Who may read and write the progress topic can write there again what an aborted transaction has
// listed, also in a transaction of his own: the messages remain.
func TestCopiedProgressOfAnAbortedTransactionIsIgnored(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	o := modes(t, b)["exactly once"]
	r := newRig(t)
	r.backlog(3)
	own := r.progress(o)
	aborted := r.publishProgress(b, own, kgo.TryAbort, listing(0), listing(1))
	r.publishProgress(b, own, kgo.TryCommit, listing(2))
	again := *aborted
	if err := b.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner())).ProduceSync(ctx, &again).FirstErr(); err != nil {
		t.Fatal(err)
	}
	other := b.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID(kafkatest.Name(t)))
	if err := other.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(other.ProduceSync(ctx, aborted).FirstErr(), other.EndTransaction(ctx, kgo.TryCommit)); err != nil {
		t.Fatal(err)
	}
	r.recovers(o, 1, 2)
	if n := pending(t, r.eng); n != 2 {
		t.Errorf("%d messages remain, want those that were not published", n)
	}
}

// Others may write to the progress topic. Their records neither fail a recovery, nor remove messages
// that were not published.
func TestProgressOfOthersIsIgnored(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	o := modes(t, b)["exactly once"]
	r := newRig(t)
	r.backlog(5)
	own := r.progress(o)
	lists := func(p *progress, n int) *kgo.Record {
		return p.record([]*item{listing(n)}).record()
	}
	other, elsewhere, unsealed, malformed := *own, *own, lists(own, 3), lists(own, 3)
	other.secret, elsewhere.topic = bytes.Repeat([]byte{8}, 32), "elsewhere"
	copied := lists(&elsewhere, 2)
	copied.Topic = own.topic
	unsealed.Value = unsealed.Value[:len(unsealed.Value)-32]
	malformed.Value = []byte{1}
	client := b.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(2*maxProgressBatch),
		kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	large := &kgo.Record{Topic: own.topic, Key: []byte("k"), Value: make([]byte, maxProgressBatch+1)} // a few kilobytes in the log
	if err := client.ProduceSync(ctx, large).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := client.ProduceSync(ctx, malformed, lists(&other, 1), copied, unsealed).FirstErr(); err != nil {
		t.Fatal(err)
	}
	r.publishProgress(b, own, kgo.TryCommit, listing(4))
	r.recovers(o, 1, 4)
	for _, e := range entries(t, r.eng, entry.ReadyPrefix) {
		if e.ID == "m4" {
			t.Error("m4 was published and remains")
		}
	}
}

func TestSecretOfAStoreIsKept(t *testing.T) {
	r := newRig(t)
	var secrets [][]byte
	for range 2 {
		relay := r.relay(Options{ExactlyOnce: exactlyOnce})
		if _, err := relay.shared.lease.take(ctx, r.eng); err != nil {
			t.Fatal(err)
		}
		secret, err := (&connection{shared: relay.shared}).secret(ctx)
		if err != nil || len(secret) != 32 || bytes.Equal(secret, make([]byte, 32)) {
			t.Fatal(secret, err)
		}
		secrets = append(secrets, secret)
		if err := relay.shared.lease.release(r.eng); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(secrets[0], secrets[1]) {
		t.Error("the second relay has another secret")
	}
}

func FuzzProgress(f *testing.F) {
	p := &progress{topic: "progress", store: "store"}
	genuine := p.record([]*item{{Entry: entry.Entry{ID: "a"}, key: []byte("r1")}, {Entry: entry.Entry{ID: "b"}, key: []byte("d22")}}).Entry.Value
	f.Add(genuine)
	f.Add(genuine[:len(genuine)-32])
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, ok := p.genuine(b, p.by); ok != bytes.Equal(b, genuine) {
			t.Errorf("%x is genuine: %v", b, ok)
		}
		entries, err := parseProgress(b)
		if err != nil {
			if !errors.Is(err, ErrProgressTopic) {
				t.Error(err)
			}
			return
		}
		if len(entries) > len(b) {
			t.Errorf("%d entries in %d bytes", len(entries), len(b))
		}
	})
}

// The store has the entries that were published since the backup from which it was restored: more
// than one transaction may remove.
func TestAnyNumberOfListedEntriesIsRemoved(t *testing.T) {
	r := newRig(t)
	const n = 2*removeMost + 1
	list := r.backlog(n)
	s := r.session(r.relay(Options{ExactlyOnce: exactlyOnce}))
	before := r.mem.Calls(storetest.OpApply)
	if removed, err := s.connection.remove(ctx, list); removed != n || err != nil {
		t.Fatal(removed, err)
	}
	if batches := r.mem.Calls(storetest.OpApply) - before; batches != 3 {
		t.Errorf("%d entries were removed in %d transactions of at most %d", n, batches, removeMost)
	}
	if f, err := s.connection.shared.figures(ctx); f.pending != 0 || err != nil {
		t.Errorf("%+v %v", f, err)
	}
}

// backlog produces messages and returns how records of progress list them.
func (r *rig) backlog(n int) (list []listed) {
	r.t.Helper()
	messages := ids("m", n)
	for part := range slices.Chunk(messages, 1000) {
		r.produce(part...)
	}
	for i, id := range messages {
		list = append(list, listed{entry.ReadyKey(uint64(i + 1)), xxh3.HashString(id)})
	}
	return list
}

// A process that dies while it removes what was published does not begin again: it has recorded how
// far it has read.
func TestRecoveryContinuesWhereTheLastOneEnded(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	o := modes(t, b)["exactly once"]
	o.Client = append(o.Client, kgo.FetchMaxPartitionBytes(1)) // one record at a time
	r := newRig(t)
	const records, each = 10, 3
	r.backlog(records * each)
	p := r.progress(o)
	for n := range records {
		var items []*item
		for i := n * each; i < (n+1)*each; i++ {
			items = append(items, listing(i))
		}
		r.publishProgress(b, p, kgo.TryCommit, items...)
	}
	attempt := func() (removed int, err error) {
		relay, err := New(r.eng, o)
		if err != nil {
			t.Fatal(err)
		}
		if left, err := relay.shared.lease.take(ctx, r.eng); left > 0 || err != nil {
			t.Fatal(left, err)
		}
		c := &connection{shared: relay.shared}
		defer c.abandon()
		if removed, err = c.recover(ctx); err == nil {
			err = relay.shared.lease.release(r.eng)
		}
		return removed, err
	}
	r.mem.FailAt(storetest.OpApply, 5, errBad) // the first one takes the lease
	if _, err := attempt(); err == nil {
		t.Fatal("the store did not fail")
	}
	r.eng = openEngine(t, r.mem.CrashClone(0), r.clock)
	if err := r.eng.Update(ctx, func(tx *engine.Tx) error { return driver.TxIn(tx, entry.Space).Delete(entry.LeaseKey) }); err != nil {
		t.Fatal(err)
	}
	remain := pending(t, r.eng)
	if remain == 0 || remain == records*each {
		t.Errorf("%d of %d messages remain", remain, records*each)
	}
	if _, found, err := driver.In(r.eng, entry.Space).Get(ctx, entry.ProgressKey); !found || err != nil {
		t.Errorf("the store does not have how far was read: %v", err)
	}
	if removed, err := attempt(); removed != remain || err != nil {
		t.Errorf("%d of %d messages were removed, %v", removed, remain, err)
	}
	if n := pending(t, r.eng); n != 0 {
		t.Errorf("%d messages remain", n)
	}
}
