package tenure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/engine/storage"
)

type memory struct {
	log      replica.Memory
	prepared int
	err      error // of Prepare
	silent   bool  // the log does not answer
	hanging  *hanging
}

func (m *memory) Prepare(context.Context, string, int) error {
	m.prepared++
	return m.err
}
func (m *memory) Close() {}
func (m *memory) Log(string, int32) replica.Log {
	switch {
	case m.silent:
		return silent{&m.log}
	case m.hanging != nil:
		return m.hanging
	}
	return &m.log
}

type silent struct{ replica.Log }

func (silent) Bounds(ctx context.Context) (start, end int64, err error) {
	<-ctx.Done()
	return 0, 0, ctx.Err()
}

// A hanging log answers a number of appends.
type hanging struct {
	replica.Log
	answers atomic.Int32
	hangs   chan struct{} // receives a value for each append that is not answered
}

func (l *hanging) Append(ctx context.Context, record []byte) (replica.Ack, error) {
	if l.answers.Add(-1) < 0 {
		l.hangs <- struct{}{}
		<-ctx.Done()
		return replica.Ack{}, ctx.Err()
	}
	return l.Log.Append(ctx, record)
}

func newEngines(m *memory, silence time.Duration) *Engines {
	disk := vfs.NewMem()
	return New(Options{
		Logs: m, Log: slog.New(slog.DiscardHandler), Silence: silence,
		Copies: func(topic string, partition int32, _ int64) storage.Copies {
			return pebble.CopyIn(fmt.Sprintf("%s-%d", topic, partition), pebble.Options{FS: disk, CacheBytes: 1 << 20, PendingBytes: 1 << 20})
		},
		Engine: func(string, int32) engine.Options { return engine.Options{ExpectedPerWeek: 1 << 10} },
	})
}

var first = Partition{Topic: "t", Partitions: 1, Log: "t.changelog"}

func open(t *testing.T, e *Engines) *Engine {
	t.Helper()
	o, err := e.Open(context.Background(), first, &Progress{}, unused)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func unused(context.Context, *engine.Engine) error { return nil }

func put(o *Engine, key string) error {
	return o.Engine.Update(context.Background(), func(tx *engine.Tx) error { return tx.Put([]byte(key), nil) })
}

// A task that has not returned keeps the next engine of its partition closed, and that of no other.
func TestPartitionHasOneEngineAtATime(t *testing.T) {
	m := &memory{}
	e := newEngines(m, time.Minute)
	o := open(t, e)
	returns, ended := make(chan struct{}), make(chan struct{})
	o.Go(context.Background(), func(ctx context.Context) {
		<-ctx.Done()
		close(ended)
		<-returns
	})
	o.Close()
	<-ended
	e.o.Silence = time.Millisecond
	if _, err := e.Open(context.Background(), first, &Progress{}, unused); !errors.Is(err, ErrInUse) {
		t.Errorf("a second engine: %v", err)
	}
	e.o.Silence = time.Minute
	close(returns)
	o = open(t, e)
	if err := put(o, "k"); err != nil {
		t.Error(err)
	}
	o.Close()
	if err := e.Wait(context.Background()); err != nil {
		t.Error(err)
	}
	if m.prepared != 1 {
		t.Errorf("the topic was prepared %d times", m.prepared)
	}
}

func TestRevokedEngineWritesNothing(t *testing.T) {
	m := &memory{}
	e := newEngines(m, time.Minute)
	o := open(t, e)
	if err := put(o, "before"); err != nil {
		t.Fatal(err)
	}
	_, end, _ := m.log.Bounds(context.Background())
	o.Revoke()
	if err := put(o, "after"); !errors.Is(err, replica.ErrRevoked) {
		t.Errorf("a write after Revoke: %v", err)
	}
	if _, now, _ := m.log.Bounds(context.Background()); now != end {
		t.Error("a write after Revoke is in the log")
	}
	o.Close()
	o = open(t, e)
	defer o.Close()
	if o.Engine.Err() != nil || o.Restore.Discarded != nil {
		t.Errorf("the next engine: %v, %v", o.Engine.Err(), o.Restore.Discarded)
	}
}

func TestSilentLogEndsOpen(t *testing.T) {
	e := newEngines(&memory{silent: true}, time.Millisecond)
	if _, err := e.Open(context.Background(), first, &Progress{}, unused); !errors.Is(err, ErrSilent) {
		t.Errorf("a log without answers: %v", err)
	}
}

// The open record is answered, and not what the engine of a new store or its user appends.
func TestOpenEndsWhenALaterAppendHangs(t *testing.T) {
	use := func(_ context.Context, eng *engine.Engine) error {
		return eng.Update(context.Background(), func(tx *engine.Tx) error { return tx.Put([]byte("k"), nil) })
	}
	for answers := range int32(3) {
		begin := func(silence time.Duration) (*hanging, *Engines) {
			m := &memory{}
			m.hanging = &hanging{Log: &m.log, hangs: make(chan struct{}, 10)}
			m.hanging.answers.Store(answers)
			return m.hanging, newEngines(m, silence)
		}
		_, e := begin(10 * time.Millisecond)
		if _, err := e.Open(context.Background(), first, &Progress{}, use); !errors.Is(err, ErrSilent) {
			t.Errorf("a log that answers %d appends: %v", answers, err)
		}

		l, e := begin(time.Hour)
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			<-l.hangs
			cancel()
		}()
		if _, err := e.Open(ctx, first, &Progress{}, use); err == nil || errors.Is(err, ErrSilent) {
			t.Errorf("a log that answers %d appends until ctx ends: %v", answers, err)
		}
		l.answers.Store(math.MaxInt32)
		open(t, e).Close()
	}
}

// What the engine and its user do without the log is no silence of the log.
func TestSlowUseIsNotSilence(t *testing.T) {
	ctx, w, stop := watched(context.Background(), time.Millisecond)
	defer stop()
	w.asked()
	w.answered()
	busy, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	<-busy.Done()
	if err := context.Cause(ctx); err != nil {
		t.Errorf("nothing was asked: %v", err)
	}
	w.asked()
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, ErrSilent) {
		t.Errorf("no answer: %v", err)
	}
}

// What fails is prepared again: its settings may have been the reason.
func TestFailedTopicIsPreparedAgain(t *testing.T) {
	m := &memory{err: errors.New("no such right")}
	e := newEngines(m, time.Minute)
	if _, err := e.Open(context.Background(), first, &Progress{}, unused); !errors.Is(err, m.err) {
		t.Errorf("a topic that may not be used: %v", err)
	}
	m.err = nil
	open(t, e).Close()
	if m.prepared != 2 {
		t.Errorf("the topic was prepared %d times", m.prepared)
	}
}

func TestPanicOfATaskIsNotThatOfTheProcess(t *testing.T) {
	e, lines := newEngines(&memory{}, time.Minute), &bytes.Buffer{}
	e.o.Log = slog.New(slog.NewTextHandler(lines, nil))
	o := open(t, e)
	o.Go(context.Background(), func(context.Context) { panic("of the application") })
	_ = o.Settle(context.Background())
	if text := lines.String(); !strings.Contains(text, "OnOwned panicked") || !strings.Contains(text, "topic=t partition=0") {
		t.Errorf("the line does not name the partition: %s", text)
	}
	if err := put(o, "k"); err != nil {
		t.Errorf("a write after a panic: %v", err)
	}
	o.Close()
}

func TestProgressIsAPartOfTheLog(t *testing.T) {
	var p Progress
	for _, c := range []struct{ from, at, end int64 }{{0, 0, 0}, {10, 5, 20}, {10, 15, 20}, {10, 30, 20}} {
		p.from.Store(c.from)
		p.at.Store(c.at)
		p.end.Store(c.end)
		if r := p.Ratio(); math.IsNaN(r) || r < 0 || r > 1 {
			t.Errorf("%+v is %v", c, r)
		}
	}
	p.at.Store(15)
	if r := p.Ratio(); r != 0.5 {
		t.Errorf("half of the log is %v", r)
	}
	if p.Reset(); p.Ratio() != 0 {
		t.Error("Reset does not begin at 0")
	}
}
