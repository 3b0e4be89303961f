package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"time"
)

// LayersControl breaks a rule of a process on purpose, so that the ledger is seen to detect it.
type LayersControl string

// The controls of Layers.
const (
	ForgetKeys LayersControl = "forget-keys" // requests run without their idempotency keys: executed_twice
	ForgetIDs  LayersControl = "forget-ids"  // records are claimed by position, not by id: handled_twice
	// the last change wins, not the newest version: wrong_version
	ArrivalWins LayersControl = "arrival-wins"
	// messages are sent to Kafka directly: outbox_lost, outbox_doubled_downstream
	WithoutOutbox LayersControl = "without-outbox"
)

// LayersOptions configure Layers.
type LayersOptions struct {
	Common
	Brokers []string      `help:"${brokers}" placeholder:"HOST:PORT,..." env:"DEDUPBENCH_BROKERS"`
	N       int           `help:"Distinct requests, events and rows, each." default:"50000" placeholder:"N"`
	Kills   int           `help:"How often the process is killed." default:"5" placeholder:"K"`
	Control LayersControl `help:"Break a rule, to see that it is noticed: forget-keys runs requests without their idempotency keys, forget-ids claims events by position, arrival-wins takes the change that came last, without-outbox publishes messages directly." enum:",forget-keys,forget-ids,arrival-wins,without-outbox" default:""`
	Seed    uint64        `help:"Seed of the events." default:"1"`
}

// A LayersReport says the outcome of requests, events, rows and messages. The expected values are
// the clients' answers, the sent data, and the messages that their consumer has handled; they are
// compared with the store of the killed processes.
type LayersReport struct {
	// Requests have a key each; Retries are sends of a key after its first answer.
	// ReplayedIdentical retries got the bytes of that answer, as a replay.
	Requests          uint64 `json:"requests"`
	Retries           uint64 `json:"retries"`
	Executed          uint64 `json:"executed"`
	ExecutedTwice     uint64 `json:"executed_twice"`
	ReplayedIdentical uint64 `json:"replayed_identical"`
	// Events were handled at least once; Records are all of their produced deliveries.
	Events       uint64 `json:"events"`
	Records      uint64 `json:"records"`
	HandledTwice uint64 `json:"handled_twice"`
	// Rows have a version; WrongVersion rows do not have the newest of the published Changes, or
	// have another payload.
	Rows         uint64 `json:"rows"`
	Changes      uint64 `json:"changes"`
	WrongVersion uint64 `json:"wrong_version"`
	// OutboxSent messages were handled by their consumer, which detects repetitions by the id;
	// OutboxRecords are those in the topic, repetitions included. OutboxLost executions and handled
	// events have no message, and OutboxDoubled messages were handled without one.
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
	again := keepAndReport
	if o.Control != "" {
		again = "the control " + string(o.Control) + " breaks the rule on purpose"
	}
	return fmt.Errorf("%w: of %d each %d requests executed, %d twice, %d of %d retries replayed, %d events handled, %d twice, %d rows, "+
		"%d with a wrong version, %d messages lost, %d doubled: %s", ErrNotHeld, n, r.Executed, r.ExecutedTwice, r.ReplayedIdentical, r.Retries,
		r.Events, r.HandledTwice, r.Rows, r.WrongVersion, r.OutboxLost, r.OutboxDoubled, again)
}

func (o *LayersOptions) complete() error {
	if o.Kills < 1 || o.N < o.Kills*leastPerKill {
		return fmt.Errorf("%w: %d requests, %d kills: give a kill or more, and %d requests for each", ErrUsage, o.N, o.Kills, leastPerKill)
	}
	return nil
}

// Layers sends requests, events and changes of rows, each of them several times, to a process that
// is killed meanwhile, and checks their outcome and that of the messages that the process sends.
func Layers(ctx context.Context, o LayersOptions) (report LayersReport, err error) {
	defer report.end(&err)
	defer stopwatch(&report.Seconds)()
	if err := o.complete(); err != nil {
		return report, err
	}
	src, err := newSource(o.Seed, UUIDv4, 1, 1)
	if err != nil {
		return report, err
	}
	// A log that is long enough is read until it has had N events.
	run := layersRun{LayersOptions: o, log: &topicLog{source: src, N: 4 * o.N, Dup: layersRepeats}, report: &report, drained: make(chan struct{})}
	err = withBroker(ctx, o.Brokers, o.Dir, func(dir string, b *broker) (err error) {
		run.dir, run.broker = dir, b
		for _, t := range []**topic{&run.events, &run.changes, &run.messages} {
			if *t, err = b.newTopic(ctx, layersPartitions); *t != nil {
				defer (*t).remove(&err)
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

const (
	layersRepeats    = 0.25
	layersPartitions = 4
)

// layersRun is a run of Layers.
type layersRun struct {
	LayersOptions
	log    *topicLog
	dir    string
	broker *broker
	report *LayersReport

	events, changes, messages *topic

	ledger  layersLedger
	address atomic.Pointer[string] // the address of the process; "" while there is none
	drained chan struct{}          // closed when all is sent and the process has worked it off
}

// all runs the clients, the process and the consumer of its messages concurrently, and compares
// their results.
func (l *layersRun) all(ctx context.Context) error {
	l.ledger.begin(l.N)
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
		func() error { return l.consumeMessages(ctx) },
	}
	err := together(len(parts), func(i int) error {
		err := parts[i]()
		if err != nil {
			cancel(err)
		}
		return err
	})
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return errors.Join(err, l.audit(ctx))
}

// lives starts the process, kills it as planned, and restarts it. The last one is killed, too, once
// all is sent and it has worked it off.
func (l *layersRun) lives(ctx context.Context, sent <-chan []int64) error {
	defer close(l.drained)
	var ends []int64
	var last bool
	run := lives{kills: l.drawKills()}
	run.worker = func(k kill) worker {
		l.address.Store(new(string))
		l.report.Kills, last = run.killed, k == never
		return &layersProcess{
			Store: l.Store, Dir: filepath.Join(l.dir, "store"), Weeks: layersWeeks, Seeds: l.broker.seeds, Control: l.Control, Limit: l.log.limit(),
			Events: l.events.Name, Changes: l.changes.Name, Messages: l.messages.Name, gateOrder: k.gateOrder,
		}
	}
	run.hear = map[string]hearing{
		"from": hears(func(uint64) error { return nil }),
		"listening": hears(func(at string) error {
			l.address.Store(&at)
			return nil
		}),
		"state": hears(func(now layersState) error {
			select {
			case ends = <-sent:
			default:
			}
			if last && ends != nil && now.drained(ends) {
				run.kill()
			}
			return nil
		}),
	}
	err := run.run(ctx)
	l.address.Store(new(string))
	return err
}

// layersWeeks is the retention, which covers the 30 days of an idempotency key.
const layersWeeks = 5

// drawKills plans the kills. The gate of a process counts from 0, and together the processes cannot
// miss a kill: each request, event and change passes at least once.
func (l *layersRun) drawKills() []kill {
	way := uint64(4 * l.N)
	if l.Control != "" {
		way /= 8 // while there are requests
	}
	kills := drawKills(way, l.Kills, l.Control == "")
	last, slack := uint64(0), max(way/25/uint64(l.Kills), 2)
	for i := range kills {
		k := &kills[i]
		if at := k.Here; at > 0 {
			k.Here, last = max(at-last, 1), at
		}
		k.Wait = k.Here + 1 + rand.Uint64N(slack-1)
		if l.Control != "" { // what can come to an end does, up to the gate
			k.after = time.Second
		}
	}
	return kills
}
