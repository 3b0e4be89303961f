package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/versions"
)

// consumeMessages consumes the messages of the process, with a store of its own that nothing kills, until all are sent and it
// has handled them.
func (l *layersRun) consumeMessages(ctx context.Context) (err error) {
	e, err := openEngine(l.Store, filepath.Join(l.dir, "messages"), false, engine.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	route := kafkaadapter.Route{
		Topics: []string{l.messages.Name}, Scope: "messages", Window: layersWindow,
		Mode:   kafkaadapter.AtMostOnce{Handle: func(_ context.Context, rec *kafkaadapter.Record) error { return l.handled(rec) }},
		TooOld: kafkaadapter.Process, TooNew: kafkaadapter.Process, Undecodable: kafkaadapter.Reject,
	}
	c, err := kafkaadapter.New(e.Engine, layersConsumer(l.broker.seeds, layersGroup+"-messages", route))
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var watching sync.WaitGroup
	watching.Go(func() { stop(l.untilConsumed(ctx, e)) })
	err = c.Run(ctx)
	stop(err)
	watching.Wait()
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, errAtEnd) {
		err = cause
	}
	return err
}

// handled enters a message that its consumer has handled.
func (l *layersRun) handled(rec *kafkaadapter.Record) error {
	var kind, number uint64
	if _, err := fmt.Sscan(string(rec.Value), &kind, &number); err != nil || kind > ofEvent || number >= uint64(l.N) {
		return fmt.Errorf("a message of another run: %.80q", rec.Value)
	}
	l.ledger.mu.Lock()
	defer l.ledger.mu.Unlock()
	l.ledger.effects[kind][number]++
	l.report.OutboxSent++
	return nil
}

// untilConsumed returns errAtEnd once the consumer's store is at the ends that the topic of messages has when the process has
// no more to send.
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
			err = sleep(ctx, 10*time.Millisecond)
		}
	}
	if err == nil {
		err = errAtEnd
	}
	return err
}

// audit opens the store that the last process has left and compares it with the ledger.
func (l *layersRun) audit(ctx context.Context) (err error) {
	e, err := openEngine(l.Store, filepath.Join(l.dir, "store"), false, engine.Options{RetentionWeeks: layersWeeks})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	rows, err := versions.New(e.Engine, layersTable, versions.Options{})
	if err != nil {
		return err
	}
	for number := range uint64(l.N) {
		if err := l.auditOne(ctx, e, rows, number); err != nil {
			return err
		}
		l.Progress.tell("look at everything", number, uint64(l.N))
	}
	return nil
}

func (l *layersRun) auditOne(ctx context.Context, e *opened, rows *versions.Table, number uint64) error {
	r := l.report
	done, twice := [2]*uint64{&r.Executed, &r.Events}, [2]*uint64{&r.ExecutedTwice, &r.HandledTwice}
	for kind := range done {
		v, found, err := e.Get(ctx, doneKey(kind, number))
		n := int64(0)
		if err == nil && found {
			n, err = engine.DecodeInt64(v)
		}
		if err != nil {
			return err
		}
		if n > 0 {
			*done[kind]++
		}
		if n > 1 || kind == ofRequest && l.ledger.answers[number].twice {
			*twice[kind]++
		}
		// Every request was answered and every event read, whatever the store says.
		want, got := max(uint64(n), 1), l.ledger.effects[kind][number]
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
	return nil
}
