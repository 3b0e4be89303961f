package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/bench/internal/runner"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/correlation"
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/idempotency"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
	"github.com/hapax-dev/hapax/outbox"
	"github.com/hapax-dev/hapax/telemetry"
	"github.com/hapax-dev/hapax/versions"
)

// A serviceState is the progress of a process: the next offsets of the partitions of events and
// changes, and the number of unpublished messages.
type serviceState struct {
	Next    [2 * layersPartitions]int64
	Pending float64
}

// drained reports whether all records below these ends are processed.
func (s *serviceState) drained(ends []int64) bool {
	for i, end := range ends {
		if s.Next[i] < end {
			return false
		}
	}
	return s.Pending == 0
}

// The partitions of each topic, the group and the table of the process, and what its store keeps.
const (
	layersPartitions = 4
	layersGroup      = "layers"
	layersTable      = "rows"
	layersTenant     = "bench"
	layersWindow     = 24 * time.Hour
	layersWeeks      = 5 // an idempotency key needs four
)

// The kinds of messages.
const (
	ofRequest = iota
	ofEvent
)

// A change is one version of a row.
type change struct {
	row, version uint64
	payload      string
}

// changeOf returns the change of a row with an index. Versions are in no order, so that an older one
// often comes last.
func changeOf(seed, row, index uint64) change {
	version := 1 + traffic.Mix(seed^traffic.Mix(row<<20^index))>>24
	return change{row, version, strconv.FormatUint(traffic.Mix(version), 36)}
}

func (c *change) record(topic string) *kgo.Record {
	return &kgo.Record{Topic: topic, Key: strconv.AppendUint(nil, c.row, 10), Value: fmt.Appendf(nil, "%d %d %s", c.row, c.version, c.payload)}
}

func parseChange(value []byte, limit uint64) (c change, err error) {
	if _, err = fmt.Sscan(string(value), &c.row, &c.version, &c.payload); err == nil && c.row >= limit {
		err = fmt.Errorf("row %d: there are %d", c.row, limit)
	}
	return c, err
}

// A service has all three layers and the outbox on one engine. It works until it is killed, and
// reports
//
//	from, here   see runner.GateOrder; what passes the gate are runs of handlers in this life
//	listening    the address at which it takes requests, with the topic of the events as path
//	state        see serviceState
type service struct {
	Store                     StoreName
	Dir                       string
	Weeks                     int
	Seeds                     []string
	Fault                     fault
	Limit                     uint64 // the numbers of requests, events and rows are below it
	Events, Changes, Messages string // topics
	Gate                      runner.GateOrder

	gate    *runner.Gate
	e       *opened
	rows    *versions.Table
	metrics *prometheus.Registry
	direct  *kgo.Client // noOutbox
}

// Do implements runner.Work.
func (p *service) Do(say *runner.Voice) (err error) {
	p.metrics = prometheus.NewRegistry()
	p.gate = runner.NewGate(p.Gate, say)
	p.gate.Open(0)
	if p.e, err = openEngine(p.Store, p.Dir, tuning{}, engine.Options{RetentionWeeks: p.Weeks}); err != nil {
		return err
	}
	if p.rows, err = versions.New(p.e.Engine, layersTable, versions.Options{PruneEvery: time.Second, Logger: warnings()}); err != nil {
		return err
	}
	if p.Fault == noOutbox {
		if p.direct, err = kgo.NewClient(kgo.SeedBrokers(p.Seeds...)); err != nil {
			return err
		}
	}
	failed := make(chan error)
	prune := func() error { return p.rows.Run(context.Background()) } // removes replaced versions
	for _, part := range []func() error{func() error { return p.serve(say) }, p.consume, p.relay, prune, func() error { return p.tell(say) }} {
		go func() { failed <- part() }()
	}
	return <-failed
}

// serve is layer 1: the request of a key runs once, and its retries get the first answer.
func (p *service) serve(say *runner.Voice) error {
	o := idempotency.Options{Scope: "requests", Lease: time.Second, SharedKeys: true}
	if p.Fault == forgetKeys {
		o.Methods = []string{http.MethodPatch} // the requests are POSTs
	}
	protect, err := idempotency.New(p.e.Engine, o)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /"+p.Events, protect(http.HandlerFunc(p.handleRequest)))
	say.Line("listening", l.Addr().String())
	return (&http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}).Serve(l)
}

func (p *service) handleRequest(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	number, ok := traffic.NumberIn(body, p.Limit)
	if err == nil && !ok {
		err = errors.New("the request is not of this run")
	}
	if err == nil {
		err = idempotency.Update(r.Context(), func(tx *engine.Tx, w http.ResponseWriter) error {
			p.gate.Pass(1)
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, "request %d run %s", number, rand.Text()) // to memory
			return p.done(tx, ofRequest, number)
		}, engine.Retries(maxAttempts))
	}
	if err == nil && p.direct != nil { // published after the commit: a kill in between loses the message
		p.gate.Hold()
		err = p.publish(ofRequest, number)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// done counts that a request or an event was done, and sends a message about it.
func (p *service) done(tx *engine.Tx, kind int, number uint64) error {
	if err := tx.Add(doneKey(kind, number), 1); err != nil || p.direct != nil {
		return err
	}
	_, err := tx.Produce(engine.Message{Topic: p.Messages, Value: messageOf(kind, number)})
	return err
}

func doneKey(kind int, number uint64) []byte { return fmt.Appendf(nil, "done/%d/%016x", kind, number) }

func messageOf(kind int, number uint64) []byte { return fmt.Appendf(nil, "%d %d", kind, number) }

// publish sends a message without the outbox, with a new id.
func (p *service) publish(kind int, number uint64) error {
	r := &kgo.Record{Topic: p.Messages, Value: messageOf(kind, number), Headers: []kgo.RecordHeader{{Key: correlation.MessageID, Value: []byte(rand.Text())}}}
	return p.direct.ProduceSync(context.Background(), r).FirstErr()
}

// consume is layer 2, the events, and layer 3, the changes of rows, which are claimed by their
// positions only.
func (p *service) consume() error {
	events := kafkaadapter.Route{
		Topics: []string{p.Events}, Scope: "events", Window: layersWindow, DeadLetters: &deadletter.Options{},
		Mode: kafkaadapter.Transactional{Handle: p.handleEvent, MaxAttempts: mostAttempts},
	}
	if p.Fault == forgetIDs {
		events.Identify = identify.Rules{IDHeaders: []string{"none"}}
	}
	changes := kafkaadapter.Route{
		Topics: []string{p.Changes}, Scope: "changes", DeadLetters: &deadletter.Options{},
		Mode: kafkaadapter.Transactional{Handle: p.handleChange, MaxAttempts: mostAttempts},
	}
	c, err := kafkaadapter.New(p.e.Engine, consumerOptions(p.Seeds, layersGroup, events, changes))
	if err != nil {
		return err
	}
	return c.Run(context.Background())
}

func (p *service) handleEvent(_ context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
	number, err := traffic.NumberOf(rec.Record, p.Limit)
	// published before the commit: after a kill that rolls it back, it is published again
	if err == nil && p.direct != nil {
		err = p.publish(ofEvent, number)
	}
	if err != nil {
		return kafkaadapter.Permanent(err)
	}
	p.gate.Pass(1)
	return p.done(tx, ofEvent, number)
}

func (p *service) handleChange(_ context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
	c, err := parseChange(rec.Value, p.Limit)
	if err != nil {
		return kafkaadapter.Permanent(err)
	}
	p.gate.Pass(1)
	row := versions.Row{Tenant: layersTenant, Key: rowKey(c.row), Version: c.version, Payload: []byte(c.payload)}
	if p.Fault == arrivalWins {
		row.Version = uint64(rec.Offset) + 1
	}
	return p.rows.In(tx).Put(row)
}

func rowKey(row uint64) []byte { return fmt.Appendf(nil, "%016x", row) }

// relay publishes the messages of the outbox.
func (p *service) relay() error {
	r, err := outbox.New(p.e.Engine, outbox.Options{
		Client: []kgo.Opt{kgo.SeedBrokers(p.Seeds...)}, Batch: outbox.Batch{Time: time.Second}, Lease: outbox.Lease{TTL: 3 * time.Second},
		Telemetry: telemetry.Options{Registerer: p.metrics, Logger: warnings()},
	})
	if err != nil {
		return err
	}
	return r.Run(context.Background())
}

// tell reports the progress of the process at intervals.
func (p *service) tell(say *runner.Voice) error {
	for {
		time.Sleep(tellEvery)
		pending, err := p.pending() // first, because an event may be counted here after its handler has moved the offset
		s := serviceState{Pending: pending}
		for i := range s.Next {
			topic := p.Events
			if i >= layersPartitions {
				topic = p.Changes
			}
			o, _, oerr := p.e.Engine.Admin().Offset(context.Background(), engine.OffsetKey{Group: layersGroup, Topic: topic, Partition: int32(i % layersPartitions)})
			s.Next[i], err = o.Next, errors.Join(err, oerr)
		}
		if err != nil {
			return err
		}
		say.Line("state", s)
	}
}

// pending returns the number of unpublished messages.
func (p *service) pending() (n float64, err error) {
	n = -1 // until the relay has registered it
	err = eachMetric(p.metrics, "dedup_outbox_pending_messages", func(m *dto.Metric) { n = m.GetGauge().GetValue() })
	return n, err
}
