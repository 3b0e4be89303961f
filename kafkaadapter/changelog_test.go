package kafkaadapter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/tenure"
)

// memLogs has the changelogs of a cluster.
type memLogs struct {
	mu    sync.Mutex
	logs  map[topicPartition]*replica.Memory
	all   []*replica.Memory
	apart bool // the negative control: each owner has a log of its own, so that only its copy decides
}

func (l *memLogs) log(topic string, partition int32) *replica.Memory {
	l.mu.Lock()
	defer l.mu.Unlock()
	tp := topicPartition{topic, partition}
	if l.logs[tp] == nil || l.apart {
		if l.logs == nil {
			l.logs = make(map[topicPartition]*replica.Memory)
		}
		l.logs[tp] = &replica.Memory{}
		l.all = append(l.all, l.logs[tp])
	}
	return l.logs[tp]
}

// A valve is between a member and the rest of the world.
type valve struct {
	mu   sync.Mutex
	open chan struct{} // closed while it is open
	dead chan struct{} // closed when the member was killed
}

func newValve() *valve {
	v := &valve{open: make(chan struct{}), dead: make(chan struct{})}
	close(v.open)
	return v
}

var errDead = errors.New("the member is dead")

func (v *valve) pass(ctx context.Context) error {
	v.mu.Lock()
	open := v.open
	v.mu.Unlock()
	select {
	case <-v.dead:
		return errDead
	default:
	}
	select {
	case <-open:
		return nil
	case <-v.dead:
		return errDead
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (v *valve) shut() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.open = make(chan struct{})
}

func (v *valve) reopen() {
	v.mu.Lock()
	defer v.mu.Unlock()
	close(v.open)
}

// memberLogs are the logs as a member reaches them.
type memberLogs struct {
	of    *memLogs
	valve *valve
}

func (l memberLogs) Prepare(ctx context.Context, _ string, _ int) error { return l.valve.pass(ctx) }
func (l memberLogs) Close()                                             {}
func (l memberLogs) Log(topic string, partition int32) replica.Log {
	return valveLog{l.of.log(topic, partition), l.valve}
}

type valveLog struct {
	replica.Log
	valve *valve
}

func (l valveLog) Append(ctx context.Context, record []byte) (replica.Ack, error) {
	if err := l.valve.pass(ctx); err != nil {
		return replica.Ack{}, err
	}
	ack, err := l.Log.Append(ctx, record)
	if err == nil {
		err = l.valve.pass(ctx) // the answer may be lost
	}
	return ack, err
}

func (l valveLog) Bounds(ctx context.Context) (start, end int64, err error) {
	if err := l.valve.pass(ctx); err != nil {
		return 0, 0, err
	}
	return l.Log.Bounds(ctx)
}

// A valveConn is a connection to the broker.
type valveConn struct {
	net.Conn
	valve *valve
}

func (c valveConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if gone := c.valve.pass(context.Background()); gone != nil {
		return 0, gone
	}
	return n, err
}

func (c valveConn) Write(b []byte) (int, error) {
	if err := c.valve.pass(context.Background()); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// A fleet is a rig whose members have no store in common but the changelogs.
type fleet struct {
	*rig
	logs memLogs
	sent []int64 // records by partition
	ids  [][]string
}

// A ship is a member with its disk.
type ship struct {
	*member
	valve *valve
	disk  vfs.FS
}

func newFleet(t testing.TB, partitions int32) *fleet {
	t.Helper()
	return &fleet{rig: newRig(t, partitions), sent: make([]int64, partitions), ids: make([][]string, partitions)}
}

func pebbleCopies(disk vfs.FS) func(string, int32, int64) storage.Copies {
	return func(topic string, partition int32, _ int64) storage.Copies {
		return pebble.CopyIn(fmt.Sprintf("%s-%d", topic, partition), pebble.Options{FS: disk, CacheBytes: 1 << 20, PendingBytes: 1 << 20})
	}
}

// join starts a member with what is on its disk.
func (f *fleet) join(t testing.TB, mode Mode, disk vfs.FS, change ...func(*Options)) *ship {
	t.Helper()
	s := &ship{valve: newValve(), disk: disk}
	var dialer net.Dialer
	dial := func(ctx context.Context, network, host string) (net.Conn, error) {
		if err := s.valve.pass(ctx); err != nil {
			return nil, err
		}
		c, err := dialer.DialContext(ctx, network, host)
		return valveConn{c, s.valve}, err
	}
	s.member = f.start(t, mode, append([]func(*Options){func(o *Options) {
		o.Changelog = &Changelog{
			Copies: pebbleCopies(disk), logs: memberLogs{&f.logs, s.valve},
			Engine: func(engine.OffsetKey) engine.Options {
				return engine.Options{ExpectedPerWeek: 1 << 12, RecentClaims: 64, MaxFilterBytes: 1 << 24}
			},
		}
		o.Client = append(o.Client, kgo.SessionTimeout(2*time.Second), kgo.Dialer(dial))
		o.DrainTimeout, o.shutdownTimeout = 5*time.Second, 5*time.Second
		logs := o.Telemetry.Logger
		o.Telemetry.Logger = slog.New(calm{logs.Handler()})
	}}, change...)...)
	return s
}

// calm leaves out the messages about each event.
type calm struct{ slog.Handler }

func (calm) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (c calm) WithAttrs(a []slog.Attr) slog.Handler       { return calm{c.Handler.WithAttrs(a)} }

// kill ends a member as the end of its process does: nothing of it reaches the broker any more.
func (s *ship) kill(t testing.TB) {
	t.Helper()
	close(s.valve.dead)
	s.cancel()
	kafkatest.Receive(t, s.done) // it holds its disk until then
}

// sendMore produces n new events for each partition, and copies of as many earlier ones.
func (f *fleet) sendMore(t testing.TB, n int) {
	t.Helper()
	var all []*kgo.Record
	for p := range f.partitions {
		for range n {
			id := fmt.Sprintf("%d-%d", p, len(f.ids[p]))
			f.ids[p] = append(f.ids[p], id)
			all = append(all, f.event(p, id), f.event(p, f.ids[p][rand.IntN(len(f.ids[p]))]))
			f.sent[p] += 2
		}
	}
	f.Produce(t, all...)
}

// untilDone waits until the members have handled everything.
func (f *fleet) untilDone(t testing.TB, members ...*ship) {
	t.Helper()
	for p := range f.partitions {
		kafkatest.Until(t, fmt.Sprintf("partition %d to be handled", p), func() bool {
			for _, m := range members {
				if eng, err := m.Engine(f.position(p)); err == nil {
					if o, _, err := eng.Admin().Offset(context.Background(), f.position(p)); err == nil && o.Next >= f.sent[p] {
						return true
					}
				}
			}
			return false
		})
	}
}

// audit restores every changelog into an empty copy and fails the test unless each event took effect
// exactly once.
func (f *fleet) audit(t testing.TB) (lost, more int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	effects := make(map[string]uint64)
	for _, log := range f.logs.all {
		if _, end, _ := log.Bounds(ctx); end == 0 {
			continue
		}
		s, err := replica.Open(ctx, log, pebbleCopies(vfs.NewMem())("audit", 0, 0), replica.Options{})
		if err != nil {
			t.Fatal(err)
		}
		eng := openEngine(t, s, engine.Options{})
		for kv, err := range eng.Scan(ctx, engine.Range{Prefix: []byte("count/")}) {
			if err != nil {
				t.Fatal(err)
			}
			effects[string(kv.Key)] += binary.BigEndian.Uint64(kv.Value)
		}
	}
	for _, ids := range f.ids {
		for _, id := range ids {
			switch n := effects[string(countKey(id))]; {
			case n == 0:
				lost++
			case n > 1:
				more++
			}
		}
	}
	return lost, more
}

func (f *fleet) checkAudit(t testing.TB) {
	t.Helper()
	if lost, more := f.audit(t); lost+more > 0 {
		t.Errorf("%d events are lost, and %d took effect more than once", lost, more)
	}
}

var _ tenure.Logs = memberLogs{}

// A partition moves to a member that has nothing of it.
func TestMemberWithoutCopiesContinues(t *testing.T) {
	f := newFleet(t, 2)
	f.sendMore(t, 50)
	a := f.join(t, f.work(3, nil), vfs.NewMem())
	f.untilDone(t, a)
	a.stop(t)
	f.sendMore(t, 50)
	b := f.join(t, f.work(3, nil), vfs.NewMem())
	f.untilDone(t, b)
	b.stop(t)
	f.checkAudit(t)
	if got := b.metric(t, "records_total", "duplicate"); got == 0 {
		t.Error("no copy of an earlier event was found")
	}
}

// Without the log, each owner decides by what it has itself.
func TestMemberWithoutLogRepeatsEvents(t *testing.T) {
	f := newFleet(t, 2)
	f.logs.apart = true
	f.sendMore(t, 50)
	trusting := func(o *Options) {
		o.Recovery = Recovery{ErrForeignStore: TrustKafka, ErrEmptyStore: TrustKafka, ErrKafkaAhead: TrustKafka}
	}
	a := f.join(t, f.work(3, nil), vfs.NewMem(), trusting)
	f.untilDone(t, a)
	a.stop(t)
	f.sendMore(t, 50)
	b := f.join(t, f.work(3, nil), vfs.NewMem(), trusting)
	f.untilDone(t, b)
	b.stop(t)
	if _, more := f.audit(t); more == 0 {
		t.Error("no event took effect twice: the audit does not notice what it is for")
	}
}

// Members join, leave, are killed, lose their disks, and stand still until they were replaced.
func TestEventsTakeEffectOnceWhileMembersChange(t *testing.T) {
	f := newFleet(t, 4)
	rounds := 16
	if testing.Short() {
		rounds = 7
	}
	mode := f.work(3, nil)
	ships := []*ship{f.join(t, mode, vfs.NewMem())}
	join := func(disk vfs.FS) { ships = append(ships, f.join(t, mode, disk)) }
	oldest := func() (s *ship) {
		s, ships = ships[0], ships[1:]
		return s
	}
	kills := 0
	for round := range rounds {
		f.sendMore(t, 20)
		switch round % 4 {
		case 0:
			join(vfs.NewMem())
		case 1:
			join(vfs.NewMem())
			s := oldest()
			s.kill(t)
			if kills++; kills%3 == 0 {
				s.disk = vfs.NewMem()
			}
			join(s.disk)
		case 2: // it stands still, until others have its partitions
			s := oldest()
			s.valve.shut()
			f.sendMore(t, 20)
			f.untilDone(t, ships...)
			s.valve.reopen()
			ships = append(ships, s)
		case 3:
			s := oldest()
			s.stop(t)
		}
	}
	f.untilDone(t, ships...)
	for _, s := range ships {
		s.stop(t)
	}
	f.checkAudit(t)
}

// A member stands still in the middle of a batch until another one has its partition. When it wakes up, its
// batch is appended before the member learns anything, and has no effect.
func TestMemberThatWakesUpChangesNothing(t *testing.T) {
	f := newFleet(t, 1)
	asleep, woken := make(chan struct{}), make(chan struct{})
	var once sync.Once
	a := f.join(t, f.work(3, func(context.Context, *engine.Tx, *Record) error {
		once.Do(func() {
			close(asleep)
			<-woken
		})
		return nil
	}), vfs.NewMem(), func(o *Options) { // only its connections stand still
		o.Changelog.logs = memberLogs{&f.logs, newValve()}
	})
	f.sendMore(t, 10)
	kafkatest.Receive(t, asleep)
	a.valve.shut()
	b := f.join(t, f.work(3, nil), vfs.NewMem())
	f.untilDone(t, b)
	log := f.logs.log(b.shared.opt.Changelog.topic(f.group, f.topic), 0)
	_, before, _ := log.Bounds(context.Background())
	close(woken)
	a.counts(t, 1, "fenced_total")
	if _, after, _ := log.Bounds(context.Background()); after <= before {
		t.Error("the member that woke up appended nothing")
	}
	a.valve.reopen()
	f.sendMore(t, 10)
	f.untilDone(t, a, b)
	a.stop(t)
	b.stop(t)
	f.checkAudit(t)
}

// A member ends in time although its changelogs do not answer.
func TestMemberEndsWhileTheChangelogIsAway(t *testing.T) {
	f := newFleet(t, 1)
	away, began := newValve(), make(chan struct{}, 100)
	a := f.join(t, f.work(3, func(context.Context, *engine.Tx, *Record) error {
		began <- struct{}{}
		return nil
	}), vfs.NewMem(), func(o *Options) {
		o.DrainTimeout, o.shutdownTimeout = time.Second, time.Second
		o.Changelog.logs = memberLogs{&f.logs, away}
	})
	f.sendMore(t, 5)
	f.untilDone(t, a)
	for len(began) > 0 {
		<-began
	}
	away.shut()
	f.sendMore(t, 5)
	kafkatest.Receive(t, began)
	a.cancel()
	kafkatest.Receive(t, a.done)
	away.reopen()
	b := f.join(t, f.work(3, nil), vfs.NewMem())
	f.untilDone(t, b)
	b.stop(t)
	f.checkAudit(t)
}

// A changelog that was created again does not have what the group has handled.
func TestEmptyChangelogIsRefused(t *testing.T) {
	f := newFleet(t, 1)
	f.sendMore(t, 10)
	a := f.join(t, f.work(3, nil), vfs.NewMem())
	f.untilDone(t, a)
	a.stop(t)
	f.logs.mu.Lock()
	clear(f.logs.logs)
	f.logs.mu.Unlock()
	b := f.join(t, f.work(3, nil), vfs.NewMem(), func(o *Options) {
		o.Changelog.OnOwned = func(context.Context, engine.OffsetKey, *engine.Engine) {
			t.Error("OnOwned is called with a store that may not be used")
		}
	})
	if e := b.stoppedOne(t); e.Reason != "position" || !errors.Is(e, ErrForeignStore) {
		t.Errorf("the partition stops with %v", e)
	}
	b.stop(t)
}

// Another group has the same changelog: it stops, and its owner continues.
func TestChangelogOfAnotherGroupIsRefused(t *testing.T) {
	f := newFleet(t, 1)
	shared := func(o *Options) { o.Changelog.Topic = func(string) string { return "log" } }
	f.sendMore(t, 10)
	a := f.join(t, f.work(3, nil), vfs.NewMem(), shared)
	f.untilDone(t, a)
	b := f.join(t, f.work(3, nil), vfs.NewMem(), shared, func(o *Options) { o.Group += ".b" })
	if e := b.stoppedOne(t); !errors.Is(e, ErrChangelogShared) || e.Reason != "changelog" || !strings.Contains(e.Error(), fmt.Sprintf("%q", f.group)) || !strings.Contains(e.Error(), fmt.Sprintf("%q", f.group+".b")) {
		t.Errorf("the partition stops with %v", e)
	}
	f.sendMore(t, 10)
	f.untilDone(t, a)
	b.stop(t)
	a.stop(t)
	f.checkAudit(t)
}

func TestOptionsThatNeedOneStoreAreRefused(t *testing.T) {
	work := Transactional{Handle: ignore, MaxAttempts: 1}
	valid := func() Options {
		return Options{
			Group: "g", Client: []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")}, Changelog: &Changelog{Copies: pebbleCopies(vfs.NewMem())},
			Routes: []Route{{Topics: []string{"a"}, Mode: work, DeadLetters: &deadletter.Options{}}},
		}
	}
	o := valid()
	if _, err := New(nil, o); err != nil {
		t.Fatal(err)
	}
	for name, set := range map[string]func(*Options){
		"Pinned":      func(o *Options) { o.Membership = Pinned(0, 2) },
		"SharedScope": func(o *Options) { o.Routes[0].SharedScope = true },
		"Failed":      func(o *Options) { o.Routes[0].Policies = Policies{Failed: Process} },
		"two topics":  func(o *Options) { o.Routes[0].Topics = []string{"a", "b"} },
		"two routes": func(o *Options) {
			o.Routes = append(o.Routes, o.Routes[0])
			o.Routes[1].Topics = []string{"b"}
		},
		"ReopenStore": func(o *Options) {
			o.Routes[0].Mode, o.Routes[0].Policies = AtMostOnce(ignoreOwn), RejectUnclaimable()
			o.ReopenStore = func(context.Context) (*engine.Engine, error) { return nil, nil }
		},
	} {
		o := valid()
		set(&o)
		if _, err := New(nil, o); !errors.Is(err, ErrNotWithChangelog) || !errors.Is(err, ErrOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, set := range map[string]func(*Options){
		"Copies":      func(o *Options) { o.Changelog.Copies = nil },
		"Memory":      func(o *Options) { o.Changelog.Memory = -1 },
		"Replication": func(o *Options) { o.Changelog.Replication = -1 },
		"Topic":       func(o *Options) { o.Changelog.Topic = func(source string) string { return source } },
		"no engine":   func(o *Options) { o.Changelog = nil },
		"name":        func(o *Options) { o.Group = "g/h" },
		"dead letters": func(o *Options) {
			o.Changelog.Topic = func(source string) string { return o.Routes[0].DeadLetters.TopicOf(source) }
		},
		"two sources": func(o *Options) {
			o.Routes[0].Topics, o.Routes[0].Identify.PerTopic = []string{"a", "b"}, true
			o.Changelog.Topic = func(string) string { return "log" }
		},
		"another source": func(o *Options) {
			o.Routes[0].Topics, o.Routes[0].Identify.PerTopic = []string{"a", "b"}, true
			o.Changelog.Topic = func(source string) string { return map[string]string{"a": "b", "b": "c"}[source] }
		},
	} {
		o := valid()
		set(&o)
		if _, err := New(nil, o); !errors.Is(err, ErrOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	o = valid()
	if _, err := New(openEngine(t, inMemory(t), engine.Options{}), o); !errors.Is(err, ErrOption) {
		t.Errorf("an engine and a changelog: %v", err)
	}
	o = valid()
	o.Routes[0].Topics, o.Routes[0].Identify.PerTopic = []string{"a", "b"}, true
	if _, err := New(nil, o); err != nil {
		t.Errorf("ids of each topic: %v", err)
	}
}
