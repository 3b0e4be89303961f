package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/bench/internal/callers"
	"github.com/hapax-dev/hapax/bench/internal/runner"
	"github.com/hapax-dev/hapax/bench/internal/topics"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/correlation"
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/versions"
)

// LayersOptions configure Layers.
type LayersOptions struct {
	Common
	Brokers []string `help:"${brokers}" type:"brokers" placeholder:"HOST:PORT,..." env:"DEDUPBENCH_BROKERS"`
	N       int      `help:"Distinct requests, events and rows, each." default:"50000"`
	Kills   int      `help:"How often the process is killed." default:"5"`

	fault fault
}

// A LayersReport has the outcome of requests, events, rows and messages. The answers that clients
// got, the sent data and the messages in the topic are compared with the store of the killed
// processes.
type LayersReport struct {
	// Requests counts the requests, each with its own key. Retries counts the sends of a key after
	// its first answer, and ReplayedIdentical those of them that got the bytes of that answer, as a
	// replay.
	Requests          uint64 `json:"requests"`
	Retries           uint64 `json:"retries"`
	Executed          uint64 `json:"executed"`
	ExecutedTwice     uint64 `json:"executed_twice"`
	ReplayedIdentical uint64 `json:"replayed_identical"`
	// Events counts the events that were handled at least once, and Records all their produced
	// deliveries.
	Events       uint64 `json:"events"`
	Records      uint64 `json:"records"`
	HandledTwice uint64 `json:"handled_twice"`
	// Rows counts the rows that have a version. WrongVersion counts those that do not have the
	// newest of the published Changes, or have another payload.
	Rows         uint64 `json:"rows"`
	Changes      uint64 `json:"changes"`
	WrongVersion uint64 `json:"wrong_version"`
	// OutboxSent counts the messages in the topic without repetitions, which have the same id, and
	// OutboxRecords counts all of them. OutboxLost counts the executions and handled events that
	// have no message, and OutboxDoubled the messages that belong to none.
	OutboxSent    uint64 `json:"outbox_sent"`
	OutboxRecords uint64 `json:"outbox_records"`
	OutboxLost    uint64 `json:"outbox_lost"`
	OutboxDoubled uint64 `json:"outbox_doubled_downstream"`

	Kills   int     `json:"kills"`
	Seconds float64 `json:"seconds"`
	Outcome
}

// broken returns the violations.
func (r *LayersReport) broken(o *LayersOptions) error {
	wrong := r.ExecutedTwice + r.HandledTwice + r.WrongVersion + r.OutboxLost + r.OutboxDoubled
	n := uint64(o.N)
	if wrong == 0 && r.Retries == r.ReplayedIdentical && r.Executed == n && r.Events == n && r.Rows == n {
		return nil
	}
	return fmt.Errorf("%w: of %d each %d requests executed, %d twice, %d of %d retries replayed, %d events handled, %d twice, %d rows, "+
		"%d with a wrong version, %d messages lost, %d doubled: %s", ErrNotHeld, n, r.Executed, r.ExecutedTwice, r.ReplayedIdentical, r.Retries,
		r.Events, r.HandledTwice, r.Rows, r.WrongVersion, r.OutboxLost, r.OutboxDoubled, keepAndReport)
}

// maxRequests bounds the answers that a run keeps in memory.
const maxRequests = 10_000_000

func (o *LayersOptions) complete() error {
	if o.Kills < 1 || o.Kills > o.N/runner.LeastPerKill || o.N > maxRequests {
		return fmt.Errorf("%w: %d requests, %d kills: give a kill or more, %d requests for each, and up to %d requests",
			ErrUsage, o.N, o.Kills, runner.LeastPerKill, maxRequests)
	}
	return nil
}

const layersRepeats = 0.25 // share of repeats among the deliveries of events

// Layers sends requests, events and changes of rows, each several times, to a process that is
// killed meanwhile. It checks the outcome of all of these and of the messages that the process
// sends.
func Layers(ctx context.Context, o LayersOptions) (report LayersReport, err error) {
	defer report.end(&err)
	defer stopwatch(&report.Seconds)()
	if err := o.complete(); err != nil {
		return report, err
	}
	src, err := newSource(traffic.UUIDv4, 1, 1)
	if err != nil {
		return report, err
	}
	// A log that is long enough is read until it has had N events.
	run := layersRun{LayersOptions: o, log: &traffic.Log{Source: src, N: 4 * o.N, Dup: layersRepeats}, report: &report}
	err = withBroker(ctx, o.Brokers, o.Dir, func(dir string, b *topics.Broker) (err error) {
		run.dir, run.broker = dir, b
		for _, t := range []**topics.Topic{&run.events, &run.changes, &run.messages} {
			if *t, err = b.New(ctx, layersPartitions, nil); *t != nil {
				defer (*t).Remove(&err)
			}
			if err != nil {
				return err
			}
		}
		return run.all(ctx)
	})
	if err == nil {
		err = report.broken(&o)
	}
	return report, err
}

// layersRun is a run of Layers.
type layersRun struct {
	LayersOptions
	log    *traffic.Log
	dir    string
	broker *topics.Broker
	report *LayersReport

	events, changes, messages *topics.Topic

	clients clientsLedger
	address atomic.Pointer[string] // the address of the process; "" while there is none
}

// all runs the clients and the process concurrently, and compares their reports with the final
// state.
func (l *layersRun) all(ctx context.Context) error {
	l.clients = newClientsLedger(l.N)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l.address.Store(new(string))
	sent := make(chan []int64, 1) // the ends of events and changes
	parts := []func() error{
		func() error {
			ends, err := l.send(ctx)
			sent <- ends
			return err
		},
		func() error { return l.lives(ctx, sent) },
	}
	err := callers.Together(len(parts), func(i int) error {
		err := parts[i]()
		if err != nil {
			cancel(err)
		}
		return err
	})
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	effects, err := l.read(ctx)
	if err != nil {
		return err
	}
	return l.audit(ctx, effects)
}

// lives starts the process, kills it as planned, and restarts it. The last process is also killed,
// after everything was sent and it has processed all of it.
func (l *layersRun) lives(ctx context.Context, sent <-chan []int64) error {
	var ends []int64
	var last bool
	run := runner.Lives{Kills: l.drawKills(), Silence: runner.MaxSilence}
	run.Next = func(k runner.Kill) runner.Work {
		l.address.Store(new(string))
		l.report.Kills, last = run.Killed, k == runner.Never
		return &service{
			Store: l.Store, Dir: filepath.Join(l.dir, "store"), Weeks: layersWeeks, Seeds: l.broker.Seeds, Fault: l.fault, Limit: l.log.Limit(),
			Events: l.events.Name, Changes: l.changes.Name, Messages: l.messages.Name, Gate: k.Gate,
		}
	}
	run.Hear = map[string]runner.Hearing{
		"from": runner.Hears(func(uint64) error { return nil }),
		"listening": runner.Hears(func(at string) error {
			l.address.Store(&at)
			return nil
		}),
		"state": runner.Hears(func(now serviceState) error {
			select {
			case ends = <-sent:
			default:
			}
			if last && ends != nil && now.drained(ends) {
				run.Kill()
			}
			return nil
		}),
	}
	err := run.Run(ctx)
	l.address.Store(new(string))
	return err
}

// drawKills plans the kills. The gate of each process counts from 0. The processes together cannot
// miss a kill, because each request, event and change passes a gate at least once.
func (l *layersRun) drawKills() []runner.Kill {
	way := uint64(4 * l.N)
	if l.fault != "" {
		way /= 8 // while there are requests
	}
	kills := runner.DrawKills(way, l.Kills, l.fault == "")
	last, slack := uint64(0), max(way/25/uint64(l.Kills), 2)
	for i := range kills {
		k := &kills[i]
		if at := k.Gate.Here; at > 0 {
			k.Gate.Here, last = max(at-last, 1), at
		}
		k.Gate.Wait = k.Gate.Here + 1 + rand.Uint64N(slack-1)
		if l.fault != "" { // whatever can finish finishes, up to the gate
			k.After = time.Second
		}
	}
	return kills
}

// read reads the topic of messages to its end. It returns the number of messages with different ids
// about each request, and about each event.
func (l *layersRun) read(ctx context.Context) (effects [2][]uint64, err error) {
	effects = [2][]uint64{make([]uint64, l.N), make([]uint64, l.N)}
	ends, err := l.messages.Ends(ctx)
	if err != nil {
		return effects, err
	}
	from := make(map[int32]kgo.Offset, len(ends))
	for p := range ends {
		from[int32(p)] = kgo.NewOffset().AtStart()
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(l.broker.Seeds...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{l.messages.Name: from}))
	if err != nil {
		return effects, err
	}
	defer client.Close()
	ids := make(map[string]bool)
	l.report.OutboxRecords = sum(ends)
	for read := uint64(0); read < l.report.OutboxRecords; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return effects, err
		}
		for _, r := range fetches.Records() {
			read++
			var kind, number uint64
			if _, err := fmt.Sscan(string(r.Value), &kind, &number); err != nil || kind > ofEvent || number >= uint64(l.N) {
				return effects, fmt.Errorf("a message of another run: %.80q", r.Value)
			}
			id := ""
			for _, h := range r.Headers {
				if h.Key == correlation.MessageID {
					id = string(h.Value)
				}
			}
			if !ids[id] {
				ids[id] = true
				effects[kind][number]++
			}
		}
	}
	return effects, nil
}

// audit opens the store of the last process and compares it with the clients' ledger.
func (l *layersRun) audit(ctx context.Context, effects [2][]uint64) (err error) {
	e, err := openEngine(l.Store, filepath.Join(l.dir, "store"), tuning{}, engine.Options{RetentionWeeks: layersWeeks})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Engine.Close()) }()
	rows, err := versions.New(e.Engine, layersTable, versions.Options{})
	if err != nil {
		return err
	}
	done, err := l.counts(ctx, e)
	if err != nil {
		return err
	}
	r := l.report
	r.Executed, r.ExecutedTwice = atLeast(done[ofRequest], 1), atLeast(done[ofRequest], 2)
	r.Events, r.HandledTwice = atLeast(done[ofEvent], 1), atLeast(done[ofEvent], 2)
	for number := range uint64(l.N) {
		if l.clients.answers[number].twice && done[ofRequest][number] < 2 {
			r.ExecutedTwice++
		}
		// every request was answered and every event was read, whatever the store contains
		for kind := range done {
			want, got := max(uint64(done[kind][number]), 1), effects[kind][number]
			r.OutboxSent += got
			r.OutboxLost += less(want, got)
			r.OutboxDoubled += less(got, want)
		}
		row, err := rows.Get(ctx, layersTenant, rowKey(number))
		if err != nil {
			return err
		}
		if row.Found {
			r.Rows++
		}
		if string(row.Row.Payload) != l.clients.newest[number].payload {
			r.WrongVersion++
		}
	}
	return nil
}

// counts reads how often each request was executed and each event was handled.
func (l *layersRun) counts(ctx context.Context, e *opened) (done [2][]uint8, err error) {
	for kind := range done {
		done[kind] = make([]uint8, l.N)
		for number := range done[kind] {
			n, err := readBalance(e.reader(ctx), doneKey(kind, uint64(number)))
			if err != nil {
				return done, err
			}
			done[kind][number] = uint8(min(n, 255))
		}
	}
	return done, nil
}
