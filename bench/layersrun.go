package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"time"
)

const layersRepeats = 0.25 // of the deliveries of events

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
