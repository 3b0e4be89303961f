package filters

import (
	"context"
	"errors"
	"io"
	"maps"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A bed is a store with the filters of its claims: what the engine makes of them, without one.
type bed struct {
	*testing.T
	store     *storetest.Mem
	set       *Set
	snapshots *Snapshots
	seq       uint64
}

func newBed(t *testing.T, store *storetest.Mem, every uint64) *bed {
	b := &bed{T: t, store: store, set: New(1<<20, 1000), seq: store.LastSeq()}
	b.snapshots = NewSnapshots(b.set, SnapshotOptions{
		Store: store, Every: every, TrimAtClose: 1,
		Durable: func(uint64) bool { return true }, // each batch was waited for
		Go:      func(fn func(context.Context)) { fn(context.Background()) },
	})
	return b
}

func (b *bed) load() *bed {
	b.Helper()
	if err := b.snapshots.Load(b.seq); err != nil {
		b.Fatal(err)
	}
	return b
}

// batch puts claims of a bucket in a batch of the store.
func (b *bed) batch(bucket Bucket, hashes ...uint64) {
	b.Helper()
	var e Entry
	for _, h := range hashes {
		b.set.AddNew(bucket.Week, h)
		b.set.Put(&e, bucket, h)
	}
	b.seq++
	wait, err := b.store.Apply(&storage.Batch{Seq: b.seq, Journal: e.AppendTo(nil)})
	if err == nil {
		err = wait()
	}
	if err != nil {
		b.Fatal(err)
	}
	b.snapshots.Decided(b.seq, len(hashes))
}

// reopened returns the filters that are loaded after a crash.
func (b *bed) reopened(source string) *bed {
	b.Helper()
	again := newBed(b.T, b.store.CrashClone(0), 1<<20).load()
	if s := again.snapshots.Status(); s.Source != source {
		b.Errorf("from %s, want %s", s.Source, source)
	}
	return again
}

// wantAll checks that other filters have the same counts and deny none of the hashes.
func (b *bed) wantAll(other *bed, week weekbucket.Week, hashes []uint64) {
	b.Helper()
	if got, want := other.set.Counts(), b.set.Counts(); !maps.Equal(got, want) {
		b.Errorf("counts %v, want %v", got, want)
	}
	for _, h := range hashes {
		if other.set.CertainlyNew(week, h) {
			b.Fatalf("the claim %#x is denied", h)
		}
	}
	if n := possible(other.set, week, 1, 100); other.set.Trusted() && n > 5 {
		b.Errorf("%d of 100 new claims are possible", n)
	}
}

func TestFiltersAreLoadedFromTheJournalAndFromASnapshot(t *testing.T) {
	b := newBed(t, storetest.NewMem(storage.Identity{}), 300).load()
	bucket, all := Bucket{3, noon}, hashes(1, 1000)
	for i := range 10 {
		b.batch(bucket, all[100*i:100*i+100]...)
		source := fromJournal
		if i >= 2 {
			source = fromSnapshot
		}
		b.wantAll(b.reopened(source), noon, all[:100*i+100])
	}
	s := b.snapshots.Status()
	if s.OnDisk[0] == 0 || s.OnDisk[1] == 0 || s.Running || s.Failed != 0 {
		t.Errorf("%+v", s)
	}
	if first, err := b.snapshots.firstJournaled(); err != nil || first != min(s.OnDisk[0], s.OnDisk[1])+1 {
		t.Errorf("the journal begins with batch %d, %v; the snapshots are of %v", first, err, s.OnDisk)
	}
	b.snapshots.SaveLast(b.seq)
	b.wantAll(b.reopened(fromSnapshot), noon, all)
}

// Without snapshots, and with a journal that was trimmed, filters are rebuilt.
func TestFiltersWithoutASnapshotAreRebuilt(t *testing.T) {
	b := newBed(t, storetest.NewMem(storage.Identity{}), 100).load()
	bucket, all := Bucket{3, noon}, hashes(1, 400)
	for i := range 4 {
		b.batch(bucket, all[100*i:100*i+100]...)
	}
	for _, name := range snapshotNames {
		if err := b.store.WriteSidecar(name, func(io.Writer) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	again := b.reopened(fromScan)
	if again.set.Trusted() || again.set.CertainlyNew(noon, 1) {
		t.Error("trusted before the rebuild")
	}
	r := again.snapshots.Rebuild()
	r.Begin()
	for _, h := range all[:399] {
		r.Add(bucket, h)
	}
	again.set.AddNew(noon, all[399]) // claimed meanwhile
	again.set.Put(new(Entry), bucket, all[399])
	r.Damaged(&storage.DamageError{})
	if again.set.Damage() == nil || again.set.Trusted() || !again.snapshots.ForgetDamage() || again.snapshots.ForgetDamage() {
		t.Error("damage that the scan met is not noted, or not forgotten")
	}
	r.Finish(noon, func(Bucket) weekbucket.Week { return noon })
	if !again.set.Trusted() || again.set.Size().Rebuilt != 399 {
		t.Errorf("%+v, trusted: %v", again.set.Size(), again.set.Trusted())
	}
	b.wantAll(again, noon, all)
}

// A snapshot that cannot be written is counted and repeated; the journal remains.
func TestSnapshotThatCannotBeWrittenIsRepeated(t *testing.T) {
	b := newBed(t, storetest.NewMem(storage.Identity{}), 100).load()
	full := errors.New("full")
	b.snapshots.opt.Store = failing{b.store, full}
	b.snapshots.opt.Retry = 1
	all := hashes(1, 101)
	b.batch(Bucket{3, noon}, all[:100]...)
	if s := b.snapshots.Status(); s.Failed != 1 || !errors.Is(s.LastErr, full) || s.OnDisk != [2]uint64{} {
		t.Fatalf("%+v", s)
	}
	b.wantAll(b.reopened(fromJournal), noon, all[:100])
	b.snapshots.opt.Store = b.store
	b.batch(Bucket{3, noon}, all[100])
	if s := b.snapshots.Status(); s.Failed != 1 || s.LastErr != nil || s.OnDisk[0] != b.seq {
		t.Fatalf("%+v", s)
	}
	b.wantAll(b.reopened(fromSnapshot), noon, all)
}

type failing struct {
	Store
	err error
}

func (f failing) WriteSidecar(string, func(io.Writer) error) error { return f.err }

// A journal with a gap, or one that ends before the store does, has lost batches.
func TestJournalWithoutABatchIsDamage(t *testing.T) {
	b := newBed(t, storetest.NewMem(storage.Identity{}), 1<<20).load()
	for _, h := range hashes(1, 5) {
		b.batch(Bucket{3, noon}, h)
	}
	for _, lost := range []uint64{2, 5} {
		s := newBed(t, b.store.CrashClone(0), 1<<20)
		s.snapshots.opt.Store = gapped{s.store, lost}
		if err := s.snapshots.Load(5); !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("without batch %d: %v", lost, err)
		}
	}
	b.reopened(fromJournal) // with all of them
}

type gapped struct {
	Store
	lost uint64
}

func (g gapped) Journal(from uint64, fn func(uint64, []byte) error) error {
	return g.Store.Journal(from, func(seq uint64, entry []byte) error {
		if seq == g.lost {
			return nil
		}
		return fn(seq, entry)
	})
}
