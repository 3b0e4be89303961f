package kafkaadapter

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// A Consumer reads topics as a member of a group and hands each event to the mode's handler. New
// makes one; Run runs it. Several consumers of one process may share an engine: partitions then
// move between them. Members of a group that do not share a store are stopped as soon as a
// partition moves (ErrForeignStore).
type Consumer struct {
	links links // to the store
	opt   Options
	m     *metrics

	client *kgo.Client
	admin  *kadm.Client

	publishers map[string]*deadletter.Publisher // by dead-letter topic

	ran     atomic.Bool
	closing atomic.Bool
	fatal   chan error // the failure that ends Run

	openings   openings     // what the poll loop is asked to do
	queueBytes atomic.Int64 // what each queue may hold
	forgetting chan *partition
	throttle   throttle
	pauses     pauses
	health     health
	repin      chan struct{} // wakes pinLoop
	adopting   sync.Mutex    // held by AdoptOffset
	committing chan struct{} // full while offsets are committed to Kafka

	mu    sync.Mutex                    // guards parts; no I/O under it
	parts map[topicPartition]*partition // the present assignment

	behind sync.WaitGroup
}

type topicPartition struct {
	topic     string
	partition int32
}

func (tp topicPartition) String() string { return fmt.Sprintf("%s/%d", tp.topic, tp.partition) }

// New checks everything that can be checked without a broker. The engine stays the caller's; close
// it after Run. It may be nil if Options.FailOpen is set, which opens it.
func New(eng *engine.Engine, options Options) (*Consumer, error) {
	if eng == nil && options.FailOpen == nil {
		return nil, fmt.Errorf("%w: the engine is nil: open one with engine.Open", ErrOption)
	}
	options.complete()
	if err := options.check(); err != nil {
		return nil, err
	}
	if err := checkClient(options.Client); err != nil {
		return nil, err
	}
	c := &Consumer{
		opt: options, links: links{failed: make(chan struct{}, 1)},
		fatal: make(chan error, 1), forgetting: make(chan *partition, 16), repin: make(chan struct{}, 1), parts: make(map[topicPartition]*partition),
		committing: make(chan struct{}, 1),
	}
	if eng != nil {
		c.links.set(newLink(eng, nil)) // Run reads the secret
	}
	var err error
	c.m, err = newMetrics(c, options.Telemetry.Registerer)
	return c, err
}

// Stopped lists the partitions of the present assignment that are not read, and why.
func (c *Consumer) Stopped() (all []*StopError) {
	for _, p := range c.partitions() {
		if e := p.status().stop; e != nil {
			all = append(all, e)
		}
	}
	return all
}

// Run consumes until ctx ends, and then lets the handlers that run finish, for at most
// Options.Timeouts.Shutdown. It returns nil after that; an error that wraps
// context.DeadlineExceeded if handlers had to be cut off; or what made going on impossible: a
// failed store (without Options.FailOpen), a group that refuses this member. A partition that
// cannot be read does not end Run (see Stopped). What was committed to the store is there in any
// case.
func (c *Consumer) Run(ctx context.Context) (err error) {
	if c.ran.Swap(true) {
		return ErrAlreadyRan
	}
	defer func() { c.health.outcome.Store(&err) }()
	defer c.m.unregister()
	switch err := c.connect(ctx); {
	case err != nil && errors.Is(err, ctx.Err()):
		return nil // it was asked to end before it began
	case err != nil:
		return err
	}
	if _, err := kgo.NewClient(c.clientOptions()...); err != nil { // it calls OnNewClient
		return fmt.Errorf("hapax: making the Kafka client: %w", err)
	}

	polling, stopPolling := context.WithCancelCause(ctx)
	defer stopPolling(nil)
	c.behind.Go(func() { c.commitLoop(polling) })
	c.behind.Go(func() { c.lagLoop(polling) })
	c.behind.Go(func() { c.forgetLoop(polling) })
	c.behind.Go(func() { c.letterTopicLoop(polling) })
	if c.opt.FailOpen != nil {
		c.behind.Go(func() { c.reopenLoop(polling) })
	}
	if c.opt.Membership.isPinned() {
		c.behind.Go(func() { c.pinLoop(polling) })
	}
	c.behind.Go(func() {
		select {
		case err := <-c.fatal:
			stopPolling(err)
		case <-polling.Done():
		}
	})
	c.lookForTopics(polling)
	c.pollLoop(polling)
	cause := context.Cause(polling)
	stopPolling(cause)
	c.client.AllowRebalance()
	c.behind.Wait()
	err = c.shutdown()
	if ctx.Err() == nil { // it was not asked to end
		return errors.Join(cause, err)
	}
	select {
	case failed := <-c.fatal: // while it ended
		return errors.Join(failed, err)
	default:
		return err
	}
}

// A newClient takes the client over when it is made and before it joins the group: its callbacks
// may come before kgo.NewClient has returned it.
type newClient struct{ c *Consumer }

var _ kgo.HookNewClient = newClient{}

func (n newClient) OnNewClient(client *kgo.Client) {
	n.c.client, n.c.admin = client, kadm.NewClient(client)
	n.c.publishers = make(map[string]*deadletter.Publisher)
	for _, topic := range n.c.opt.letterTopics() {
		n.c.publishers[topic] = deadletter.NewPublisher(client, topic)
	}
}

// lookForTopics warns of topics that do not exist: the client waits for them without a word.
func (c *Consumer) lookForTopics(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	details, err := c.admin.ListTopics(ctx, c.opt.topics()...)
	if err != nil {
		c.opt.Telemetry.Logger.Warn("the brokers cannot be asked for the topics; the client tries again", "group", c.opt.Group, "error", err)
		return
	}
	for _, d := range details {
		if d.Err != nil {
			c.opt.Telemetry.Logger.Error("a topic cannot be consumed; the client waits for it", "topic", d.Topic, "error", d.Err)
		}
	}
}

// bind makes sure that no other group claims in the scopes of the routes, unless that is wanted,
// and gets the store's secret.
func (c *Consumer) bind(ctx context.Context, eng *engine.Engine) (*link, error) {
	var secret []byte
	err := eng.Update(ctx, func(tx *engine.Tx) (err error) {
		if secret, err = bindSecret(tx); err != nil {
			return err
		}
		if err := c.bindPinned(tx); err != nil {
			return err
		}
		for i := range c.opt.Routes {
			if err := c.bindScope(tx, &c.opt.Routes[i]); err != nil {
				return err
			}
		}
		return nil
	}, engine.Retries(10))
	if err != nil {
		return nil, err
	}
	return newLink(eng, secret), nil
}

func (c *Consumer) bindScope(tx *engine.Tx, r *Route) error {
	key := scopeKey(r.Scope)
	group, found, err := tx.Get(key)
	switch {
	case err != nil:
		return err
	case !found:
		return tx.Put(key, []byte(c.opt.Group))
	case string(group) != c.opt.Group && !r.SharedScope:
		return fmt.Errorf("%w: scope %q belongs to group %q", ErrScopeShared, r.Scope, group)
	}
	return nil
}

func bindSecret(tx *engine.Tx) ([]byte, error) {
	secret, found, err := tx.Get(secretKey())
	if err != nil || found {
		return secret, err
	}
	secret = make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return nil, err
	}
	return secret, tx.Put(secretKey(), secret)
}

// fail ends Run.
func (c *Consumer) fail(err error) {
	select {
	case c.fatal <- err:
	default: // the first one counts
	}
}

// shutdown lets the partitions end, commits their offsets to Kafka, and leaves the group. A static
// member stays in it, and has its partitions back if it returns within the session timeout.
func (c *Consumer) shutdown() error {
	c.closing.Store(true)
	c.client.AllowRebalance()
	all := c.takeAll()
	cut := c.drain(all, c.opt.Timeouts.Shutdown)
	if c.opt.Membership.isPinned() {
		c.callRevoked(all)
	} else {
		c.leave()
	}
	c.client.CloseAllowingRebalance()
	c.client.AllowRebalance() // Close leaves once more, behind, and polls what is fetched: the leaving would wait for ever
	all = c.takeAll()         // assigned in the meantime: nothing of them was read
	cut += c.drain(all, 0)
	if cut > 0 {
		return fmt.Errorf("hapax: %d partitions were cut off while their handlers ran: %w", cut, context.DeadlineExceeded)
	}
	return nil
}

// leaveTime is how long the brokers may take to let the member go. One that does not answer must
// not keep the process; it forgets the member after the session timeout.
const leaveTime = 3 * time.Second

func (c *Consumer) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	if err := c.client.LeaveGroupContext(ctx); err != nil {
		c.opt.Telemetry.Logger.Warn("leaving the group failed; it forgets the member after the session timeout", "group", c.opt.Group, "error", err)
	}
}

func (c *Consumer) takeAll() (all []*partition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for tp, p := range c.parts {
		all = append(all, p)
		delete(c.parts, tp)
	}
	return all
}

func (c *Consumer) partition(tp topicPartition) *partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.parts[tp]
}

// whileAssigned runs fn if p is what the client fetches for. A pause or a stop that comes late must
// not hit the next assignment of the same partition. fn may be called under p.mu; it does not
// block.
func (c *Consumer) whileAssigned(p *partition, fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parts[p.tp()] == p {
		fn()
	}
}

func (c *Consumer) isAssigned(p *partition) (yes bool) {
	c.whileAssigned(p, func() { yes = true })
	return yes
}

func (c *Consumer) partitions() []*partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*partition, 0, len(c.parts))
	for _, p := range c.parts {
		all = append(all, p)
	}
	return all
}

// share divides the memory for fetched records among the partitions.
func (c *Consumer) share() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queueBytes.Store(c.opt.Batching.MaxBufferedBytes / 2 / int64(max(1, len(c.parts))))
}

// forget asks for a partition's topic to be forgotten by the client and found again. The partitions
// are assigned anew then.
func (c *Consumer) forget(p *partition) {
	select {
	case c.forgetting <- p:
	default: // it asks again
	}
}

// forgetLoop does what forget asks for: the client waits for the callbacks then, and they wait for
// the goroutines.
func (c *Consumer) forgetLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-c.forgetting:
			switch {
			case p.isEnding():
			case c.opt.Membership.isPinned():
				c.repinTopic(p.pos.Topic)
			default:
				c.client.PurgeTopicsFromConsuming(p.pos.Topic)
				c.client.AddConsumeTopics(p.pos.Topic)
			}
		}
	}
}
