package enginetest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine/storetest"
)

// RunModel compares an engine on the store that h opens with maps, over random sequences of all
// calls of an application: claims, batches, transactions inside transactions, savepoints, dead
// letters and their replays, failing closures, forgetting, holds, drops, an advancing clock, clean
// and unclean ends. It takes a few seconds. With -rapid.checks it runs that many checks without a
// time limit, and -rapid.steps makes each longer. A failure prints its -rapid.seed; a run that
// reproduces a failure has no time limit.
func RunModel(t *testing.T, h storetest.Harness) {
	budget := 4 * time.Second
	if testing.Short() {
		budget = 2 * time.Second
	}
	limited := true
	flag.Visit(func(f *flag.Flag) { limited = limited && f.Name != "rapid.checks" })
	end := time.Now().Add(budget)
	failed, runs, root := false, 0, t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		if limited && time.Now().After(end) && !failed {
			return
		}
		runs++
		done := false
		dir := filepath.Join(root, fmt.Sprint("model-", runs))
		defer func() {
			failed = failed || !done
			_ = os.RemoveAll(dir)
		}()
		if err := os.Mkdir(dir, 0o700); err != nil {
			rt.Fatalf("%v", err)
		}
		c := newChecker(rt, t, h, filepath.Join(dir, "store"))
		defer c.shut()
		rt.Repeat(c.actions())
		c.reopen()
		c.compare()
		done = true
	})
	t.Logf("%d runs", runs)
}

func (c *checker) actions() map[string]func(*rapid.T) {
	a := map[string]func(*rapid.T){
		"claim": c.claim, "claim2": c.claim, "batch": c.batch, "update": c.update, "update2": c.update, "update3": c.update,
		"lease": c.useLease, "lease2": c.useLease,
		"forget": c.forget, "hold": c.hold, "dropWeek": c.dropWeek, "dropExpired": c.dropExpired, "dropScope": c.dropScope,
		"clock":  func(t *rapid.T) { c.tick(t) },
		"reopen": func(*rapid.T) { c.reopen() },
		"backup": func(*rapid.T) { c.backup() },
		"":       func(*rapid.T) { c.compare() },
	}
	if c.h.CrashClone != nil {
		a["crash"] = c.crash
	}
	return a
}
