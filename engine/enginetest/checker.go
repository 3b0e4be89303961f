package enginetest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A checker runs an engine and compares it with a model.
type checker struct {
	*rapid.T
	*model
	test *testing.T
	h    storetest.Harness
	base string // directory for copies
	dir  string // directory of the current store

	gate *gate
	e    *engine.Engine
	lane *driver.LaneMember // lane of all transactions, nested ones included
	n    int64              // number of deliveries, for their offsets
	lent []modelLease       // every lease that was given
	copy int                // number of backups
}

func newChecker(rt *rapid.T, t *testing.T, h storetest.Harness, dir string) *checker {
	m := newModel(rapid.SampledFrom(modelRetentions).Draw(rt, "retention of scopes"))
	c := &checker{T: rt, model: m, test: t, h: h, base: filepath.Dir(dir), dir: dir}
	c.start()
	return c
}

func (c *checker) start() {
	s, err := c.h.Open(c.test, c.dir)
	if err != nil {
		c.Fatalf("opening the store: %v", err)
	}
	c.gate = &gate{Store: s}
	c.gate.changed = sync.NewCond(&c.gate.mu)
	clock := c.clock
	c.e, err = engine.Open(c.gate, engine.Options{
		ScopeRetention: c.retention, RecentClaims: rapid.SampledFrom([]int{-1, 1, 1000}).Draw(c.T, "cache"), ExpectedPerWeek: 100, MaxFilterBytes: 1 << 12,
		Clock:   func() time.Time { return clock },
		Nightly: engine.Nightly{Off: true}, // a nightly run after Open of a backup would write a batch that no call of the model makes
	})
	if err != nil {
		c.gate = nil
		c.Fatalf("opening the engine: %v", errors.Join(err, s.Close()))
	}
	c.opened(c.e.Retention().OldestWeek())
	c.lane = driver.JoinLane(c.e, time.Hour)
}

func (c *checker) shut() {
	if c.e == nil {
		return
	}
	e := c.e
	c.e = nil
	if err := e.Close(); err != nil {
		c.Errorf("closing: %v", err)
	}
}

func (c *checker) reopen() { c.shut(); c.start() }

func (c *checker) tick(t *rapid.T) {
	c.clock = c.clock.Add(time.Duration(rapid.IntRange(-24, 24*9).Draw(t, "hours")) * time.Hour)
	c.reopen() // the clock of an engine does not move
}

// backup continues with a copy of the store.
func (c *checker) backup() {
	c.copy++
	to := filepath.Join(c.base, fmt.Sprint("backup-", c.copy))
	if err := c.e.Admin().Backup(context.Background(), to); err != nil {
		c.Fatalf("backup: %v", err)
	}
	c.shut()
	c.dir = to
	c.start()
}

func (c *checker) event(t *rapid.T) (engine.Event, claimKey) {
	week := c.week() + weekbucket.Week(rapid.IntRange(0, 7).Draw(t, "week")) - 5
	c.n++
	ev := engine.Event{
		Scope:           rapid.SampledFrom([]string{"a", "ab", "a\x00"}).Draw(t, "scope"),
		ID:              []byte(rapid.SampledFrom([]string{"1", "2", "3", "\x00", "00112233445566778899aabbccddeeff", "00112233-4455-6677-8899-aabbccddeeff"}).Draw(t, "id")),
		Time:            week.Start().Add(time.Duration(rapid.IntRange(0, 7*24-1).Draw(t, "hour")) * time.Hour),
		ApproximateTime: rapid.IntRange(0, 2).Draw(t, "log time") == 0,
		Origin:          engine.Origin{Topic: rapid.SampledFrom([]string{"t", "u"}).Draw(t, "topic"), Offset: c.n},
		Window:          rapid.SampledFrom(modelWindows).Draw(t, "window"),
	}
	if rapid.IntRange(0, 3).Draw(t, "leased") == 0 {
		ev.Lease = rapid.SampledFrom([]time.Duration{time.Hour, 20 * time.Hour}).Draw(t, "lease")
	}
	if rapid.IntRange(0, 3).Draw(t, "identified") == 0 {
		ev.Fingerprint = rapid.SampledFrom([]string{"x", "y"}).Draw(t, "fingerprint")
	}
	ev.Window = c.kept(ev.Scope, ev.Window)
	if rapid.Bool().Draw(t, "sent") { // it was often sent much earlier than it arrives
		ev.Sent = modelStart.Add(time.Duration(rapid.IntRange(0, 60).Draw(t, "hours")) * time.Hour)
	}
	if ev.Window > 0 && rapid.Bool().Draw(t, "arrives") {
		ev.Time, week = time.Time{}, c.week()
	}
	return ev, claimKey{ev.Scope, week, string(ev.ID)}
}

var modelWindows = []time.Duration{0, 0, 0, time.Hour, 30 * time.Hour, defaultRetentionWeeks * 7 * 24 * time.Hour}

// checkResult compares a result with the expected one, and returns the latter with the owner that
// the engine chose.
func (c *checker) checkResult(r engine.Result, err error, want engine.Result, k claimKey) engine.Result {
	if want.IsClaimed() && want.Record.State == engine.Leased && r.Record.Owner != 0 && r.Lease != nil {
		want.Record.Owner, want.Lease = r.Record.Owner, r.Lease
	}
	if err != nil || r != want {
		c.Fatalf("%v: told %+v, %v; want %+v", k, r, err, want)
	}
	return want
}

// lease records the lease of a claim, if it has one.
func (c *checker) lease(k claimKey, r engine.Result) {
	if r.Lease != nil {
		c.lent = append(c.lent, modelLease{r.Lease, k, r.Record.Owner})
	}
}

// pick returns a lease, most often a recent one, because few leases hold their claims for long.
func (c *checker) pick(t *rapid.T) modelLease {
	return c.lent[len(c.lent)-1-rapid.IntRange(0, min(3, len(c.lent)-1)).Draw(t, "lease")]
}

func modelPosition(partition int32) engine.OffsetKey {
	return engine.OffsetKey{Group: "g", Topic: "t", Partition: partition}
}

var modelKeys = []string{"k", "l", "k\x00", "crash0", "crash1", "sum"}

// modelRetentions are the scopes with a separate retention.
var modelRetentions = []map[string]int{nil, {"ab": 2}, {"ab": 1, "a\x00": 3}}
