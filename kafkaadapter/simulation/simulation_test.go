// Package simulation runs whole consumers on machines whose power fails again and again: an
// embedded broker, the real client, the adapter, the engine and a store on a disk that loses
// unsynced data, all in one process and in virtual time. Between two power failures it checks the
// store, and in the end all results.
//
// While a machine runs, brokers answer requests with errors or cut connections. Between two
// machines, leaders move, and sometimes another program commits for the group: the next machine
// must then stop that partition and leave its offset unchanged. One seed in three tests AtMostOnce,
// the others test Transactional; some seeds use Pebble.
//
// There are three forms: a single consumer; members of one process that share an engine and
// exchange partitions; and pinned processes with a store each. Members with the classic protocol
// need real time, because the client holds a mutex while it joins a group, unless the tests are
// built with the tag synctests, with which the client has mutexes that work in virtual time.
//
// For rules that wrappers cannot break, -simulate.mutants builds the adapter without the rule and
// expects the simulation to fail.
//
// A seed determines what is produced, which handlers fail, when the power fails and what survives.
// It does not determine the order in which goroutines run, so a failure may not recur at its first
// repetition.
package simulation

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

var (
	duration = flag.Duration("simulate.duration", 0, "simulate power failures for that long, instead of the usual number of times")
	logging  = flag.Bool("simulate.log", false, "write the consumers' logs to the standard error")
	from     = flag.Uint64("simulate.seed", 1, "the first seed")
)

func newLogger() *slog.Logger {
	if *logging {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.DiscardHandler)
}

// A scale is the size of a test. The race detector makes it slow, most of all with Pebble, which
// then checks itself.
type scale struct {
	cuts    int    // the minimum number of power failures of the test
	faults  int    // of brokers, the same
	perRun  int    // machines on one disk
	members int    // the minimum number of power failures of members that exchange partitions
	pinned  int    // the same of pinned processes
	pebble  uint64 // one seed in so many uses Pebble
}

func scaled() scale {
	if raced {
		return scale{cuts: 200, faults: 200, perRun: 20, members: 20, pinned: 30, pebble: 5}
	}
	return scale{cuts: 2000, faults: 2000, perRun: 40, members: 200, pinned: 300, pebble: 4}
}

// A report is the result of one run.
type report struct {
	seed       uint64
	store      string
	violations []string
	tally
}

// simulate runs a number of machines on one disk, and then one until all records are handled.
func simulate(t *testing.T, seed uint64, onPebble bool, f form, m mutation) (r report) {
	r = report{seed: seed, store: "memory", tally: tally{cuts: make(map[moment]int), faults: make(map[string]int)}}
	if onPebble {
		r.store = "Pebble"
	}
	stuck := time.AfterFunc(stuckAfter, func() { panic(fmt.Sprintf("seed %d, on %s: stuck for %v", seed, r.store, stuckAfter)) })
	defer stuck.Stop()
	run := func(t *testing.T) {
		worlds, err := worldsOf(seed, onPebble, f, m)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for _, w := range worlds {
			wg.Go(func() { w.liveAll(onPebble) })
		}
		wg.Wait()
		for _, w := range worlds {
			r.violations = append(r.violations, w.violations...)
			r.add(&w.tally)
			w.out.Close()
		}
		worlds[0].cluster.Close()
	}
	if f.pace == realTime {
		run(t)
	} else {
		synctest.Test(t, run)
	}
	return r
}

// worldsOf makes a world for each process.
func worldsOf(seed uint64, onPebble bool, f form, m mutation) ([]*world, error) {
	newDisk := func() disk { return newMemDisk() }
	if onPebble {
		newDisk = func() disk { return newPebbleDisk() }
	}
	w, err := newWorld(seed, newDisk(), f, m)
	worlds := []*world{w}
	for ordinal := 1; ordinal < f.of && err == nil; ordinal++ {
		w, err = worlds[0].beside(newDisk(), ordinal)
		worlds = append(worlds, w)
	}
	return worlds, err
}

// stuckAfter bounds the real time of one seed. Virtual time does not pass while a goroutine waits
// for something outside the bubble, such as a mutex whose owner waits for time.
const stuckAfter = 8 * time.Minute

// liveAll runs all machines of a disk.
func (w *world) liveAll(onPebble bool) {
	for i := 0; i < w.lives && !w.violated(); i++ {
		err := w.produce(5 + w.pick(45))
		if err == nil && w.chance(20) {
			err = w.moveLeader()
		}
		if err != nil {
			w.violate("between two lives: %v", err)
			return
		}
		w.oneLife(onPebble)
		time.Sleep(w.downtime())
	}
	if !w.violated() {
		w.lastLife()
	}
}

// oneLife runs a machine until the power fails at one of its moments, or sometimes until an orderly
// stop.
func (w *world) oneLife(onPebble bool) {
	if w.chance(5) {
		w.tally.clean++
		w.live(newPower(atIdle, -1), stopped)
		return
	}
	moments := []struct {
		moment
		latest int
	}{{atApply, 40}, {atApply, 40}, {atSync, 60}, {atSync, 60}, {atHandler, 40}, {atHandler, 40}, {atWire, 40}, {atIdle, 0}}
	if onPebble {
		moments[0].moment, moments[0].latest = atDisk, 120
		moments[2].moment, moments[2].latest = atDisk, 40
	}
	k := moments[w.pick(len(moments))]
	p := newPower(k.moment, 1+w.pick(k.latest+1))
	if w.chance(8) {
		i, recovery, err := w.intrude()
		if err != nil {
			w.violate("committing for the group: %v", err)
			return
		}
		if i != nil {
			w.intrudedLives(i, recovery, p)
			return
		}
	}
	w.live(p, cutWhenIdle)
}

// downtime returns the time until the power returns: mostly less than the group's session timeout,
// sometimes hours.
func (w *world) downtime() time.Duration {
	if w.chance(20) {
		return w.upTo(w.longDown)
	}
	return w.upTo(w.down)
}

// lastLife handles all remaining records, and checks the results.
func (w *world) lastLife() {
	w.last = true
	w.live(newPower(atIdle, -1), stoppedLater)
	if w.violated() {
		return
	}
	p := newPower(atIdle, -1)
	s, err := w.disk.open(p)
	if err != nil {
		w.violate("opening the store in the end: %v", err)
		return
	}
	eng, err := engine.Open(s, engine.Options{})
	if err != nil {
		w.violate("opening the engine in the end: %v", err)
		return
	}
	a := audit{w: w, eng: eng, store: s, off: &p.off}
	a.finish()
	if err := eng.Close(); err != nil {
		w.violate("closing the engine in the end: %v", err)
	}
}

// A campaign runs one seed after the other, several at a time.
type campaign struct {
	form  func(seed uint64) form
	lives int // on one disk; 0: scale.perRun

	mu      sync.Mutex // guards what follows
	next    uint64
	running int
	all     []report
}

// run simulates until enough returns true.
func (c *campaign) run(t *testing.T, more func(cuts, faults int) bool) {
	for {
		c.mu.Lock()
		seed := c.next
		if t.Failed() || !more(c.cuts(), c.faults()) {
			c.mu.Unlock()
			return
		}
		c.next++
		c.running++
		c.mu.Unlock()
		f := c.form(seed)
		if f.lives = c.lives; f.lives == 0 {
			f.lives = scaled().perRun
		}
		r := simulate(t, seed, seed%scaled().pebble == 0, f, mutation{})
		for _, v := range r.violations {
			t.Errorf("seed %d, on %s, after %d power cuts: %s", r.seed, r.store, r.total(), v)
		}
		c.mu.Lock()
		c.all = append(c.all, r)
		c.running--
		c.mu.Unlock()
	}
}

func (c *campaign) cuts() (n int) {
	for i := range c.all {
		n += c.all[i].total()
	}
	return n
}

func (c *campaign) faults() (n int) {
	for i := range c.all {
		for _, k := range c.all[i].faults {
			n += k
		}
	}
	return n
}

func (c *campaign) String() string {
	cuts := make(map[string]map[moment]int)
	sum := tally{cuts: make(map[moment]int), faults: make(map[string]int)}
	for _, r := range c.all {
		if cuts[r.store] == nil {
			cuts[r.store] = make(map[moment]int)
		}
		for m, n := range r.cuts {
			cuts[r.store][m] += n
		}
		sum.add(&r.tally)
	}
	return fmt.Sprintf("%d power cuts %v, %d orderly stops; %d faults of brokers %v, %d expulsions, %d members left, %d lost their network, %d partitions went to another member, %d members reaped; %d moved leaders, %d foreign commits; %d lost at most once; %d records of %d events, %d of which always fail; %d calls of handlers; seeds %d to %d",
		c.cuts(), cuts, sum.clean, c.faults(), sum.faults, sum.expelled, sum.left, sum.muted, sum.moved, sum.reaped, sum.moves, sum.intrusions, sum.lost, sum.records, sum.events, sum.poisoned, sum.handled, *from, c.next-1)
}

func TestEachEventTakesEffectOnceThroughPowerFailures(t *testing.T) {
	began := time.Now()
	more := func(cuts, faults int) bool { return cuts < scaled().cuts || faults < scaled().faults }
	if *duration > 0 {
		more = func(int, int) bool { return time.Since(began) < *duration }
	}
	c := &campaign{next: *from, form: func(uint64) form { return single }}
	c.report(t, more)
	if *duration == 0 && !t.Failed() && more(c.cuts(), c.faults()) {
		t.Errorf("%d power cuts and %d faults of brokers, want at least %d and %d", c.cuts(), c.faults(), scaled().cuts, scaled().faults)
	}
}

func processors() int { return min(4, runtime.GOMAXPROCS(0)) }

// The control: a broken protocol is detected within a few seeds.
func TestBrokenProtocolsAreCaught(t *testing.T) {
	for _, c := range []struct {
		name string
		mutation
	}{
		{"durable before the sync", mutation{store: noSync}},
		{"offset before the batch", mutation{store: offsetFirst}},
		{"the group's commits forgotten", mutation{broker: forgetCommits}},
	} {
		t.Run(c.name, func(t *testing.T) {
			const seeds = 30
			for seed := *from; seed < *from+seeds; seed++ {
				if r := simulate(t, seed, false, form{pace: virtualTime, lives: scaled().perRun}, c.mutation); len(r.violations) > 0 {
					t.Logf("seed %d, after %d power cuts: %s", seed, r.total(), r.violations[0])
					return
				}
			}
			t.Fatalf("%d seeds have found no violation: the simulation tests nothing", seeds)
		})
	}
}
