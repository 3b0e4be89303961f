package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/wait"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/versions"
)

// consumeMessages consumes the messages of the process, with a separate store whose process is not
// killed, until all are sent and handled.
func (l *layersRun) consumeMessages(ctx context.Context) (err error) {
	e, err := openEngine(l.Store, filepath.Join(l.dir, "messages"), tuning{}, engine.Options{})
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			l.ledger.effects, err = l.counts(ctx, e)
		}
		err = errors.Join(err, e.Close())
	}()
	route := kafkaadapter.Route{
		Topics: []string{l.messages.Name}, Scope: "messages", Window: layersWindow,
		Mode: kafkaadapter.Transactional{Handle: l.handleMessage, MaxAttempts: mostAttempts}, DeadLetters: &deadletter.Options{},
	}
	c, err := kafkaadapter.New(e.Engine, consumerOptions(l.broker.seeds, layersGroup+"-messages", route))
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	return together(2, func(i int) error {
		defer stop()
		if i == 0 {
			return c.Run(running)
		}
		return l.untilConsumed(running, e)
	})
}

// handleMessage counts a message in the store of its consumer.
func (l *layersRun) handleMessage(_ context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
	var kind, number uint64
	if _, err := fmt.Sscan(string(rec.Value), &kind, &number); err != nil || kind > ofEvent || number >= uint64(l.N) {
		return kafkaadapter.Permanent(fmt.Errorf("a message of another run: %.80q", rec.Value))
	}
	return tx.Add(doneKey(int(kind), number), 1)
}

// untilConsumed returns when the consumer's store is at the ends of the topic of messages after the
// process has sent all of them.
func (l *layersRun) untilConsumed(ctx context.Context, e *opened) error {
	select {
	case <-l.drained:
	case <-ctx.Done():
		return ctx.Err()
	}
	ends, err := l.messages.ends(ctx)
	l.report.OutboxRecords = sum(ends)
	for p := 0; p < len(ends) && err == nil; {
		var o engine.Offset
		o, _, err = e.Offset(ctx, engine.Position{Group: layersGroup + "-messages", Topic: l.messages.Name, Partition: int32(p)})
		if o.Next == ends[p] {
			p++
		} else if err == nil {
			err = wait.For(ctx, 10*time.Millisecond)
		}
	}
	return err
}

// audit opens the store of the last process and compares it with the ledger.
func (l *layersRun) audit(ctx context.Context) (err error) {
	e, err := openEngine(l.Store, filepath.Join(l.dir, "store"), tuning{}, engine.Options{RetentionWeeks: layersWeeks})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	rows, err := versions.New(e.Engine, layersTable, versions.Options{})
	if err != nil {
		return err
	}
	done, err := l.counts(ctx, e)
	if err != nil {
		return err
	}
	r := l.report
	r.Executed, r.ExecutedTwice = handled(done[ofRequest])
	r.Events, r.HandledTwice = handled(done[ofEvent])
	for number := range uint64(l.N) {
		if l.ledger.answers[number].twice && done[ofRequest][number] < 2 {
			r.ExecutedTwice++
		}
		// every request was answered and every event was read, whatever the store contains
		for kind := range done {
			want, got := max(uint64(done[kind][number]), 1), uint64(l.ledger.effects[kind][number])
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
		if string(row.Row.Payload) != l.ledger.newest[number].payload {
			r.WrongVersion++
		}
		l.Progress.tell("look at everything", number, uint64(l.N))
	}
	return nil
}

// counts reads how often each request and each event was done.
func (l *layersRun) counts(ctx context.Context, e *opened) (done [2][]uint32, err error) {
	for kind := range done {
		done[kind] = make([]uint32, l.N)
		for number := range done[kind] {
			v, found, err := e.Get(ctx, doneKey(kind, uint64(number)))
			n := int64(0)
			if err == nil && found {
				n, err = engine.DecodeInt64(v)
			}
			if err != nil {
				return done, err
			}
			done[kind][number] = uint32(n)
		}
	}
	return done, nil
}
