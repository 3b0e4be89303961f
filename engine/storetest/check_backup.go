package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
)

// backup makes a backup in a directory that does not exist and returns its name.
func (e *subject) backup(name string) string {
	e.Helper()
	dir := e.dir + "-" + name
	if err := e.s.Backup(context.Background(), dir); err != nil {
		e.Fatalf("Backup: %v", err)
	}
	return dir
}

func (e *env) expectCopy(s storage.Store, want *contents) {
	e.Helper()
	if diff := e.compare(s, want); diff != "" {
		e.Errorf("the backup: %s", diff)
	}
	if got := s.LastSeq(); got != want.lastSeq {
		e.Errorf("LastSeq of the backup is %d, want %d", got, want.lastSeq)
	}
}

func (e *subject) expectSuccessor(got, of storage.Identity) {
	e.Helper()
	if got.UUID != of.UUID || got.Seed != of.Seed || got.Incarnation <= of.Incarnation {
		e.Errorf("the identity is %v, of which a backup has %v; want the same UUID and seed and a higher incarnation", of, got)
	}
}

func backupOpens(e *env) {
	e.neighbours()
	e.journalEntries(5)
	e.drop(bucket("a", week))
	e.trim(4)
	e.apply(storage.Batch{State: []storage.StateWrite{set("not waited for", "x")}})
	id := e.s.Identity()
	dir := e.backup("backup")
	if got := e.s.Identity(); got != id {
		e.Errorf("Backup has changed the identity from %v to %v", id, got)
	}
	var second string
	e.onOther(e.backup("sister"), func(sister storage.Store) {
		e.onOther(dir, func(s storage.Store) {
			if sister.Identity().Incarnation == s.Identity().Incarnation {
				e.Errorf("two backups have the incarnation %d", s.Identity().Incarnation)
			}
		})
	})
	e.onOther(dir, func(s storage.Store) {
		e.expectSuccessor(s.Identity(), id)
		e.expectCopy(s, e.told.view)
		second = dir + "-again"
		if err := s.Backup(context.Background(), second); err != nil {
			e.Fatalf("Backup of a backup: %v", err)
		}
		e.onOther(second, func(s2 storage.Store) {
			e.expectSuccessor(s2.Identity(), s.Identity())
			e.expectCopy(s2, e.told.view)
		})
	})
	e.onOther(dir, func(s storage.Store) { e.expectCopy(s, e.told.view) })
	if e.h.CrashClone != nil {
		e.onOther(dir, func(s storage.Store) {
			e.onOther(e.h.CrashClone(e.test, s, dir, 0), func(s storage.Store) {
				e.expectSuccessor(s.Identity(), id)
				e.expectCopy(s, e.told.view)
			})
		})
	}
	e.reopen()
	if got := e.s.Identity(); got != id {
		e.Errorf("after a backup and a reopen the identity is %v, was %v", got, id)
	}
	e.check("after the backup")
}

// backupIsApart checks that a store and its backup do not see each other's batches, even if they
// share files.
func backupIsApart(e *env) {
	e.neighbours()
	e.writeSidecar("filter", []byte("original"))
	dir := e.backup("backup")
	copied := e.told.view.clone()
	e.claims(numbered(bucket("a", week), 100, 150)...)
	e.drop(bucket("b", week))
	e.writeSidecar("filter", []byte("later"))
	e.settle()
	e.onOther(dir, func(s storage.Store) {
		e.expectCopy(s, copied)
		wait, err := s.Apply(&storage.Batch{Seq: s.LastSeq() + 1, Claims: numbered(bucket("b", week), 200, 250)})
		if err == nil {
			err = wait()
		}
		if err == nil {
			err = s.Drop([]storage.Bucket{bucket("a", week+1)})
		}
		if err == nil {
			err = s.WriteSidecar("filter", writerOf([]byte("backup")))
		}
		if err != nil {
			e.Fatalf("writing to the backup: %v", err)
		}
		e.check("while the backup is written to")
	})
	e.expectSidecar("after the backup was written to", "filter", []byte("later"))
	e.settle()
	e.check("after the backup was written to")
	e.reopen()
	e.check("opened again")
}

// backupDuringApply makes backups during batches. Each batch writes its number to several keys, so
// that a torn copy is detected.
func backupDuringApply(e *env) {
	b := bucket("a", week)
	e.claims(noisy(bucket("ballast", week), 1, 1000)...)
	var applied atomic.Uint64
	applied.Store(1)
	begin, end := make(chan struct{}), make(chan struct{})
	backups := make(chan error, 1)
	type copied struct {
		dir      string
		from, to uint64
	}
	var copies []copied
	s := e.s
	go func() {
		<-begin
		defer close(end)
		for i := range 3 {
			c := copied{dir: fmt.Sprint(e.dir, "-backup-", i), from: applied.Load()}
			if err := s.Backup(context.Background(), c.dir); err != nil {
				backups <- err
				return
			}
			c.to = applied.Load() + 1 // the next batch may be applied but not counted yet
			copies = append(copies, c)
		}
		backups <- nil
	}()
	moments := map[uint64]*contents{}
	running := true
	for i := 0; running && i < 3000; i++ {
		e.put(storage.Batch{
			Claims:  append(numbered(b, 4*i, 4*i+4), unclaim(b, fmt.Sprintf("id-%06d", 4*i-3)), claim(b, "newest", fmt.Sprint(i))),
			State:   []storage.StateWrite{set("newest", fmt.Sprint(i))},
			Journal: fmt.Append(nil, i),
		})
		moments[e.told.view.lastSeq] = e.told.view.clone()
		applied.Store(e.told.view.lastSeq)
		switch i {
		case 10:
			close(begin)
		default:
			select {
			case <-end:
				running = false
			case <-time.After(100 * time.Microsecond):
			}
		}
	}
	e.within(e.h.patience, "Backup beside Apply", func() error { return <-backups })
	for _, c := range copies {
		e.onOther(c.dir, func(s storage.Store) {
			n := s.LastSeq()
			if n < c.from || n > c.to {
				e.Errorf("a backup that began after batch %d and ended before batch %d holds batch %d", c.from, c.to+1, n)
			} else {
				e.expectCopy(s, moments[n])
			}
		})
	}
	e.check("after the backups")
}

func backupRefusesExisting(e *env) {
	e.neighbours()
	dir := e.backup("backup")
	copied := e.told.view.clone()
	e.claims(claim(bucket("a", week), "later", "x"))
	if err := e.s.Backup(context.Background(), dir); err == nil {
		e.Errorf("Backup into a directory that exists has succeeded")
	}
	e.onOther(dir, func(s storage.Store) { e.expectCopy(s, copied) })
	e.claims(claim(bucket("a", week), "later still", "x"))
	e.inEveryForm(func() {})
}

func backupStopsWithContext(e *env) {
	e.neighbours()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	dir := e.dir + "-cancelled"
	s := e.s
	e.within(e.h.patience, "Backup with a cancelled context", func() error {
		if err := s.Backup(ctx, dir); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("it returned %w", err)
		}
		return nil
	})
	e.claims(claim(bucket("a", week), "later", "x"))
	e.inEveryForm(func() {})
}

func verifyHealthy(e *env) {
	verify := func() {
		e.Helper()
		if err := e.s.Verify(context.Background(), func(problem string) { e.Errorf("Verify reports %q", problem) }); err != nil {
			e.Errorf("Verify: %v", err)
		}
	}
	verify()
	e.neighbours()
	e.apply(storage.Batch{Claims: numbered(bucket("a", week), 0, 10)})
	e.inEveryForm(verify)
	e.drop(bucket("a", week), bucket("b", week))
	e.claims(unclaim(bucket("ab", week), "id-000001"))
	e.trim(2)
	e.writeSidecar("filter", []byte("x"))
	e.inEveryForm(verify)
	if e.h.CrashClone != nil {
		e.apply(storage.Batch{Claims: numbered(bucket("ab", week), 0, 10)})
		e.crash(50)
		verify()
	}
}
