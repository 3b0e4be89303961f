package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/listener"
	"github.com/hapax-dev/hapax/outbox"
	"github.com/hapax-dev/hapax/telemetry"
)

// A standstill makes something stand still that docs/failures.md lists in "What may stand still". It calls see
// while it stands, and lets it continue.
type standstill struct {
	failure string   // the first cell of the row
	says    []string // errors and texts that the error (or the line of a relay) has, by the row's second cell
	provoke func(t *testing.T, see func(*witness))
}

var standstills = []standstill{
	{"no broker has answered since the start", []string{"ErrDisconnected"}, func(t *testing.T, see func(*witness)) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		doesNotConnect(t, see, "connection refused", kgo.SeedBrokers(l.Addr().String()))
	}},
	{"no broker has answered since the start", []string{"ErrDisconnected"}, func(t *testing.T, see func(*witness)) {
		doesNotConnect(t, see, "check whether TLS and SASL", kgo.SeedBrokers(closedCluster(t).ListenAddrs()...))
	}},
	{"the brokers refuse the authentication", []string{"ErrDisconnected"}, func(t *testing.T, see func(*witness)) {
		doesNotConnect(t, see, "check user, password", kgo.SeedBrokers(closedCluster(t).ListenAddrs()...), wrongPassword)
	}},
	{"the connection was lost", []string{"ErrDisconnected"}, connectionIsLost},
	{"the consumer has not joined its group", []string{"it has not joined the group"}, func(t *testing.T, see func(*witness)) {
		r := newRig(t, 1)
		r.send(t, 0, "a")
		h := r.Cluster(t).Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Err: kerr.CoordinatorLoadInProgress, Count: -1})
		r.standsUntil(t, see, h.Remove, r.work(1, nil))
	}},
	{"the group's offsets cannot be fetched: the coordinator loads them, or a transaction is open",
		[]string{"offsets of 1 new partitions cannot be fetched"}, offsetsAre(kerr.UnstableOffsetCommit)},
	{"the group's offsets cannot be fetched: the coordinator loads them, or a transaction is open",
		[]string{"offsets of 1 new partitions cannot be fetched"}, offsetsAre(kerr.CoordinatorLoadInProgress)},
	{"a topic does not exist, or may not be read", []string{"topic NAME cannot be consumed"}, func(t *testing.T, see func(*witness)) {
		r := newRig(t, 1)
		w := newWitness()
		m := r.start(t, AtMostOnce(func(context.Context, *Record) error { return nil }), soon, w.options,
			func(o *Options) { o.Routes[0].Topics = append(o.Routes[0].Topics, "NAME") })
		see(w.of(m))
		m.stop(t)
	}},
	{"the relay has no connection, or the brokers refuse its authentication", []string{"outbox: no connection to Kafka"}, relayHasNoConnection},
	{"a handler does not return", []string{"ErrNoProgress", "handler"}, func(t *testing.T, see func(*witness)) { handlerHangs(t, see, false) }},
	{"a copy of an event is in flight elsewhere", []string{"ErrNoProgress", "in_flight"}, func(t *testing.T, see func(*witness)) { handlerHangs(t, see, true) }},
	{"the broker has records and does not send them", []string{"ErrNoProgress", "ErrSilent"}, brokerIsSilent},
	{"a batch conflicts again and again", []string{"ErrSelfConflict"}, handlerConflictsWithItself},
	{"a record fails again and again", []string{"ErrNoProgress", "failing"}, func(t *testing.T, see func(*witness)) {
		r := newRig(t, 1)
		r.send(t, 0, "a")
		end := make(chan struct{})
		r.standsUntil(t, see, func() { close(end) }, r.work(1e6, func(context.Context, *engine.Tx, *Record) error {
			select {
			case <-end:
				return nil
			default:
				return errHandler
			}
		}))
	}},
	{"a batch is not committed", []string{"ErrNoProgress", "commit"}, func(t *testing.T, see func(*witness)) {
		r := newRig(t, 1)
		w := newWitness()
		m := r.start(t, r.work(1, nil), soon, w.options)
		m.untilReady(t)
		r.mem.HoldSyncs()
		r.send(t, 0, "a")
		see(w.of(m))
		r.mem.ReleaseSyncs()
		r.untilStored(t, 0, 1)
		m.untilReady(t)
		m.stop(t)
	}},
	{"partitions were lost, and the member has not joined its group again", []string{"it has not joined the group"}, func(t *testing.T, see func(*witness)) {
		r := newRig(t, 1)
		r.send(t, 0, "a")
		w := newWitness()
		m := r.start(t, r.work(1, nil), soon, w.options)
		r.untilStored(t, 0, 1)
		h := r.Cluster(t).Fault(
			kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.UnknownMemberID, Count: -1},
			kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Err: kerr.CoordinatorLoadInProgress, Count: -1})
		see(w.of(m))
		h.Remove()
		r.send(t, 0, "b")
		r.untilStored(t, 0, 2)
		m.untilReady(t)
		m.stop(t)
	}},
	{"the store does not answer a listener", []string{"listener.ErrStalled", "listener: a delivery has not returned"}, func(t *testing.T, see func(*witness)) {
		synctest.Test(t, func(t *testing.T) { deliveryStands(t, see, true) })
	}},
	{"a listener's handler does not return", []string{"listener.ErrInProgress", "listener: a delivery has not returned"}, func(t *testing.T, see func(*witness)) {
		synctest.Test(t, func(t *testing.T) { deliveryStands(t, see, false) })
	}},
}

// TestWhatStandsStillIsReported walks the list of docs/failures.md: each row is made to stand still, and reported in
// the four ways that the row names, as long as it stands.
func TestWhatStandsStillIsReported(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	rows, alerts := promises(t), alertRules(t)
	for failure := range rows {
		if !slices.ContainsFunc(standstills, func(s standstill) bool { return s.failure == failure }) {
			t.Errorf("nothing makes it stand still: %s", failure)
		}
	}
	for _, s := range standstills {
		t.Run(s.failure, func(t *testing.T) {
			t.Parallel()
			row, ok := rows[s.failure]
			if !ok {
				t.Fatal("docs/failures.md has no such row")
			}
			for _, text := range s.says {
				if !strings.Contains(row.says, text) {
					t.Errorf("the row does not say %q: %s", text, row.says)
				}
			}
			seen := false
			s.provoke(t, func(w *witness) {
				seen = true
				w.untilComplete(t, s.says, func(o observation) []string { return row.missing(s.says, o, alerts) })
			})
			if !seen {
				t.Error("it was not looked at")
			}
		})
	}
}

// A promise is a row of the page.
type promise struct {
	says   string
	gauge  selector
	alerts []string
}

// promises returns the rows by their first cells.
func promises(t *testing.T) map[string]promise {
	t.Helper()
	_, page, _ := strings.Cut(readFile(t, "../docs/failures.md"), "## What may stand still\n")
	page, _, _ = strings.Cut(page, "\n## ")
	rows := make(map[string]promise)
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 4 || strings.HasPrefix(line, "| failure") {
			continue
		}
		gauges := selectors(cells[2])
		if len(gauges) != 1 {
			t.Fatalf("not one gauge: %s", line)
		}
		rows[strings.TrimSpace(cells[0])] = promise{cells[1], gauges[0], strings.Split(strings.TrimSpace(cells[3]), ", ")}
	}
	if len(rows) < 10 {
		t.Fatalf("%d rows", len(rows))
	}
	return rows
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// An alert is the part of an expression that the test evaluates.
type alert struct {
	series selector
	equals float64 // -1: the value is compared with a limit above 0 that it reaches in time
}

var (
	alertRule = regexp.MustCompile(`- alert: (\w+)\n\s+expr: (.+)\n`)
	equality  = regexp.MustCompile(` == ([0-9]+)$`)
)

func alertRules(t *testing.T) map[string]alert {
	t.Helper()
	rules := make(map[string]alert)
	for _, m := range alertRule.FindAllStringSubmatch(readFile(t, "../docs/monitoring/alerts.yaml"), -1) {
		a := alert{equals: -1}
		if s := selectors(m[2]); len(s) > 0 {
			a.series = s[0]
		}
		if e := equality.FindStringSubmatch(m[2]); e != nil {
			a.equals, _ = strconv.ParseFloat(e[1], 64)
		}
		rules[m[1]] = a
	}
	return rules
}

// A selector selects series.
type selector struct {
	name     string
	matchers [][3]string // label, operator, value
}

var (
	selectorText = regexp.MustCompile(`(dedup_\w+)(?:\{([^}]*)\})?`)
	matcherText  = regexp.MustCompile(`(\w+)(=~|!=|=)"([^"]*)"`)
)

func selectors(text string) (all []selector) {
	for _, m := range selectorText.FindAllStringSubmatch(text, -1) {
		s := selector{name: m[1]}
		for _, l := range matcherText.FindAllStringSubmatch(m[2], -1) {
			s.matchers = append(s.matchers, [3]string{l[1], l[2], l[3]})
		}
		all = append(all, s)
	}
	return all
}

// values returns the values of the series that are selected.
func (s *selector) values(families []*dto.MetricFamily) (values []float64) {
	for _, f := range families {
		if f.GetName() != s.name {
			continue
		}
		for _, m := range f.GetMetric() {
			if s.selects(m) {
				values = append(values, m.GetGauge().GetValue()+m.GetCounter().GetValue())
			}
		}
	}
	return values
}

func (s *selector) selects(m *dto.Metric) bool {
	for _, x := range s.matchers {
		has := ""
		for _, l := range m.GetLabel() {
			if l.GetName() == x[0] {
				has = l.GetValue()
			}
		}
		ok := has == x[2]
		switch x[1] {
		case "!=":
			ok = !ok
		case "=~":
			ok = slices.Contains(strings.Split(x[2], "|"), has)
		}
		if !ok {
			return false
		}
	}
	return true
}

// An observation is what an operator sees.
type observation struct {
	err     error // nil: there is none, the line has it
	lines   []string
	metrics []*dto.MetricFamily
}

var namedErrors = map[string]error{
	"ErrDisconnected": ErrDisconnected, "ErrNoProgress": ErrNoProgress, "ErrSilent": ErrSilent, "ErrSelfConflict": ErrSelfConflict,
	"listener.ErrStalled": listener.ErrStalled, "listener.ErrInProgress": listener.ErrInProgress,
}

// missing returns which of the four ways in which the row is reported are missing.
func (p *promise) missing(says []string, o observation, alerts map[string]alert) (missing []string) {
	for _, text := range says {
		if e, ok := namedErrors[text]; ok && !errors.Is(o.err, e) {
			missing = append(missing, fmt.Sprintf("the error is not %s: %v", text, o.err))
		} else if !ok && !isLine(text) && !strings.Contains(fmt.Sprint(o.err), text) {
			missing = append(missing, fmt.Sprintf("the error does not say %q: %v", text, o.err))
		}
	}
	if len(telling(says, o.lines)) == 0 {
		missing = append(missing, fmt.Sprintf("no line at warn or above says %q", says))
	}
	reports := func(v float64) bool { return (v == 0) == strings.HasSuffix(p.gauge.name, "_ready") }
	if !slices.ContainsFunc(p.gauge.values(o.metrics), reports) {
		missing = append(missing, fmt.Sprintf("the gauge %v does not report it", p.gauge))
	}
	for _, name := range p.alerts {
		a, ok := alerts[name]
		fires := func(v float64) bool { return ok && (v == a.equals || a.equals < 0 && v > 0) }
		if !slices.ContainsFunc(a.series.values(o.metrics), fires) {
			missing = append(missing, fmt.Sprintf("the alert %s does not fire: %v", name, a))
		}
	}
	return missing
}

// isLine reports whether a text is that of a line, and of no error.
func isLine(text string) bool {
	return strings.HasPrefix(text, "outbox: ") || strings.HasPrefix(text, "listener: ")
}

// telling returns the lines that say all of it. The error of a delivery is its caller's.
func telling(says, lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		return slices.ContainsFunc(says, func(text string) bool {
			if e := namedErrors[text]; e != nil {
				text = e.Error()
				if strings.HasPrefix(text, "hapax: listener: ") {
					return false
				}
			}
			return !strings.Contains(line, text)
		})
	})
}

// Each of the four ways is missed if it is not there.
func TestEachMissingReportIsNoticed(t *testing.T) {
	reg := prometheus.NewRegistry()
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "dedup_kafka_partition_stopped"}, []string{"reason"})
	reg.MustRegister(gauge)
	row, alerts := promises(t)["a record fails again and again"], alertRules(t)
	full := func() observation {
		gauge.Reset()
		gauge.WithLabelValues("failing").Set(1)
		metrics, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		e := fmt.Errorf("%w: failing", ErrNoProgress)
		return observation{e, []string{e.Error()}, metrics}
	}
	for name, c := range map[string]struct {
		change func(*observation, *promise)
		want   int
	}{
		"nothing is missing":     {func(*observation, *promise) {}, 0},
		"no error":               {func(o *observation, _ *promise) { o.err = nil }, 2},
		"an error of another":    {func(o *observation, _ *promise) { o.err = fmt.Errorf("%w: handler", ErrNoProgress) }, 1},
		"no line":                {func(o *observation, _ *promise) { o.lines = nil }, 1},
		"a line of another":      {func(o *observation, _ *promise) { o.lines = []string{ErrNoProgress.Error()} }, 1},
		"no gauge, and no alert": {func(o *observation, _ *promise) { o.metrics = nil }, 2},
		"a gauge of 0": {func(o *observation, _ *promise) {
			gauge.WithLabelValues("failing").Set(0)
			o.metrics, _ = reg.Gather()
		}, 2},
		"another gauge": {func(o *observation, _ *promise) {
			gauge.Reset()
			gauge.WithLabelValues("handler").Set(1)
			o.metrics, _ = reg.Gather()
		}, 1},
		"an alert that reads another gauge": {func(_ *observation, row *promise) { row.alerts = []string{"HapaxOutboxDisconnected"} }, 1},
		"an alert that does not exist":      {func(_ *observation, row *promise) { row.alerts = []string{"HapaxNothing"} }, 1},
	} {
		o := full()
		row := row
		c.change(&o, &row)
		if missing := row.missing([]string{"ErrNoProgress", "failing"}, o, alerts); len(missing) != c.want {
			t.Errorf("%s: %q, want %d", name, missing, c.want)
		}
	}
}

// A witness sees what an operator sees of a consumer, a relay or a listener.
type witness struct {
	err  func() error
	reg  *prometheus.Registry
	tick time.Duration // the interval in which it is checked whether something stands still

	mu    sync.Mutex
	lines []string
}

func newWitness() *witness {
	return &witness{err: func() error { return nil }, reg: prometheus.NewRegistry(), tick: silenceInTests / 4}
}

const silenceInTests = 200 * time.Millisecond

func soon(o *Options) { o.SilenceTimeout = silenceInTests }

// Enabled, Handle, WithAttrs and WithGroup implement slog.Handler.
func (w *witness) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

func (w *witness) Handle(ctx context.Context, r slog.Record) error {
	var b strings.Builder
	h := slog.NewTextHandler(&b, nil)
	r.Time = time.Time{}
	if err := h.Handle(ctx, r); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, b.String())
	return nil
}

func (w *witness) WithAttrs([]slog.Attr) slog.Handler { return w }
func (w *witness) WithGroup(string) slog.Handler      { return w }

func (w *witness) telemetry() telemetry.Options {
	return telemetry.Options{Logger: slog.New(w), Registerer: w.reg}
}

// options makes the witness see a consumer.
func (w *witness) options(o *Options) {
	inner := o.Telemetry.Logger.Handler()
	o.Telemetry.Logger = slog.New(slog.NewMultiHandler(inner, w))
}

func (w *witness) of(m *member) *witness {
	w.err, w.reg = m.Ready, m.reg
	return w
}

func (w *witness) observe(t *testing.T) observation {
	t.Helper()
	metrics, err := w.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return observation{w.err(), slices.Clone(w.lines), metrics}
}

// untilComplete waits until nothing is missing. That is still so when it was checked some times more whether it stands
// still, and no line was repeated meanwhile, because a minute has not passed.
func (w *witness) untilComplete(t *testing.T, says []string, missing func(observation) []string) {
	t.Helper()
	began := time.Now()
	var last []string
	defer func() {
		if len(last) > 0 {
			t.Errorf("missing: %q", last)
		}
	}()
	complete := func() bool {
		last = missing(w.observe(t))
		return len(last) == 0
	}
	kafkatest.Until(t, "all reports", complete)
	more := time.NewTicker(w.tick)
	defer more.Stop()
	before, wasError := len(w.observe(t).lines), w.err() != nil
	for range 5 {
		<-more.C
		if err := w.err(); wasError && err == nil {
			t.Error("there is no error any more")
		}
	}
	kafkatest.Until(t, "all reports again", complete) // a member joins its group again and again, for example
	o := w.observe(t)
	counts := make(map[string]int)
	for _, line := range telling(says, o.lines[before:]) {
		text := message.FindString(line)
		if counts[text]++; counts[text] > 1+int(time.Since(began)/logEvery) {
			t.Errorf("%d lines: %s", counts[text], line)
		}
	}
}

var message = regexp.MustCompile(`msg=("[^"]*"|\S+)`)

func (m *member) untilReady(t *testing.T) {
	t.Helper()
	kafkatest.Until(t, "ready", func() bool { return m.Ready() == nil })
	m.counts(t, 1, "ready")
	m.counts(t, 0, "partition_stopped")
}

// standsUntil starts a consumer that stands still before the record at offset 0 until end is called.
func (r *rig) standsUntil(t *testing.T, see func(*witness), end func(), mode Mode, change ...func(*Options)) {
	t.Helper()
	w := newWitness()
	m := r.start(t, mode, append(change, soon, w.options)...)
	see(w.of(m))
	end()
	r.untilStored(t, 0, 1)
	m.untilReady(t)
	m.stop(t)
}

// closedCluster wants a password.
func closedCluster(t *testing.T) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("PLAIN", "user", "right"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

var wrongPassword = kgo.SASL(plain.Auth{User: "user", Pass: "wrong"}.AsMechanism())

func doesNotConnect(t *testing.T, see func(*witness), text string, o ...kgo.Opt) {
	t.Helper()
	r := newRig(t, 1)
	w := newWitness()
	m := r.start(t, r.work(1, nil), soon, w.options, func(opt *Options) { opt.Client = append(opt.Client, o...) })
	see(w.of(m))
	if err := m.Ready(); !strings.Contains(err.Error(), text) || len(telling([]string{text}, w.observe(t).lines)) == 0 {
		t.Errorf("the cause %q is missing: %v", text, err)
	}
	m.counts(t, 1, "connection") // one state
	m.stop(t)
}

func connectionIsLost(t *testing.T, see func(*witness)) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	wire, w := newCuttable(), newWitness()
	m := r.start(t, r.work(1, nil), soon, wire.options, w.options)
	r.untilStored(t, 0, 1)
	m.untilReady(t)
	m.counts(t, 1, "connection", "connected")
	wire.cut()
	see(w.of(m))
	if err := m.Ready(); !strings.Contains(err.Error(), "no way there") {
		t.Errorf("the cause is missing: %v", err)
	}
	wire.up.Store(true)
	m.untilReady(t)
	m.counts(t, 1, "connection", "connected")
	m.stop(t)
}

func offsetsAre(failure *kerr.Error) func(*testing.T, func(*witness)) {
	return func(t *testing.T, see func(*witness)) {
		r := newRig(t, 1)
		r.send(t, 0, "a")
		h := r.Cluster(t).Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Err: failure, Count: -1})
		r.standsUntil(t, see, h.Remove, r.work(1, nil))
	}
}

func relayHasNoConnection(t *testing.T, see func(*witness)) {
	w, eng := newWitness(), openEngine(t, inMemory(t), engine.Options{})
	w.tick = time.Second
	relay, err := outbox.New(eng, outbox.Options{Client: []kgo.Opt{kgo.SeedBrokers(closedCluster(t).ListenAddrs()...), wrongPassword}, Telemetry: w.telemetry()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	err = eng.Update(ctx, func(tx *engine.Tx) error {
		_, err := tx.Produce(engine.Message{Topic: "out", Value: []byte("message")})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	see(w)
	cancel()
	if err := kafkatest.Receive(t, done); err != nil {
		t.Errorf("Run: %v", err)
	}
}

// A handler hangs, and one of another partition waits for its event.
func handlerHangs(t *testing.T, see func(*witness), lookAtTheCopy bool) {
	r := newRig(t, 2)
	mode, began, release, _ := r.stuck("a")
	w := newWitness()
	m := r.start(t, mode, soon, w.options)
	r.send(t, 0, "a")
	kafkatest.Receive(t, began)
	if lookAtTheCopy {
		r.send(t, 1, "a")
	}
	see(w.of(m))
	close(release)
	r.untilStored(t, 0, 1)
	if lookAtTheCopy {
		r.untilStored(t, 1, 1)
	}
	m.untilReady(t)
	m.stop(t)
}

// The client retries errors of a broker's disk silently.
func brokerIsSilent(t *testing.T, see func(*witness)) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	w := newWitness()
	m := r.start(t, r.work(1, nil), impatient, rarely, w.options) // its checks do not depend on commits
	r.untilStored(t, 0, 1)
	h := r.Cluster(t).Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: r.topic, Err: kerr.KafkaStorageError, Count: -1})
	r.send(t, 0, numbered("b", 100)...)
	see(w.of(m))
	m.counts(t, 100, "lag_records")
	h.Remove()
	r.untilStored(t, 0, 101)
	kafkatest.Until(t, "the end of the silence", func() bool { return len(m.Stopped()) == 0 && m.metric(t, "lag_records") == 0 })
	m.stop(t)
	if !m.logs.has("partition continues") {
		t.Errorf("it is not logged that the partition continues:\n%s", m.logs)
	}
}

func handlerConflictsWithItself(t *testing.T, see func(*witness)) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b\n", "c")
	end := make(chan struct{})
	var calls, before atomic.Int64
	w := newWitness()
	m := r.start(t, r.work(1, func(ctx context.Context, tx *engine.Tx, rec *Record) error {
		select {
		case <-end:
			return nil
		default:
		}
		if string(rec.Event.ID) != "b\n" {
			return nil
		}
		calls.Add(1)
		return r.eng.Update(ctx, func(outside *engine.Tx) error { return outside.Put(countKey(string(rec.Event.ID)), []byte{1}) })
	}), soon, w.options, func(o *Options) {
		stopped := o.OnStop
		o.OnStop = func(e *StopError) { before.CompareAndSwap(0, calls.Load()); stopped(e) }
	})
	e := m.stoppedOne(t)
	conflict, ok := errors.AsType[*engine.ConflictError](e)
	if e.Reason != "conflict" || !errors.Is(e, ErrSelfConflict) || !ok || string(conflict.Key) != string(countKey("b\n")) {
		t.Errorf("stopped: %v", e)
	}
	if text := e.Error(); !strings.Contains(text, `b\n`) || strings.Contains(text, "\n") || !strings.Contains(text, "offset 1") {
		t.Errorf("the error names neither key nor offset, or is no single line: %s", text)
	}
	if n := before.Load(); n > 25 {
		t.Errorf("it stopped after %d calls", n)
	}
	see(w.of(m))
	r.untilStored(t, 0, 1) // the record before it
	if n := r.letterCount(t); n != 0 {
		t.Errorf("%d dead letters of a conflict", n)
	}
	close(end)
	r.untilStored(t, 0, 3)
	m.untilReady(t)
	m.stop(t)
}

// A delivery stands still, and another one returns.
func deliveryStands(t *testing.T, see func(*witness), inStore bool) {
	mem := storetest.NewMem(storage.Identity{})
	eng := openEngine(t, mem, engine.Options{})
	w := newWitness()
	w.tick = time.Second
	release := make(chan struct{})
	f, err := listener.Wrap(eng, func(context.Context, string) error { <-release; return nil },
		listener.Options[string]{ID: func(id string) string { return id }, Lease: 2 * time.Minute, Telemetry: w.telemetry()})
	if err != nil {
		t.Fatal(err)
	}
	if inStore {
		mem.HoldSyncs()
	}
	var all sync.WaitGroup
	returned := make(chan error, 2)
	deliver := func(id string) { all.Go(func() { returned <- f(context.Background(), id) }) }
	deliver("a")
	time.Sleep(time.Minute)
	if inStore {
		deliver("b")
	} else {
		deliver("a")
	}
	time.Sleep(time.Minute + time.Second)
	err = <-returned // the other one waits
	w.err = func() error { return err }
	see(w)
	mem.ReleaseSyncs()
	close(release)
	all.Wait()
	if err := eng.Close(); err != nil {
		t.Error(err)
	}
}

// A handler takes longer than the longest turn, and another partition changes its key all the time. It commits
// after a few calls, and the other partition continues.
func TestLongHandlerCommitsAlthoughAnotherPartitionSharesItsKey(t *testing.T) {
	r := newRig(t, 2)
	shared := []byte("shared")
	change := func(tx *engine.Tx) error {
		_, _, err := tx.Get(shared)
		return errors.Join(err, tx.Put(shared, nil))
	}
	var calls atomic.Int64
	committed := make(chan struct{}) // by the other partition, since the call began
	m := r.start(t, r.work(1, func(_ context.Context, tx *engine.Tx, rec *Record) error {
		if string(rec.Event.ID) != "long" {
			select {
			case committed <- struct{}{}: // those before it have committed
			default:
			}
			return change(tx)
		}
		calls.Add(1)
		err := change(tx)
		for range 2 {
			select {
			case <-committed:
			case <-time.After(500 * time.Millisecond): // the others wait; their longest turn is 16 ms
			}
		}
		return err
	}), func(o *Options) { o.batchTime, o.MaxBatch = time.Millisecond, 1 })
	r.send(t, 0, "long")
	sent := 0
	kafkatest.Until(t, "the long handler's commit", func() bool {
		r.send(t, 1, numbered("short"+strconv.Itoa(sent)+"-", 50)...)
		sent += 50
		return r.effects(t, "long") == 1 || calls.Load() > 20
	})
	if n := calls.Load(); n > 8 {
		t.Errorf("it was called %d times", n)
	}
	r.untilStored(t, 1, int64(sent))
	m.stop(t)
}
