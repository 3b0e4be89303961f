package storetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
	"pgregory.net/rapid"
)

// randomRun compares the store with maps over random sequences of all calls. On a slow disk the
// time ends earlier and there are fewer calls, except while a failure is being reproduced.
func randomRun(e *env) {
	end := time.Now().Add(e.h.budget)
	failed := false
	runs := 0
	root := filepath.Dir(e.dir)
	over := func() bool { return !failed && time.Now().After(end) }
	rapid.Check(e.test, func(t *rapid.T) {
		if over() {
			return
		}
		runs++
		done := false
		dir := filepath.Join(root, fmt.Sprint("run-", runs))
		defer func() {
			failed = failed || !done
			_ = os.RemoveAll(dir)
		}()
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatalf("%v", err)
		}
		r := newRun(e, t, filepath.Join(dir, "store"))
		defer r.shut()
		actions := r.actions()
		for name, action := range actions {
			actions[name] = func(t *rapid.T) {
				if r.reporter = t; !over() {
					action(t)
				}
			}
		}
		t.Repeat(actions)
		r.reopen()
		r.compareAll(t)
		done = true
	})
	if runs < 5 {
		e.test.Logf("only %d random sequences in %v", runs, e.h.budget)
	}
}

// A run is one random sequence.
type run struct {
	*env
	sidecars map[string][]byte
	backups  int
}

func newRun(e *env, t *rapid.T, dir string) *run {
	r := &run{
		env:      &env{subject: subject{reporter: t, test: e.test, h: e.h, dir: dir}, given: newGiven()},
		sidecars: map[string][]byte{},
	}
	r.open()
	return r
}

var (
	randomScopes = rapid.SampledFrom([]string{"a", "ab", "a\x00", "a\xff"})
	randomWeeks  = rapid.Uint32Range(0, 4)
	randomIDs    = rapid.SampledFrom(append([]string{"1", "2", "3", "4", "5"}, trickyIDs...))
	randomKeys   = rapid.SampledFrom([]string{"a", "a\x00", "ab", "b", "\xff", "\xff\xff", "\x00", "offset/1", "offset/2"})
	randomShare  = rapid.SampledFrom([]int{0, 50, 100})
)

func (r *run) actions() map[string]func(*rapid.T) {
	actions := map[string]func(*rapid.T){
		"apply":   r.applyRandom,
		"wait":    func(t *rapid.T) { r.wait(rapid.IntRange(0, len(r.waits)).Draw(t, "waits")) },
		"drop":    r.dropRandom,
		"trim":    func(t *rapid.T) { r.trim(rapid.Uint64Range(0, r.told.view.lastSeq+1).Draw(t, "below")) },
		"settle":  func(*rapid.T) { r.settle() },
		"reopen":  func(*rapid.T) { r.reopen() },
		"sidecar": r.sidecarRandom,
		"backup":  r.backupRandom,
		"":        r.compareAll,
	}
	if r.h.CrashClone != nil {
		actions["crash"] = r.crashRandom
	}
	return actions
}

func (r *run) bucket(t *rapid.T) storage.Bucket {
	return bucket(randomScopes.Draw(t, "scope"), week+weekbucket.Week(randomWeeks.Draw(t, "week")))
}

func (r *run) applyRandom(t *rapid.T) {
	for range rapid.IntRange(1, 8).Draw(t, "batches") {
		r.apply(r.batch(t))
	}
}

func (r *run) batch(t *rapid.T) (b storage.Batch) {
	record := fmt.Sprint("batch ", r.told.view.lastSeq+1)
	if keys := sortedKeys(r.told.view.claims, ""); len(keys) > 0 {
		for range rapid.IntRange(0, 2).Draw(t, "changes") {
			w := storage.ClaimWrite{Key: []byte(rapid.SampledFrom(keys).Draw(t, "key"))}
			if rapid.Bool().Draw(t, "replace") {
				w.Record = []byte(record)
			}
			b.Claims = append(b.Claims, w)
		}
	}
	for range rapid.IntRange(0, 6).Draw(t, "claims") {
		in := r.bucket(t)
		if r.gone[in] {
			continue // no batch touches a bucket after it was dropped
		}
		w := claim(in, randomIDs.Draw(t, "id"), record)
		if rapid.IntRange(0, 4).Draw(t, "remove") == 0 {
			w.Record = nil
		}
		b.Claims = append(b.Claims, w)
	}
	for range rapid.IntRange(0, 3).Draw(t, "states") {
		w := set(randomKeys.Draw(t, "key"), record)
		switch rapid.IntRange(0, 4).Draw(t, "value") {
		case 0:
			w.Value = nil
		case 1:
			w.Value = []byte{}
		}
		b.State = append(b.State, w)
	}
	if n := rapid.IntRange(-1, 20).Draw(t, "journal"); n >= 0 {
		b.Journal = noise(uint64(n), n)
	}
	return b
}

func (r *run) dropRandom(t *rapid.T) {
	var buckets []storage.Bucket
	for range rapid.IntRange(1, 3).Draw(t, "buckets") {
		buckets = append(buckets, r.bucket(t))
	}
	r.drop(buckets...)
	if rapid.IntRange(0, 9).Draw(t, "reclaim") == 0 {
		if err := r.s.Reclaim(context.Background(), buckets); err != nil {
			t.Fatalf("Reclaim: %v", err)
		}
	}
}

func (r *run) crashRandom(t *rapid.T) {
	r.crash(randomShare.Draw(t, "unsynced"))
}

func (r *run) sidecarRandom(t *rapid.T) {
	name := rapid.SampledFrom([]string{"filter", "filter-1"}).Draw(t, "name")
	r.sidecars[name] = noise(1, rapid.IntRange(0, 300).Draw(t, "size"))
	r.writeSidecar(name, r.sidecars[name])
}

func (r *run) backupRandom(*rapid.T) {
	r.backups++
	dir := r.backup(fmt.Sprint("backup-", r.backups))
	r.onOther(dir, func(s storage.Store) {
		r.expectCopy(s, r.told.view)
		r.expectSuccessor(s.Identity(), r.s.Identity())
	})
}

func (r *run) compareAll(*rapid.T) {
	r.check("compared with a map")
	for _, name := range sortedKeys(r.sidecars, "") {
		r.expectSidecar("compared with a map", name, r.sidecars[name])
	}
}
