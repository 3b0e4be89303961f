package outbox

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/entry"
)

// A model is an outbox with a relay that makes one batch at a time, with the expected state.
type model struct {
	*rapid.T
	rig     *rig
	session *session // nil: no relay has the lease
	options Options

	sent    map[string]*sentMessage
	order   []*sentMessage // as committed
	checked int            // records of the broker's log
	failing map[string]error
	thefts  int
}

type sentMessage struct {
	id, key string
	delayed bool
	count   int  // how often it was published
	loose   bool // it was parked at some time: its order is not kept
}

func (m *model) relay() *Relay {
	r, err := New(m.rig.eng, m.options)
	if err != nil {
		m.Fatal(err)
	}
	r.shared.dial = func(...kgo.Opt) (client, error) { return &fakeClient{b: m.rig.broker}, nil }
	return r
}

// begin takes the lease after the previous one has expired.
func (m *model) begin() {
	r := m.relay()
	for {
		left, err := r.shared.lease.take(ctx, m.rig.eng)
		if err != nil {
			m.Fatal(err)
		}
		if left == 0 {
			break
		}
		m.rig.clock.advance(left)
	}
	m.session = &session{connection: connection{shared: r.shared}, queue: newQueue(r.shared)}
	if err := m.session.queue.load(ctx, nil); err != nil {
		m.Fatal(err)
	}
	if m.options.ExactlyOnce != nil {
		m.session.connection.progress = &progress{topic: "progress", store: "store"}
	}
}

// step makes one batch.
func (m *model) step() {
	if m.session == nil {
		m.begin()
	}
	s := m.session
	err := s.connection.shared.lease.ensure(s.connection.shared.eng, s.connection.shared.opt.Batch.Time)
	var w *work
	if err == nil {
		w, err = s.queue.collect(ctx, m.rig.clock.Now().UnixMilli(), s.connection.shared.opt.Batch)
	}
	if err == nil && len(w.items)+len(w.hold) > 0 {
		if err = s.connection.connect(); err == nil {
			err = s.batch(ctx, w)
		}
	}
	if errors.Is(err, errLeaseLost) {
		m.session, err = nil, nil
	}
	if err != nil {
		m.Fatal(err)
	}
	m.check()
}

// check checks the records published since the last call.
func (m *model) check() {
	for _, id := range m.rig.broker.ids()[m.checked:] {
		m.checked++
		s, committed := m.sent[id]
		if !committed {
			m.Fatalf("%s was published and never committed", id)
		}
		s.count++
		if s.count > 1+m.thefts {
			m.Fatalf("%s was published %d times, the lease was lost %d times", id, s.count, m.thefts)
		}
		if s.count > 1 || s.delayed || s.loose {
			continue
		}
		for _, before := range m.order {
			if before == s {
				break
			}
			if before.key != "" && before.key == s.key && !before.delayed && !before.loose && before.count == 0 {
				m.Fatalf("%s was published before %s, which has the same key and was committed earlier", id, before.id)
			}
		}
	}
	size := uint64(0)
	for _, e := range entries(m.rig.t, m.rig.eng, entry.ParkedPrefix) {
		m.sent[e.ID].loose = true
		size += e.Bytes()
	}
	for _, prefix := range prefixes {
		for _, e := range entries(m.rig.t, m.rig.eng, prefix) {
			size += e.Bytes()
		}
	}
	if s, err := m.rig.eng.Stats(); s.OutboxBytes != size || err != nil {
		m.Fatalf("the size of the outbox is %d bytes, its entries have %d, %v", s.OutboxBytes, size, err)
	}
}

func (m *model) produce() {
	var batch []*sentMessage
	n := rapid.IntRange(1, 5).Draw(m.T, "messages")
	err := m.rig.eng.Update(ctx, func(tx *engine.Tx) error {
		for range n {
			s := &sentMessage{id: fmt.Sprint("m", len(m.sent)), key: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(m.T, "key")}
			var due time.Time
			if s.delayed = rapid.IntRange(0, 4).Draw(m.T, "delayed") == 0; s.delayed {
				due = m.rig.clock.Now().Add(time.Duration(rapid.IntRange(1, 60).Draw(m.T, "due in")) * time.Second)
			}
			if _, err := tx.Produce(engine.Message{ID: s.id, Topic: "out", OrderingKey: []byte(s.key), Due: due}); err != nil {
				return err
			}
			m.sent[s.id] = s
			batch = append(batch, s)
		}
		return nil
	})
	if err != nil {
		m.Fatal(err)
	}
	m.order = append(m.order, batch...)
}

func (m *model) fail() {
	clear(m.failing)
	for id := range m.sent {
		switch rapid.IntRange(0, 5).Draw(m.T, id) {
		case 0:
			m.failing[id] = kerr.InvalidRecord
		case 1:
			m.failing[id] = errDown
		}
	}
}

func (m *model) crash() {
	old := m.rig.eng
	m.rig.mem = m.rig.mem.CrashClone(0)
	m.rig.eng = openEngine(m.rig.t, m.rig.mem, m.rig.clock)
	m.session = nil
	if err := old.Close(); err != nil {
		m.Fatal(err)
	}
}

func (m *model) drain() {
	clear(m.failing)
	r := m.relay()
	for range 1000 {
		if _, err := r.RedriveAll(ctx); err != nil {
			m.Fatal(err)
		}
		m.step()
		if pending(m.rig.t, m.rig.eng) == 0 && len(entries(m.rig.t, m.rig.eng, entry.ParkedPrefix)) == 0 {
			break
		}
		m.rig.clock.advance(time.Minute)
	}
	for _, s := range m.order {
		if s.count == 0 {
			m.Fatalf("%s is lost", s.id)
		}
	}
	f, err := r.shared.figures(ctx)
	if err != nil || f.pending != 0 || f.parked != 0 || f.due != 0 {
		m.Fatalf("%+v %v", f, err)
	}
}

func TestModelOfTheRelay(t *testing.T) { testModel(t, nil) }
func TestModelOfTheExactlyOnceRelay(t *testing.T) {
	testModel(t, &ExactlyOnce{ProgressTopic: "progress"})
}

func testModel(t *testing.T, exactlyOnce *ExactlyOnce) {
	rapid.Check(t, func(rt *rapid.T) {
		r := &rig{t: t, mem: storetest.NewMem(storage.Identity{}), clock: newFakeClock(), broker: newFakeBroker()}
		r.eng = openEngine(t, r.mem, r.clock)
		m := &model{
			T: rt, rig: r, sent: map[string]*sentMessage{}, failing: map[string]error{},
			options: Options{
				Client: []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")}, Clock: r.clock, Telemetry: quiet(), ExactlyOnce: exactlyOnce,
				Batch: Batch{Entries: 4}, Retry: Retry{Attempts: rapid.IntRange(1, 2).Draw(rt, "attempts"), Max: time.Minute},
			},
		}
		r.broker.setAnswer(func(rec *kgo.Record, _ int) error { return m.failing[idOf(rec)] })
		rt.Repeat(map[string]func(*rapid.T){
			"produce": func(*rapid.T) { m.produce() },
			"fail":    func(*rapid.T) { m.fail() },
			"heal":    func(*rapid.T) { clear(m.failing) },
			"step":    func(*rapid.T) { m.step() },
			"steps": func(*rapid.T) {
				for range 5 {
					m.step()
				}
			},
			"advance": func(*rapid.T) {
				r.clock.advance(time.Duration(rapid.IntRange(0, 20).Draw(rt, "seconds")) * time.Second)
			},
			"crash": func(*rapid.T) { m.crash() },
			"theft": func(*rapid.T) {
				m.thefts++
				r.steal(r.clock.Now())
			},
			"redrive": func(*rapid.T) {
				if _, err := m.relay().RedriveAll(ctx); err != nil {
					rt.Fatal(err)
				}
			},
		})
		m.drain()
		if err := r.eng.Close(); err != nil {
			rt.Fatal(err)
		}
	})
}
