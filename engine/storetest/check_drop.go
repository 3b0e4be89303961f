package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// neighbours fills buckets around ("a", week) in settled and in fresh form, some with claims of
// both.
func (e *env) neighbours() (all []storage.Bucket) {
	e.Helper()
	for _, scope := range []string{"\x00", "a", "ab", "a\x00", "a\xff", "b", "A"} {
		for w := week - 1; w <= week+1; w++ {
			all = append(all, bucket(scope, w))
		}
	}
	all = append(all, bucket("a", weekbucket.Min), bucket("a", weekbucket.Max))
	var settled, fresh storage.Batch
	for i, b := range all {
		if i%3 != 0 {
			settled.Claims = append(settled.Claims, numbered(b, 0, 10)...)
		}
		if i%3 != 1 {
			fresh.Claims = append(fresh.Claims, numbered(b, 5, 15)...)
			fresh.Claims = append(fresh.Claims, claim(b, "\x00", "low"), claim(b, "\xff\xff\xff", "high"))
		}
	}
	settled.State = []storage.StateWrite{set("state", "x"), set(string(all[4].AppendPrefix(nil)), "looks like a bucket")}
	settled.Journal, fresh.Journal = []byte("settled"), []byte("fresh")
	e.put(settled)
	e.settle()
	e.put(fresh)
	return all
}

func dropRemovesExactly(e *env) {
	all := e.neighbours()
	for i, form := range []string{"in both forms", "settled", "fresh", "settled", "settled", "fresh"} {
		b := all[[]int{4, 7, 3, 11, 22, 0}[i]]
		e.drop(b)
		e.check(fmt.Sprintf("dropped %v, %s", b, form))
		if v, found, err := e.s.Claim(key(b, "id-000005")); found || err != nil {
			e.Errorf("a claim of the dropped %v still exists: %q, %v", b, v, err)
		}
		if i%2 == 1 {
			e.reopen()
			e.check("opened again")
		}
	}
	e.drop(all[1], all[14], bucket("nobody", week), all[16])
	e.inEveryForm(func() {})
	e.drop()
	e.inEveryForm(func() {})
}

func dropOfScopesThatBeginAlike(e *env) {
	var all []storage.Bucket
	for _, scope := range trickyScopes {
		all = append(all, bucket(scope, week), bucket(scope, week+1))
	}
	for i, b := range all {
		if i == len(all)/2 {
			e.settle()
		}
		e.claims(numbered(b, 0, 5)...)
	}
	for _, b := range all {
		e.drop(b)
		e.check(fmt.Sprintf("dropped %v", b))
	}
	e.reopen()
	e.check("everything dropped")
}

func dropIsDurable(e *env) {
	e.needCrash()
	all := e.neighbours()
	for i, unsynced := range []int{0, 100, 50} {
		e.drop(all[3*i+4], all[3*i+5])
		e.crash(unsynced)
		e.check(fmt.Sprintf("after a drop and a crash that keeps %d %% of the unsynced data", unsynced))
	}
}

func dropIsNotUndone(e *env) {
	e.needCrash()
	for i, unsynced := range []int{0, 50, 100} {
		b, other := bucket("a", week+weekbucket.Week(i)), bucket("b", week)
		e.claims(numbered(b, 0, 10)...)
		for j := range 6 {
			e.apply(storage.Batch{
				Claims:  append(numbered(b, 10*j, 10*j+20), numbered(other, 100*i+10*j, 100*i+10*j+10)...),
				Journal: []byte("x"),
			})
		}
		e.drop(b)
		e.check("dropped before the sync")
		e.crash(unsynced)
		e.check(fmt.Sprintf("after a crash that keeps %d %% of the unsynced data", unsynced))
	}
}

func dropTwice(e *env) {
	all := e.neighbours()
	e.drop(all[4])
	e.drop(all[4])
	e.check("dropped twice")
	e.drop(all[4], all[4])
	e.settle()
	e.drop(all[7], all[4], all[7])
	e.check("dropped again")
	e.reopen()
	e.drop(all[4])
	e.check("dropped after a reopen")
	if e.h.CrashClone != nil {
		e.crash(50)
		e.drop(all[4])
		e.check("dropped after a crash")
	}
}

// crashWithinADrop makes clones while buckets are dropped; in each, Drop is called again.
func crashWithinADrop(e *env) {
	e.needAtomicClone()
	all := e.neighbours()
	var old []storage.Bucket
	for i := range 7 {
		old = append(old, all[3*i+1])
	}
	begun, ended := make(chan struct{}), make(chan error, 1)
	s := e.s
	go func() {
		close(begun)
		ended <- errors.Join(s.Drop(old[:4]), s.Drop(old[4:]))
	}()
	<-begun
	var clones []string
	for len(clones) < 12 && len(ended) == 0 {
		clones = append(clones, e.h.CrashClone(e.test, s, e.dir, 50*(len(clones)%3)))
		time.Sleep(200 * time.Microsecond)
	}
	e.within(e.h.patience, "Drop", func() error { return <-ended })
	before := e.told.view.clone()
	e.told.drop(old)
	for _, dir := range clones {
		e.onOther(dir, func(s storage.Store) {
			got, err := readAll(s)
			if err != nil {
				e.Fatalf("%v", err)
			}
			for _, b := range old {
				for _, k := range sortedKeys(before.claims, string(b.AppendPrefix(nil))) {
					if v, found := got.claims[k]; found && string(v) != string(before.claims[k]) {
						e.Errorf("after a crash within a drop claim %q is %q", k, v)
					}
				}
			}
			if err := s.Drop(old); err != nil {
				e.Fatalf("Drop after a crash within one: %v", err)
			}
			if diff := e.compare(s, e.told.view); diff != "" {
				e.Errorf("dropped again after a crash within a drop: %s", diff)
			}
		})
	}
}

func applyDuringDrop(e *env) {
	n := 1000
	if testing.Short() {
		n = 200
	}
	var old []storage.Bucket
	for i := range 6 {
		old = append(old, bucket(fmt.Sprint("scope ", i%3), week+weekbucket.Week(i/3)))
		e.claims(numbered(old[i], 0, n)...)
		if i == 3 {
			e.settle()
		}
	}
	dropped := make(chan error, 1)
	begun := make(chan struct{})
	s := e.s
	go func() {
		close(begun)
		for _, b := range old {
			if err := s.Drop([]storage.Bucket{b}); err != nil {
				dropped <- err
				return
			}
		}
		dropped <- nil
	}()
	<-begun
	over := false
	for i := 0; i < 60 || i < 2000 && !over; i++ { // as long as it drops, within reason
		e.put(storage.Batch{
			Claims:  numbered(bucket(fmt.Sprint("scope ", i%3), week+2), 10*i, 10*i+10),
			State:   []storage.StateWrite{set("last", fmt.Sprint(i))},
			Journal: []byte("x"),
		})
		over = len(dropped) > 0
	}
	e.within(e.h.patience, "Drop beside Apply", func() error { return <-dropped })
	e.told.drop(old)
	e.inEveryForm(func() {})
}

// everythingBesideMaintenance runs Drop, Reclaim, TrimJournal, Apply and all reads of the whole
// store concurrently.
func everythingBesideMaintenance(e *env) {
	const rounds = 4
	stays := bucket("a", week+100)
	e.claims(numbered(stays, 0, 50)...)
	for i := range rounds {
		e.claims(numbered(bucket("a", week+weekbucket.Week(i)), 0, 100)...)
		if i == rounds/2 {
			e.settle()
		}
	}
	s, dir := e.s, e.dir
	first := e.told.view.lastSeq
	beside := []func(i int) error{
		func(i int) error { return s.Drop([]storage.Bucket{bucket("a", week+weekbucket.Week(i))}) },
		func(i int) error {
			return s.Reclaim(context.Background(), []storage.Bucket{bucket("a", week+weekbucket.Week(max(0, i-1)))})
		},
		func(i int) error { return s.TrimJournal(uint64(i)) },
		func(i int) error {
			wait, err := s.Apply(&storage.Batch{Seq: first + uint64(i) + 1, Claims: numbered(stays, 50+10*i, 60+10*i)})
			if err != nil {
				return err
			}
			return wait()
		},
		func(int) error {
			var problem error
			err := s.Verify(context.Background(), func(p string) { problem = fmt.Errorf("reported %q", p) })
			return errors.Join(err, problem)
		},
		func(int) error {
			seen := 0
			err := s.Scan(context.Background(), storage.Span{}, func() {}, func(k, _ []byte) error {
				if bucketOf(k) == stays {
					seen++
				}
				return nil
			})
			if err == nil && seen < 50 {
				err = fmt.Errorf("a scan has seen %d of the remaining claims", seen)
			}
			return err
		},
		func(i int) error { return s.Backup(context.Background(), fmt.Sprint(dir, "-beside-", i)) },
		func(i int) error { return s.WriteSidecar("filter", writerOf(noise(uint64(i), 1000))) },
		func(int) error { _, err := s.Usage(); return err },
		func(int) error { return s.Buckets(func(storage.Bucket) error { return nil }) },
	}
	for i := range rounds {
		results := make(chan error, len(beside))
		for _, f := range beside {
			go func() { results <- f(i) }()
		}
		e.within(e.h.patience, "everything at the same time", func() (err error) {
			for range beside {
				err = errors.Join(err, <-results)
			}
			return err
		})
	}
	for i := range rounds {
		batch := &storage.Batch{Seq: first + uint64(i) + 1, Claims: numbered(stays, 50+10*i, 60+10*i)}
		e.told.apply(batch)
		e.told.confirm(batch.Seq)
		e.told.drop([]storage.Bucket{bucket("a", week+weekbucket.Week(i))})
	}
	e.trimmed, e.hidden = rounds-1, rounds-1
	e.expectSidecar("afterwards", "filter", noise(rounds-1, 1000))
	e.inEveryForm(func() {})
	for i := range rounds {
		e.onOther(fmt.Sprint(dir, "-beside-", i), func(s storage.Store) {
			n := int(s.LastSeq() - first)
			for j := range 50 + 10*n + 10 {
				_, found, err := s.Claim(key(stays, fmt.Sprintf("id-%06d", j)))
				if err != nil || found != (j < 50+10*n) {
					e.Fatalf("a backup that holds batch %d: claim %d is there: %v, %v", s.LastSeq(), j, found, err)
				}
			}
		})
	}
}

func reclaimReturns(e *env) {
	old := bucket("a", week)
	e.claims(noisy(old, 1, 2000)...)
	e.claims(noisy(bucket("a", week+1), 2, 2000)...)
	e.settle()
	e.drop(old)
	s := e.s
	e.within(2*e.h.patience, "Reclaim beside Apply", func() error {
		reclaimed := make(chan error, 1)
		go func() { reclaimed <- s.Reclaim(context.Background(), []storage.Bucket{old}) }()
		for i := range 20 {
			e.put(storage.Batch{Claims: numbered(bucket("b", week), 10*i, 10*i+10)})
		}
		return <-reclaimed
	})
	e.check("reclaimed")
	e.within(e.h.patience, "Reclaim of the same and of nothing", func() error {
		return errors.Join(
			s.Reclaim(context.Background(), []storage.Bucket{old, bucket("nobody", week)}),
			s.Reclaim(context.Background(), nil))
	})
	e.inEveryForm(func() {})
}

func reclaimStopsWithContext(e *env) {
	old := bucket("a", week)
	e.claims(noisy(old, 1, 2000)...)
	e.settle()
	e.drop(old)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s := e.s
	e.within(e.h.patience, "Reclaim with a cancelled context", func() error {
		if err := s.Reclaim(ctx, []storage.Bucket{old}); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	})
	e.claims(claim(bucket("a", week+1), "x", "1"))
	e.check("afterwards")
	e.within(e.h.patience, "Reclaim after a cancelled one", func() error {
		return s.Reclaim(context.Background(), []storage.Bucket{old})
	})
	e.check("afterwards")
}

// usageFollows writes bytes that do not compress, so that files cannot be smaller than them.
// DiskBytes may fall meanwhile, because the store removes unneeded files at any time.
func usageFollows(e *env) {
	const size = 500_000
	usage := func() storage.Usage {
		e.Helper()
		u, err := e.s.Usage()
		if err != nil {
			e.Fatalf("Usage: %v", err)
		}
		return u
	}
	atLeast := func(what string, got, want uint64) {
		e.Helper()
		if got < want*9/10 {
			e.Errorf("%s is %d after %d random bytes", what, got, want)
		}
	}
	before := usage()
	e.state(set("x", string(noise(1, size))))
	atLeast("WrittenBytes", usage().WrittenBytes-before.WrittenBytes, size)
	e.settle()
	e.state(set("y", string(noise(2, size))))
	atLeast("DiskBytes", usage().DiskBytes, 2*size)

	e.reopen()
	before = usage()
	if before.WrittenBytes > size {
		e.Errorf("WrittenBytes is %d when a store has just been opened", before.WrittenBytes)
	}
	e.writeSidecar("noise", noise(3, 2*size))
	u := usage()
	atLeast("DiskBytes with a sidecar", u.DiskBytes, 4*size)
	atLeast("WrittenBytes with a sidecar", u.WrittenBytes-before.WrittenBytes, 2*size)
	if u.ReclaimableBytes > u.DiskBytes {
		e.Errorf("ReclaimableBytes is %d of %d", u.ReclaimableBytes, u.DiskBytes)
	}
}

func bucketBytes(e *env) {
	full, other, absent := bucket("a", week), bucket("b", week), bucket("c", week)
	const n = 3000
	e.claims(noisy(full, 1, n)...)
	e.claims(noisy(other, 2, n)...)
	e.settle()
	size := func(b storage.Bucket) uint64 {
		e.Helper()
		n, err := e.s.BucketBytes(b)
		if err != nil {
			e.Fatalf("BucketBytes(%v): %v", b, err)
		}
		return n
	}
	const bytes = n * 100
	for _, b := range []storage.Bucket{full, other} {
		if got := size(b); got < bytes/2 || got > bytes*4 {
			e.Errorf("BucketBytes is %d for %d random bytes in %v", got, bytes, b)
		}
	}
	if got := size(absent); got > bytes/4 {
		e.Errorf("BucketBytes is %d for a bucket without a claim", got)
	}
	e.drop(full)
	if got := size(full); got > bytes/4 {
		e.Errorf("BucketBytes is %d for a dropped bucket", got)
	}
}
