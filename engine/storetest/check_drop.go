package storetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// neighbours fills the buckets next to ("a", week) with claims in settled and in fresh form, some
// buckets with both.
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
	for i := 0; i < 60 || i < 2000 && !over; i++ { // while the drop runs, within limits
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
