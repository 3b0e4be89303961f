package replica_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/weekbucket"
)

// The simulation: three members without a group, each of which believes again and again that the
// partition is its own, so that every hand-over is one from an owner that does not know of it. They
// handle one source of events; time is that of a bubble, so that nothing waits. The log delays, doubles
// and loses answers and records; a member stops for a while, or ends at any moment, and then its copy has
// lost its newest batches or is gone. In the end each event must have been handled once.

const (
	simEvents   = 2500
	simPerWeek  = 500
	simRepeats  = 100 // how far back a repeated event is
	simMembers  = 3
	simPartByte = 150
)

type sim struct {
	log       replica.Memory
	own       bool // events are claimed at most once, and handled after that
	unclean   bool // the log loses acknowledged records
	ids       []int
	begin     time.Time
	done      atomic.Bool
	takeOvers atomic.Int64
	failure   atomic.Pointer[string]
	late      sync.WaitGroup // records that are on their way

	mu      sync.Mutex
	owners  map[uint64]int // of a confirmed batch: by its number
	owner   int            // counts the take-overs
	handled map[int]int
	unsure  map[int]bool // events whose claim had an error
	counts  map[string]int
	losses  int        // how often the log has lost records
	alive   []*process // owners
}

func (s *sim) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.failure.CompareAndSwap(nil, &text)
	s.done.Store(true)
}

func (s *sim) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

func (s *sim) clock() time.Time { return time.Now().Add(26*365*24*time.Hour + 7*24*time.Hour) }

func (s *sim) options() engine.Options {
	return engine.Options{
		RetentionWeeks: engine.KeepAll, RecentClaims: -1, ExpectedPerWeek: 1 << 10, MaxFilterBytes: 1 << 18,
		Nightly: engine.Nightly{Off: true}, Clock: s.clock,
	}
}

// A member is one process after the other, with the directory that they leave behind.
type member struct {
	sim    *sim
	rnd    *rand.Rand
	copies memCopies

	refused atomic.Bool // by a log that has lost records
}

// A process is what ends at a crash.
type process struct {
	member *member
	copies *lazyCopies
	mu     sync.Mutex // guards rnd
	rnd    *rand.Rand
	dead   atomic.Bool

	// guarded by sim.mu
	sent      []byte // the record that was acknowledged last
	landed    int    // losses before it landed where it was acknowledged; a copy may land later
	confirmed []byte // the last record of the last confirmed batch
	lost      int    // the loss that took it
}

func (p *process) chance(oneOf int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rnd.IntN(oneOf) == 0
}

func (p *process) upTo(d time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(p.rnd.Int64N(int64(d)))
}

// step is a moment at which the process may be stopped for a while.
func (p *process) step() {
	time.Sleep(p.upTo(time.Millisecond))
	if p.chance(40) {
		p.member.sim.count("stops")
		time.Sleep(p.upTo(60 * time.Millisecond))
	}
}

var errLostAnswer = errors.New("the answer is lost")

// A simLog is the log as one process sees it.
type simLog struct {
	*replica.Memory
	process *process
}

func (l simLog) Append(ctx context.Context, record []byte) (replica.Ack, error) {
	p, s := l.process, l.process.member.sim
	record = bytes.Clone(record) // it may arrive late
	p.step()
	if p.dead.Load() {
		return replica.Ack{}, errLostAnswer
	}
	put := func() (ack replica.Ack, losses int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		ack, err := l.Memory.Append(context.Background(), record)
		if err != nil {
			s.fail("append: %v", err)
		}
		return ack, s.losses
	}
	later := func() {
		wait := p.upTo(40 * time.Millisecond)
		s.late.Go(func() {
			time.Sleep(wait)
			put()
		})
	}
	switch {
	case p.chance(60): // it never arrives, or late, or late and twice
		s.count("unknown")
		for range 2 {
			if p.chance(2) {
				later()
			}
		}
		p.step()
		return replica.Ack{}, errLostAnswer
	case p.chance(60):
		s.count("unknown")
		put()
		return replica.Ack{}, errLostAnswer
	}
	ack, landed := put()
	switch {
	case p.chance(50):
		s.count("doubled")
		later()
	case p.chance(50): // twice at once, and the answer is that of either one
		s.count("doubled")
		if second, then := put(); p.chance(2) {
			ack, landed = second, then
		}
	}
	if p.chance(50) {
		s.count("without offset")
		ack.Offset = -1
	}
	p.step()
	if err := ctx.Err(); err != nil {
		return replica.Ack{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.sent, p.landed = record, landed
	return ack, nil
}

func (l simLog) Read(ctx context.Context, from, to int64, fn func(int64, []byte) bool) error {
	if l.process.chance(200) {
		return errLostAnswer
	}
	return l.Memory.Read(ctx, from, to, fn)
}

// lazyCopies give a copy that is not synced for each batch, as those of the stores on disk.
type lazyCopies struct {
	process *process
	mu      sync.Mutex // guards the field below
	mem     memCopies
}

func (c *lazyCopies) Open() (storage.Store, error) {
	return c.lazy(func() (storage.Store, error) { return c.mem.Open() })
}

func (c *lazyCopies) Create(id storage.Identity) (storage.Store, error) {
	return c.lazy(func() (storage.Store, error) { return c.mem.Create(id) })
}

func (c *lazyCopies) Remove() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mem.Remove()
}

// cut cuts the power.
func (c *lazyCopies) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.process.dead.Store(true)
	if c.mem.last != nil {
		c.mem.last.Fail(storetest.ErrPowerCut)
	}
}

func (c *lazyCopies) lazy(open func() (storage.Store, error)) (storage.Store, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process.dead.Load() {
		return nil, storetest.ErrPowerCut
	}
	s, err := open()
	if err != nil {
		return nil, err
	}
	c.mem.last.Before(storetest.OpApply, func(int) error {
		if c.process.chance(10) {
			c.process.step() // the log has the batch, the copy has not
		}
		return nil
	})
	return &lazyCopy{Store: s}, nil
}

type lazyCopy struct {
	storage.Store
	mu    sync.Mutex
	waits []func() error
}

func (c *lazyCopy) Apply(b *storage.Batch) (func() error, error) {
	wait, err := c.Store.Apply(b)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits = append(c.waits, wait)
	return func() error { return nil }, nil
}

func (c *lazyCopy) sync() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; len(c.waits) > 0; c.waits = c.waits[1:] {
		if err := c.waits[0](); err != nil {
			return err
		}
	}
	return nil
}

func (c *lazyCopy) WriteSidecar(name string, write func(io.Writer) error) error {
	if err := c.sync(); err != nil {
		return err
	}
	return c.Store.WriteSidecar(name, write)
}

func (c *lazyCopy) Drop(buckets []storage.Bucket) error {
	if err := c.sync(); err != nil {
		return err
	}
	return c.Store.Drop(buckets)
}

// A confirming store notes the batches that it has confirmed.
type confirming struct {
	storage.Store
	sim     *sim
	owner   int
	process *process
}

func (c confirming) Apply(b *storage.Batch) (func() error, error) {
	wait, err := c.Store.Apply(b)
	if err == nil {
		c.sim.mu.Lock()
		other, there := c.sim.owners[b.Seq]
		c.sim.owners[b.Seq] = c.owner
		p := c.process
		if p.lost > 0 && p.landed >= p.lost {
			c.sim.failure.CompareAndSwap(nil, ptr(fmt.Sprintf("owner %d goes on with batch %d after the log has lost its last one", c.owner, b.Seq)))
		}
		p.confirmed = p.sent
		c.sim.mu.Unlock()
		if there && other != c.owner && !c.sim.unclean {
			c.sim.fail("batch %d is confirmed to owner %d and to owner %d", b.Seq, other, c.owner)
		}
	}
	return wait, err
}

func ptr(s string) *string { return &s }

// elect makes the log lose its newest records, as an unclean election does, and notes which owners have
// lost their last batch.
func (s *sim) elect(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, end, _ := s.log.Bounds(context.Background())
	s.log.Truncate(max(end-int64(n), 1))
	s.losses++
	left := map[string]bool{}
	for _, record := range records(&s.log) {
		left[string(record)] = true
	}
	for _, p := range s.alive {
		if p.lost == 0 && p.confirmed != nil && !left[string(p.confirmed)] {
			p.lost = s.losses
		}
	}
	s.counts["elections"]++
}

// expected reports whether an error is one that a fault causes.
func expected(err error) bool {
	for _, e := range []error{replica.ErrFenced, replica.ErrUnknownOutcome, replica.ErrRevoked, storetest.ErrPowerCut, errLostAnswer, engine.ErrClosed, context.DeadlineExceeded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// expected is the function of this name, and allows a loss of the log where there are some.
func (s *sim) expected(err error) bool {
	return expected(err) || s.unclean && (errors.Is(err, replica.ErrChangelogLost) || errors.Is(err, replica.ErrChangelogDamaged))
}

func (m *member) run() {
	for !m.sim.done.Load() && !m.refused.Load() {
		time.Sleep(time.Duration(m.rnd.Int64N(int64(20 * time.Millisecond))))
		p := &process{member: m, rnd: rand.New(rand.NewPCG(m.rnd.Uint64(), 1))}
		p.copies = &lazyCopies{process: p, mem: m.copies}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p.live()
		}()
		var crash <-chan time.Time
		if m.rnd.IntN(3) > 0 {
			crash = time.After(time.Duration(m.rnd.Int64N(int64(60 * time.Millisecond))))
		}
		select {
		case <-ended:
		case <-crash:
			p.copies.cut()
			<-ended
			m.crashed(&p.copies.mem)
		}
		m.copies = p.copies.mem
		m.copies.last = nil
	}
}

// crashed makes what a crash leaves on the disk.
func (m *member) crashed(c *memCopies) {
	m.sim.count("crashes")
	if c.last != nil {
		clone := c.last.CrashClone(m.rnd.IntN(c.last.Unsynced() + 1))
		if err := clone.Close(); err != nil {
			m.sim.fail("closing a copy: %v", err)
		}
		c.disk = clone.Disk()
	}
	if m.rnd.IntN(4) == 0 {
		m.sim.count("copies lost")
		_ = c.Remove()
	}
}

// live is the life of a process.
func (p *process) live() {
	s := p.member.sim
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	store, err := replica.Open(ctx, simLog{&s.log, p}, p.copies, replica.Options{PartBytes: simPartByte})
	if err != nil {
		if s.unclean && (errors.Is(err, replica.ErrChangelogLost) || errors.Is(err, replica.ErrChangelogDamaged)) {
			s.count("refused")
			p.member.refused.Store(true)
		} else if !expected(err) && !p.dead.Load() {
			s.fail("Open: %v", err)
		}
		return
	}
	s.takeOvers.Add(1)
	s.mu.Lock()
	s.owner++
	owner := s.owner
	s.alive = append(s.alive, p)
	s.mu.Unlock()
	e, err := engine.Open(confirming{store, s, owner, p}, s.options())
	if err != nil {
		if !s.expected(err) && !p.dead.Load() {
			s.fail("engine.Open: %v", err)
		}
		err = store.Close()
	} else {
		if err = p.work(e); err != nil && !s.expected(err) && !p.dead.Load() {
			s.fail("work: %v", err)
		}
		if p.chance(2) {
			store.Revoke()
		}
		err = e.Close()
	}
	if err != nil && !s.expected(err) && !p.dead.Load() {
		s.fail("Close: %v", err)
	}
}

var simPosition = engine.OffsetKey{Group: "g", Topic: "source", Partition: 3}

func (p *process) work(e *engine.Engine) error {
	s := p.member.sim
	for n := 2 + int(p.upTo(30)); n > 0 && !s.done.Load() && !p.dead.Load(); n-- {
		at, err := p.handle(e, 1+int(p.upTo(12)))
		if err != nil {
			return err
		}
		if at >= len(s.ids) {
			s.done.Store(true)
			return nil
		}
		for week := range max(at-2*simRepeats, 0) / simPerWeek {
			if e.Retention().OldestWeek() > s.week(week) || !p.chance(6) {
				continue
			}
			switch _, err := e.Retention().DropWeek(context.Background(), s.week(week)); {
			case err == nil:
				s.count("drops")
			case !errors.Is(err, engine.ErrNotOldestWeek) && !errors.Is(err, engine.ErrRebuilding):
				return err
			}
		}
		if p.chance(40) {
			time.Sleep(p.upTo(20 * time.Millisecond))
		}
	}
	return nil
}

func (s *sim) week(n int) weekbucket.Week {
	first, err := weekbucket.Of(s.begin)
	if err != nil {
		s.fail("week: %v", err)
	}
	return first + weekbucket.Week(n)
}

// event returns the event at an offset of the source. Each week has a topic of its own, so that its name
// is free again when the week is dropped.
func (s *sim) event(at int) engine.Event {
	id := s.ids[at]
	week := id / simPerWeek
	return engine.Event{
		Scope: "s", ID: strconv.AppendInt([]byte("event-"), int64(id), 10), Time: s.begin.AddDate(0, 0, 7*week),
		Origin: engine.Origin{Topic: fmt.Sprint("t", week), Partition: 3, Offset: int64(at)},
	}
}

// handle handles some events, and returns the next offset.
func (p *process) handle(e *engine.Engine, n int) (next int, err error) {
	s := p.member.sim
	ctx := context.Background()
	if s.own {
		if next, err = p.handleOnce(e, n); err != nil {
			return 0, err
		}
	}
	err = e.Update(ctx, func(tx *engine.Tx) error {
		o, _, err := tx.Offset(simPosition)
		if err != nil {
			return err
		}
		at := int(o.Next)
		if s.own {
			at = max(at, next)
		}
		for ; !s.own && n > 0 && at < len(s.ids); n-- {
			result, err := tx.TryClaim(s.event(at))
			switch {
			case err != nil:
				return err
			case result.Verdict == engine.Claimed:
				if err := tx.Add([]byte("n/"+strconv.Itoa(s.ids[at])), 1); err != nil {
					return err
				}
			case result.Verdict != engine.Duplicate:
				return fmt.Errorf("event %d is %v", at, result.Verdict)
			}
			at++
		}
		next = at
		return tx.SetOffset(simPosition, engine.Offset{Next: int64(at), LeaderEpoch: -1})
	}, engine.Retries(3))
	return next, err
}

// handleOnce claims events one by one, and handles those that are new.
func (p *process) handleOnce(e *engine.Engine, n int) (next int, err error) {
	s := p.member.sim
	var o engine.Offset
	if err := e.Update(context.Background(), func(tx *engine.Tx) (err error) { o, _, err = tx.Offset(simPosition); return err }); err != nil {
		return 0, err
	}
	at := int(o.Next)
	for ; n > 0 && at < len(s.ids); n-- {
		result, err := e.TryClaim(context.Background(), s.event(at))
		s.mu.Lock()
		switch {
		case err != nil:
			s.unsure[s.ids[at]] = true
		case result.Verdict == engine.Claimed:
			s.handled[s.ids[at]]++
		}
		s.mu.Unlock()
		if err != nil {
			return 0, err
		}
		if result.Verdict != engine.Claimed && result.Verdict != engine.Duplicate && result.Verdict != engine.TooOld {
			return 0, fmt.Errorf("event %d is %v", at, result.Verdict)
		}
		at++
	}
	return at, nil
}

// simulate runs the members until all events are handled, and audits what they leave.
func simulate(t *testing.T, seed uint64, own, unclean bool) *sim {
	t.Helper()
	s := &sim{own: own, unclean: unclean, owners: map[uint64]int{}, handled: map[int]int{}, unsure: map[int]bool{}, counts: map[string]int{}}
	rnd := rand.New(rand.NewPCG(seed, 7))
	for i := range simEvents {
		if i > 0 && rnd.IntN(5) == 0 {
			s.ids = append(s.ids, max(0, i-1-rnd.IntN(simRepeats)))
			continue
		}
		s.ids = append(s.ids, i)
	}
	s.begin = s.clock()
	s.begin = s.begin.AddDate(0, 0, -7*(simEvents/simPerWeek))
	var members sync.WaitGroup
	all := make([]*member, simMembers)
	for i := range all {
		m := &member{sim: s, rnd: rand.New(rand.NewPCG(seed, uint64(100+i)))}
		m.copies = memCopies{disk: storetest.NewDisk(), dir: "copy"}
		all[i] = m
		members.Go(m.run)
	}
	if unclean {
		for range 3 {
			time.Sleep(time.Duration(rnd.Int64N(int64(time.Second))))
			s.elect(1 + rnd.IntN(6))
		}
	}
	members.Wait()
	s.late.Wait()
	if failure := s.failure.Load(); failure != nil {
		t.Fatalf("seed %d: %s", seed, *failure)
	}
	s.audit(t, seed, all)
	return s
}

// audit restores the log into an empty copy and compares it with the source and with all copies.
func (s *sim) audit(t *testing.T, seed uint64, all []*member) {
	t.Helper()
	ctx := context.Background()
	cold, err := replica.Open(ctx, fork(&s.log), &memCopies{disk: storetest.NewDisk(), dir: "cold"}, replica.Options{})
	if s.unclean && errors.Is(err, replica.ErrChangelogDamaged) {
		return // nobody opens it
	}
	if err != nil {
		t.Fatalf("seed %d: the last restore: %v", seed, err)
	}
	if cold.Restore().Discarded != nil {
		t.Errorf("seed %d: %v", seed, cold.Restore().Discarded)
	}
	for seq := range s.owners {
		if seq > cold.LastSeq() && !s.unclean {
			t.Errorf("seed %d: batch %d was confirmed, the log ends with batch %d", seed, seq, cold.LastSeq())
		}
	}
	for i, m := range all {
		warm, err := replica.Open(ctx, fork(&s.log), &m.copies, replica.Options{})
		if s.unclean && errors.Is(err, replica.ErrChangelogLost) {
			continue
		}
		if err != nil {
			t.Fatalf("seed %d: member %d: %v", seed, i, err)
		}
		if diff := difference(cold, warm); diff != "" {
			t.Errorf("seed %d: the copy of member %d: %s", seed, i, diff)
		}
		_ = warm.Close()
	}
	if s.unclean {
		_ = cold.Close()
		return // events whose claims were lost are handled again
	}
	e, err := engine.Open(cold, s.options())
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	defer e.Close()
	for id := range simEvents {
		n := s.handled[id]
		if !s.own {
			value, _, err := e.Get(ctx, []byte("n/"+strconv.Itoa(id)))
			if err != nil {
				t.Fatal(err)
			}
			if len(value) == 8 {
				n = int(binary.BigEndian.Uint64(value))
			}
		}
		exists := s.ids[id] == id
		if !exists {
			for at := id; at < min(id+2*simRepeats, simEvents); at++ {
				exists = exists || s.ids[at] == id
			}
		}
		switch {
		case n > 1:
			t.Errorf("seed %d: event %d was handled %d times", seed, id, n)
		case n == 0 && exists && !s.unsure[id]:
			t.Errorf("seed %d: event %d was lost", seed, id)
		}
	}
	if err := e.Retention().Reclaimed(ctx); err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
	if err := cold.Verify(ctx, func(problem string) { t.Errorf("seed %d: %s", seed, problem) }); err != nil {
		t.Error(err)
	}
}

// difference returns what two stores do not have in common.
func difference(a, b storage.Store) string {
	contents := func(s storage.Store) (all map[string]string, err error) {
		all = map[string]string{}
		err = s.ScanState(storage.Span{}, func(key, value []byte) error {
			all["s"+string(key)] = string(value)
			return nil
		})
		if err == nil {
			err = s.Scan(context.Background(), storage.Span{}, func() {}, func(key, record []byte) error {
				all["c"+string(key)] = string(record)
				return nil
			})
		}
		return all, err
	}
	x, err1 := contents(a)
	y, err2 := contents(b)
	if err := errors.Join(err1, err2); err != nil {
		return err.Error()
	}
	for key, value := range x {
		if other, there := y[key]; !there || other != value {
			return fmt.Sprintf("%q is %q, not %q (%v)", key, other, value, there)
		}
	}
	for key, value := range y {
		if _, there := x[key]; !there {
			return fmt.Sprintf("%q is %q, and should not be there", key, value)
		}
	}
	return ""
}

// A few thousand take-overs: no event is lost, none is handled twice.
func TestSimulation(t *testing.T) {
	most := int64(2000)
	if testing.Short() || raceEnabled {
		most = 200
	}
	takeOvers, counts := int64(0), map[string]int{}
	for seed := uint64(1); takeOvers < most && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			s := simulate(t, seed, seed%2 == 0, false)
			takeOvers += s.takeOvers.Load()
			for what, n := range s.counts {
				counts[what] += n
			}
		})
	}
	t.Logf("%d take-overs, %v", takeOvers, counts)
	for _, what := range []string{"crashes", "copies lost", "stops", "unknown", "doubled", "without offset", "drops"} {
		if counts[what] == 0 && !t.Failed() {
			t.Errorf("no %s", what)
		}
	}
}

// An unclean election loses acknowledged records. An owner whose last batch is gone confirms nothing more,
// a copy with more than the log has is refused, and all other copies are what the log says.
func TestSimulationOfUncleanElections(t *testing.T) {
	rounds := uint64(30)
	if testing.Short() || raceEnabled {
		rounds = 6
	}
	counts := map[string]int{}
	for seed := uint64(1); seed <= rounds && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			for what, n := range simulate(t, seed, seed%2 == 0, true).counts {
				counts[what] += n
			}
		})
	}
	t.Log(counts)
	if counts["refused"] == 0 && !t.Failed() {
		t.Error("no log is refused")
	}
}
