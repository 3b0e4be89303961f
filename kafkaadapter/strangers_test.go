package kafkaadapter

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/hostile"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/redact"
)

// TestLogShowsIDsAndErrorsOfStrangersAsTheOptionSays: duplicates, retries, dead letters and records
// whose ids the engine rejects.
func TestLogShowsIDsAndErrorsOfStrangersAsTheOptionSays(t *testing.T) {
	long := hostile.Long[:700<<10] // with the other headers, the record is within the broker's limit
	for name, how := range hostile.IDs {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.Produce(t, r.event(0, hostile.ID), r.event(0, hostile.ID),
				&kgo.Record{Topic: r.topic, Headers: []kgo.RecordHeader{{Key: "message_id", Value: []byte(long)}}})
			var log hostile.Log
			m := r.start(t, r.work(2, failing(errors.New(hostile.Text), hostile.ID)), func(o *Options) {
				o.Telemetry.Logger, o.Telemetry.IDs = log.Logger(), how
			})
			r.untilStored(t, 0, 3)
			m.stop(t)
			log.Check(t, how, hostile.ID, long)
			for _, text := range []string{"handling failed; the record is retried", "record became a dead letter", "duplicate skipped"} {
				if !strings.Contains(strings.Join(log.Lines(), "\n"), text) {
					t.Errorf("%q is not logged", text)
				}
			}
			for _, letter := range r.letters(t, 2) {
				hostile.CheckText(t, values(letter)["hapax_dlt_error"], redact.Plain())
			}
		})
	}
}

func TestLogOfALostEventShowsItsIDAsTheOptionSays(t *testing.T) {
	for name, how := range hostile.IDs {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.send(t, 0, hostile.ID)
			var log hostile.Log
			m := r.start(t, AtMostOnce(func(context.Context, *Record) error { return errors.New(hostile.Text) }), func(o *Options) {
				o.Telemetry.Logger, o.Telemetry.IDs = log.Logger(), how
			})
			m.counts(t, 1, "lost_total")
			m.stop(t)
			log.Check(t, how, hostile.ID)
		})
	}
}

// TestReadinessShowsAShortErrorOfAHandler: its answer is read by people and machines of others.
func TestReadinessShowsAShortErrorOfAHandler(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	m := r.start(t, r.work(2, failing(Transient(errors.New(hostile.Text)), "a")))
	stop := <-m.stops
	hostile.CheckText(t, stop.Error(), redact.Plain())
	kafkatest.Until(t, "the stop in Ready", func() bool {
		err := m.Ready()
		return err != nil && strings.Contains(err.Error(), "transient")
	})
	if err := m.Ready(); err != nil {
		hostile.CheckText(t, err.Error(), redact.Plain())
	}
	m.stop(t)
}

func TestShortSecretForIDsIsRefused(t *testing.T) {
	r := newRig(t, 1)
	o := r.options(r.work(1, nil))
	o.Telemetry.IDs = redact.Hashed([]byte("short"))
	if _, err := New(r.eng, o); !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), "Options.Telemetry.IDs") {
		t.Error(err)
	}
}

// A restless error is changed by its handler's goroutines after it was returned: it becomes
// transient, and its methods panic.
type restless struct {
	mu    sync.Mutex
	calls int
	later bool
}

var errFirst = errors.New("what the handler meant")

func (e *restless) change() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.later = true
}

func (e *restless) Error() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.calls++; e.later {
		panic("the error was changed")
	}
	return "first text"
}

func (e *restless) Unwrap() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.later {
		return Transient(errFirst)
	}
	return Permanent(errFirst)
}

// TestErrorThatChangesAfterItsHandlerHasReturnedIsTheOneThatWasReturned: the record becomes a dead
// letter with the first text.
func TestErrorThatChangesAfterItsHandlerHasReturnedIsTheOneThatWasReturned(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b")
	e := &restless{}
	h := handlers{}
	err := h.call(t.Context(), 0, 0, func(context.Context) error { return e })
	e.change()
	if err.Error() != "first text" || e.calls != 1 || IsTransient(err) || !errors.As(err, new(*permanentError)) || !errors.Is(err, errFirst) {
		t.Errorf("%v after %d calls of Error, transient %t", err, e.calls, IsTransient(err))
	}

	m := r.start(t, r.work(3, func(_ context.Context, _ *engine.Tx, rec *Record) error {
		if string(rec.Event.ID) == "b" {
			return nil
		}
		e := &restless{}
		t.Cleanup(e.change)
		return &changedOnceRead{restless: e}
	}))
	r.untilStored(t, 0, 2)
	m.stop(t)
	dead := values(r.letters(t, 1)[0])
	if dead["hapax_dlt_error"] != "first text" || dead["hapax_dlt_error_type"] != "*errors.errorString" || len(r.handled()) != 2 {
		t.Errorf("dead letter %q", dead)
	}
}

// A changedOnceRead error changes as soon as its text and what it wraps were read.
type changedOnceRead struct{ *restless }

func (e *changedOnceRead) Unwrap() error {
	inner := e.restless.Unwrap()
	if e.calls > 0 {
		defer e.change()
	}
	return inner
}
