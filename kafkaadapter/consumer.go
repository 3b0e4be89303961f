package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kgohooks"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/feed"
)

// A Consumer reads topics as a member of a consumer group and calls the mode's handler for each
// event. New makes a Consumer, and Run runs it. Several consumers of one process may share an
// engine; partitions can then move between them. A partition that moves to a member with a
// different store stops there (ErrForeignStore).
type Consumer struct {
	shared  *shared
	parts   *assignments // the current assignments
	store   *binder
	commits *committer
	assign  *assigner
	pin     *pinner
	poll    *poller

	ran    atomic.Bool
	hooks  kgohooks.Owner // makes the client
	behind sync.WaitGroup // the loops
}

// New checks everything that can be checked without a broker. The engine stays the caller's; close
// it after Run. It may be nil if Options.ReopenStore is set, which opens it, and must be nil with
// Options.Changelog.
func New(eng *engine.Engine, options Options) (*Consumer, error) {
	switch {
	case eng == nil && options.ReopenStore == nil && options.Changelog == nil:
		return nil, errNilEngine
	case eng != nil && options.Changelog != nil:
		return nil, fmt.Errorf("%w: New has an engine, and Options.Changelog is set, with which each partition has its own: give nil", ErrOption)
	}
	options.complete()
	if err := options.check(); err != nil {
		return nil, err
	}
	if err := checkClient(options.Client, &options.Membership); err != nil {
		return nil, err
	}
	if eng != nil {
		if err := checkWindows(options.Routes, eng); err != nil {
			return nil, err
		}
	}
	c := newConsumer(options)
	if eng != nil {
		c.shared.links.set(newLink(eng, deadletter.Secrets{})) // Run reads them
	}
	var err error
	if c.shared.decompressor, err = feed.NewDecompressor(c.shared.memory); err != nil {
		return nil, err
	}
	c.shared.m, err = newMetrics(&c.shared.opt, c.shared.opt.Telemetry.Registerer, c.gauges)
	return c, err
}

func (c *Consumer) gauges(labels prometheus.Labels) prometheus.Collector {
	return newGauges(c.shared, c.parts, c.Ready, labels)
}

// newConsumer makes the parts of a consumer.
func newConsumer(options Options) *Consumer {
	s := &shared{opt: options, links: links{failed: make(chan struct{}, 1)}, memory: feed.NewMemory(options.MaxBufferedBytes, max(4*options.MaxBatch, 512)), surveys: make(chan struct{}, 4), fatal: make(chan error, 1)}
	s.reach.Grace, s.reach.Quiet = options.SilenceTimeout/3, options.SilenceTimeout
	if options.Changelog != nil {
		s.stores = &stores{opt: &s.opt}
	}
	parts := newAssignments(s.memory)
	commits := newCommitter(s, parts)
	ask := requests{&openings{}, make(chan *partition, 16), commits}
	assign := &assigner{shared: s, parts: parts, commits: commits, requests: ask, awaited: make(map[topicPartition]bool)}
	return &Consumer{
		shared: s, parts: parts, commits: commits, assign: assign,
		store: &binder{shared: s, parts: parts}, pin: &pinner{assigner: assign, repin: make(chan struct{}, 1)}, poll: &poller{shared: s, parts: parts, openings: ask.openings},
	}
}

// Run consumes until ctx ends, and then waits for running handlers for at most
// Options.DrainTimeout. It returns nil, or an error that wraps context.DeadlineExceeded if
// handlers were cut off. It returns earlier with an error if it cannot continue, because the store
// has failed (without Options.ReopenStore), the group rejects this member, or the client's own context
// (kgo.WithContext) has ended. A partition that cannot be read does not end Run (see Stopped).
// Commits to the store are durable in any case.
func (c *Consumer) Run(ctx context.Context) (err error) {
	if c.ran.Swap(true) {
		return ErrAlreadyRan
	}
	defer func() { c.shared.health.outcome.Store(&err) }()
	defer c.shared.m.unregister()
	switch err := c.store.connect(ctx); {
	case err != nil && errors.Is(err, ctx.Err()):
		return nil // ctx ended before Run began
	case err != nil:
		return err
	}
	defer c.store.release()
	var began time.Time // the end
	defer func() { c.endStores(began) }()
	defer c.hooks.Close()
	client, endClient, err := clientContext(c.shared.opt.Client)
	if err != nil {
		return err
	}
	defer endClient()
	if _, err := c.hooks.NewClient(append(c.clientOptions(), kgo.WithContext(client))...); err != nil { // it calls OnNewClient
		return fmt.Errorf("hapax: making the Kafka client: %w", err)
	}

	polling, stopPolling := context.WithCancelCause(ctx)
	defer stopPolling(nil)
	c.behind.Go(func() { c.commits.commitLoop(polling) })
	c.behind.Go(func() { c.shared.wakeLoop(polling, c.parts) })
	c.behind.Go(func() { c.shared.watchLoop(polling, c.parts, c.Ready) })
	c.behind.Go(func() { c.shared.lagLoop(polling, c.parts) })
	c.behind.Go(func() { c.forgetLoop(polling) })
	c.behind.Go(func() { c.shared.letterTopicLoop(polling) })
	if c.shared.opt.ReopenStore != nil {
		c.behind.Go(func() { c.store.reopenLoop(polling) })
	}
	if c.shared.opt.Membership.isPinned() {
		c.behind.Go(func() { c.pin.pinLoop(polling) })
	}
	c.behind.Go(func() {
		select {
		case err := <-c.shared.fatal:
			stopPolling(err)
		case <-polling.Done():
		}
	})
	c.behind.Go(func() { c.shared.topicLoop(polling, c.parts) })
	if err := c.poll.pollLoop(polling); err != nil {
		stopPolling(err)
	}
	cause := context.Cause(polling)
	stopPolling(cause)
	c.shared.brokers.client.AllowRebalance()
	loops := make(chan struct{})
	go func() {
		c.behind.Wait()
		close(loops)
	}()
	select {
	case <-loops:
	case <-time.After(fenceTime): // requests to brokers that do not answer may take longer than their contexts
	}
	began = time.Now()
	err = c.shutdown(began, endClient)
	endClient()
	<-loops
	if ctx.Err() == nil { // ctx has not ended
		return errors.Join(cause, err)
	}
	select {
	case failed := <-c.shared.fatal: // while it ended
		return errors.Join(failed, err)
	default:
		return err
	}
}

// endStores waits for the stores of partitions that are being closed, in the time that shutdown has left.
func (c *Consumer) endStores(began time.Time) {
	if s := c.shared.stores; s != nil {
		ctx, cancel := context.WithDeadline(context.Background(), began.Add(c.shared.opt.shutdownTimeout))
		defer cancel()
		s.end(ctx)
	}
}

// shutdown ends the partitions, commits their offsets to Kafka, and leaves the group. A static
// member does not leave, and gets its partitions back if it returns within the session timeout. Requests
// to brokers that do not answer are given up after DrainTimeout: endClient ends the client's context.
func (c *Consumer) shutdown(began time.Time, endClient func()) error {
	c.assign.closing.Store(true)
	c.shared.brokers.client.AllowRebalance()
	all, cut := c.assign.drainAtEnd(c.shared.opt.shutdownTimeout)
	left := max(c.shared.opt.shutdownTimeout-time.Since(began), fenceTime)
	defer time.AfterFunc(left, endClient).Stop()
	if c.shared.opt.Membership.isPinned() {
		c.assign.callRevoked(all)
	} else {
		c.leave(min(leaveTime, left))
	}
	c.shared.brokers.client.CloseAllowingRebalance()
	// Close leaves again in the background and polls fetched records. Without this, leaving would
	// wait forever.
	c.shared.brokers.client.AllowRebalance()
	late := c.parts.close() // assigned meanwhile: nothing of them was read
	cut += c.assign.drain(late, 0)
	ctx, cancel := context.WithDeadline(context.Background(), began.Add(c.shared.opt.shutdownTimeout))
	defer cancel()
	for _, p := range append(all, late...) {
		p.onStop.wait(ctx)
	}
	if cut > 0 {
		return fmt.Errorf("hapax: %d partitions were cut off while their handlers ran; let handlers watch their context, or raise Options.DrainTimeout: %w", cut, context.DeadlineExceeded)
	}
	return nil
}

// leaveTime bounds the request to leave the group. A broker that does not answer must not delay the
// end of the process; it removes the member after the session timeout.
const leaveTime = 3 * time.Second

func (c *Consumer) leave(limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := c.shared.brokers.client.LeaveGroupContext(ctx); err != nil {
		c.shared.opt.Telemetry.Logger.Warn("leaving the group failed; the brokers remove the member after the session timeout", "group", c.shared.opt.Group, "error", err)
	}
}

// forgetLoop executes the requests of forget. A goroutine of a partition cannot do it itself: the
// client waits for callbacks then, which wait for the goroutines.
func (c *Consumer) forgetLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-c.assign.requests.forgetting:
			switch {
			case p.isEnding():
			case c.shared.opt.Membership.isPinned():
				c.pin.repinTopic(p.pos.Topic)
			default:
				c.shared.brokers.client.PurgeTopicsFromConsuming(p.pos.Topic)
				c.shared.brokers.client.AddConsumeTopics(p.pos.Topic)
			}
		}
	}
}
