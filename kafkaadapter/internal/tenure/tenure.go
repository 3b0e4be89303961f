// Package tenure opens the engines of partitions whose stores are in changelogs, one for each partition
// that this process owns, and ends them.
//
// At most one engine of a partition is open at a time: Open waits until the one before is closed,
// which a handler that does not return can delay.
package tenure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/untrusted"
)

// Logs has the changelogs of a process.
type Logs interface {
	// Prepare creates the topic of a changelog if it is missing and may be created, and checks it.
	Prepare(ctx context.Context, topic string, partitions int) error
	// Log returns the log of a partition, for one call of replica.Open.
	Log(topic string, partition int32) replica.Log
	// Close ends all appends and reads.
	Close()
}

// A Partition is that of a source topic. Its changelog is the partition of the same number of another topic.
type Partition struct {
	Topic      string
	Number     int32
	Partitions int    // of the topic
	Log        string // the topic of the changelog
	Memory     int64  // of the copy
}

// Options of Engines.
type Options struct {
	Logs    Logs
	Copies  func(topic string, partition int32, memory int64) storage.Copies
	Engine  func(topic string, partition int32) engine.Options
	Log     *slog.Logger
	Silence time.Duration // how long a log may give no answer before Open gives up
}

// Engines opens engines. It is safe for concurrent use.
type Engines struct {
	o Options

	mu       sync.Mutex // guards the rest
	slots    map[slot]chan struct{}
	prepared map[string]int // the partitions of the topics that were prepared
}

type slot struct {
	topic  string
	number int32
}

// New returns Engines. Nothing is opened yet.
func New(o Options) *Engines {
	return &Engines{o: o, slots: make(map[slot]chan struct{}), prepared: make(map[string]int)}
}

// An Engine is that of a partition which this process owns, until it is fenced, fails, or is ended.
type Engine struct {
	Engine  *engine.Engine
	Restore replica.Restore // what was read from the changelog

	store *replica.Store
	log   *slog.Logger // names the partition
	free  func()
	owned context.Context // ends with the ownership
	end   context.CancelFunc
	tasks sync.WaitGroup

	settling sync.Once
	settled  chan struct{} // closed when tasks have returned, after Settle
}

// ErrInUse means that the engine of the assignment before is not closed yet.
var ErrInUse = errors.New("hapax: the partition's former engine is not closed yet: a handler or OnOwned has not returned")

// ErrSilent means that the changelog has not answered for a while.
var ErrSilent = errors.New("hapax: the changelog does not answer: check the brokers")

// Open makes this process the owner of a partition: it prepares the changelog, restores the copy, opens
// an engine and calls use with it. It gives up when ctx ends, or when the log gives no answer for a while,
// and tells progress how far it is.
func (e *Engines) Open(ctx context.Context, p Partition, progress *Progress, use func(context.Context, *engine.Engine) error) (*Engine, error) {
	free, err := e.take(ctx, slot{p.Topic, p.Number})
	if err != nil {
		return nil, err
	}
	ctx, w, stop := watched(ctx, e.o.Silence)
	defer stop()
	log := &watchedLog{watch: w}
	log.progress.Store(progress)
	o, err := e.open(ctx, p, log)
	if err != nil {
		e.forget(p.Log)
		free()
		return nil, explained(ctx, err)
	}
	o.free = free
	revoke := context.AfterFunc(ctx, o.Revoke)
	if err = use(ctx, o.Engine); !revoke() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		e.forget(p.Log)
		o.Close()
		return nil, explained(ctx, err)
	}
	log.progress.Store(nil)
	return o, nil
}

func (e *Engines) open(ctx context.Context, p Partition, log *watchedLog) (*Engine, error) {
	log.watch.asked()
	err := e.prepare(ctx, p)
	log.watch.answered()
	if err != nil {
		return nil, err
	}
	log.Log = e.o.Logs.Log(p.Log, p.Number)
	lines := e.o.Log.With("topic", p.Topic, "partition", p.Number)
	store, err := replica.Open(ctx, log, e.o.Copies(p.Topic, p.Number, p.Memory), replica.Options{Logger: lines})
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, store.Revoke)() // it may append
	eng, err := engine.Open(store, e.o.Engine(p.Topic, p.Number))
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	o := &Engine{Engine: eng, Restore: store.Restore(), store: store, log: lines, settled: make(chan struct{})}
	o.owned, o.end = context.WithCancel(context.Background())
	return o, nil
}

// prepare prepares the topic of a changelog once.
func (e *Engines) prepare(ctx context.Context, p Partition) error {
	e.mu.Lock()
	n, found := e.prepared[p.Log]
	e.mu.Unlock()
	if found && n == p.Partitions {
		return nil
	}
	err := e.o.Logs.Prepare(ctx, p.Log, p.Partitions)
	if err == nil {
		e.mu.Lock()
		e.prepared[p.Log] = p.Partitions
		e.mu.Unlock()
	}
	return err
}

// forget makes the next Open prepare the topic again: what has failed may be its settings.
func (e *Engines) forget(topic string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.prepared, topic)
}

// take waits until no engine of the partition is open.
func (e *Engines) take(ctx context.Context, s slot) (free func(), err error) {
	e.mu.Lock()
	c := e.slots[s]
	if c == nil {
		c = make(chan struct{}, 1)
		e.slots[s] = c
	}
	e.mu.Unlock()
	timeout := time.NewTimer(e.o.Silence)
	defer timeout.Stop()
	select {
	case c <- struct{}{}:
		return func() { <-c }, nil
	case <-timeout.C:
		return nil, ErrInUse
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Wait waits until all engines are closed, or ctx ends. Nothing is opened any more.
func (e *Engines) Wait(ctx context.Context) error {
	e.mu.Lock()
	slots := slices.Collect(maps.Values(e.slots))
	e.mu.Unlock()
	for _, s := range slots {
		select {
		case s <- struct{}{}:
			<-s
			continue
		default: // one that is free counts although ctx has ended
		}
		select {
		case s <- struct{}{}:
			<-s
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Go runs fn in a goroutine with a context that ends with the ownership, or with ctx. Settle waits
// for it.
func (o *Engine) Go(ctx context.Context, fn func(context.Context)) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(o.owned, cancel)
	o.tasks.Go(func() {
		defer cancel()
		defer stop()
		defer func() {
			if v := recover(); v != nil {
				o.log.Error("hapax: OnOwned panicked; it is called again when the partition is assigned again",
					"panic", untrusted.Text(fmt.Sprint(v)), "stack", string(debug.Stack()))
			}
		}()
		fn(ctx)
	})
}

// Settle ends the contexts of Go and waits until what runs with them has returned, or ctx ends. Go is
// not called after it.
func (o *Engine) Settle(ctx context.Context) error {
	o.end()
	o.settling.Do(func() {
		go func() {
			defer close(o.settled)
			o.tasks.Wait()
		}()
	})
	select {
	case <-o.settled:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Revoke ends the ownership at once: a write that waits for the log returns, and nothing more is
// appended.
func (o *Engine) Revoke() { o.store.Revoke() }

// Close ends the ownership and closes the engine in the background, when all calls of it have ended.
func (o *Engine) Close() {
	o.end()
	o.Revoke()
	go func() {
		defer o.free()
		o.tasks.Wait()
		if err := o.Engine.Close(); err != nil && !ended(err) {
			o.log.Warn("hapax: closing the local copy of a changelog failed; it is restored when the partition is opened again", "error", err)
		}
	}()
}

// ended reports whether an engine was stopped by the end of its ownership.
func ended(err error) bool {
	return errors.Is(err, replica.ErrRevoked) || errors.Is(err, replica.ErrFenced) || errors.Is(err, replica.ErrUnknownOutcome)
}
