package hapaxtest

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter"
)

// A Call is a call of a handler for one record. A call of HandleBatch is one Call for each record.
type Call struct {
	Topic    string
	ID       string // of the event
	Attempt  int    // kafkaadapter.Record.Attempt
	Verdict  engine.Verdict
	Reopened bool
	Err      error // what the handler returned; see kafkaadapter.IsPermanent and IsTransient

	offset int64
}

// errNotReturned is the error of a Call that panicked or ended its goroutine, as t.FailNow does.
var errNotReturned = errors.New("hapaxtest: the handler did not return: it panicked or ended its goroutine")

// calls has the calls of handlers that have returned.
type calls struct {
	mu  sync.Mutex
	all []Call
}

// watch returns a mode that notes the calls of its handler. An invalid mode is returned unchanged.
func (c *calls) watch(mode kafkaadapter.Mode) kafkaadapter.Mode {
	switch m := mode.(type) {
	case kafkaadapter.AtMostOnce:
		if m == nil {
			return m
		}
		return kafkaadapter.AtMostOnce(func(ctx context.Context, rec *kafkaadapter.Record) error {
			return c.call(func() error { return m(ctx, rec) }, rec)
		})
	case kafkaadapter.Transactional:
		if handle := m.Handle; handle != nil {
			m.Handle = func(ctx context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
				return c.call(func() error { return handle(ctx, tx, rec) }, rec)
			}
		}
		if handle := m.HandleBatch; handle != nil {
			m.HandleBatch = func(ctx context.Context, tx *engine.Tx, records []*kafkaadapter.Record) error {
				return c.call(func() error { return handle(ctx, tx, records) }, records...)
			}
		}
		return m
	}
	return mode
}

// call calls a handler. What the handler does to the records afterwards does not change the notes.
func (c *calls) call(handle func() error, records ...*kafkaadapter.Record) error {
	noted := make([]Call, len(records))
	for i, rec := range records {
		noted[i] = Call{rec.Topic, string(rec.Event.ID), rec.Attempt, rec.Verdict, rec.Reopened, errNotReturned, rec.Offset}
	}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all = append(c.all, noted...)
	}()
	err := handle()
	for i := range noted {
		noted[i].Err = err
	}
	return err
}

func (c *calls) list() []Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

// last returns the last call, the zero value if there is none.
func (c *calls) last() (last Call) {
	if all := c.list(); len(all) > 0 {
		last = all[len(all)-1]
	}
	return last
}

// hasFailed reports whether a handler has failed for the record at an offset.
func (c *calls) hasFailed(topic string, offset int64) bool {
	return slices.ContainsFunc(c.list(), func(call Call) bool { return call.Topic == topic && call.offset == offset && call.Err != nil })
}
