package kafkaadapter

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/telemetry"
)

// Defaults for zero values of Options, and limits.
const (
	DefaultMaxBatch         = 512
	MaxBatchLimit           = 16 << 10
	DefaultMaxBufferedBytes = 128 << 20
	DefaultBatchTime        = 100 * time.Millisecond
	DefaultDrainTimeout     = 10 * time.Second
	DefaultShutdownTimeout  = 10 * time.Second
	DefaultSilenceTimeout   = 30 * time.Second
	DefaultCommitInterval   = time.Second
	DefaultAllowedLateness  = 7 * 24 * time.Hour
	DefaultMinBackoff       = 100 * time.Millisecond
	DefaultMaxBackoff       = 30 * time.Second
)

// lagInterval is the time between look-ups of topics and of the ends of the logs, for the lag of partitions.
const lagInterval = 10 * time.Second

// Options configure a Consumer. Group, Routes and the seed brokers in Client are required; the zero
// value of every other field has a stated default.
type Options struct {
	// Group is the consumer group.
	Group string
	// Routes says which topics are consumed, and how. Each topic belongs to one route.
	Routes []Route
	// Client configures the Kafka client: seed brokers, TLS, SASL, timeouts, hooks (kprom, kotel),
	// a logger (kslog). New returns an error for options that the adapter sets itself (group,
	// topics, offsets, balancers, isolation, callbacks, linger and buffer of the producer) if they
	// differ from kgo's defaults, for kgo.Rack, because fetching from followers is not supported, and
	// for kgo.WithPools, because handlers get copies of records. The adapter replaces
	// kgo.ProducerBatchMaxBytes, because only the brokers limit the size of dead letters. Several
	// consumers and relays may have the same hooks: OnNewClient is called for one client at a time.
	Client []kgo.Opt

	// Membership is the consumer's part in the group.
	Membership Membership
	// Batching bounds the batches of a partition.
	Batching Batching
	// Timeouts bound the end of assignments and of Run, and the pauses of a partition.
	Timeouts Timeouts
	// Recovery chooses policies for kinds of disagreement between the store and Kafka. nil: the
	// partition stops at each of them.
	Recovery Recovery
	// ReopenStore lets the consumer continue without claims when its store fails. Without it, Run ends
	// with the error. Events may then be handled more than once, and are counted
	// (dedup_kafka_unprotected_total). The function opens the store again and returns its engine;
	// after an error it is retried with Timeouts.Backoff. docs/failures.md describes the
	// cases, and docs/operations.md has a function.
	//
	// The engine stays the application's: ReopenStore must close the failed engine before it opens the
	// store, and the application closes the last engine after Run. If several consumers share an
	// engine and ReopenStore, it must return the engine that it has already opened as long as that
	// engine's Err is nil. All routes must be AtMostOnce, because without a store there is no
	// transaction.
	ReopenStore func(ctx context.Context) (*engine.Engine, error)
	// Telemetry says where logs, metrics and traces go. Metrics are registered from New until Run returns.
	Telemetry telemetry.Options
	// Hooks are functions of the application that the consumer calls.
	Hooks Hooks

	lagInterval time.Duration // between look-ups of topics and of the ends of logs; set by tests
}

// Membership is the consumer's part in the group.
type Membership struct {
	// InstanceID makes the consumer a static member, which keeps its partitions during a restart
	// shorter than the session timeout. If empty, it is a dynamic member.
	InstanceID string
	// ServerSideAssignment selects the group protocol of KIP-848, for brokers that support it. The
	// default is the classic protocol, cooperative-sticky. With KIP-848, the brokers choose the
	// heartbeat interval (group.consumer.heartbeat.interval.ms, 5 s by default), which the client
	// does not report. A fenced partition waits for kgo.HeartbeatInterval before it is taken over
	// again: set that option in Client to the brokers' interval if it is longer than the client's
	// default of 3 s.
	ServerSideAssignment bool
	// Pinned gives the consumer a fixed part of the partitions. With the zero value, it is a member
	// of the group instead.
	Pinned Pinned
	// CommitInterval is the time between commits of the store's offsets to Kafka. They are for lag
	// tools; no guarantee depends on them. 0 = DefaultCommitInterval.
	CommitInterval time.Duration
}

// Batching bounds the batches of a partition.
type Batching struct {
	// MaxBatch is the largest number of records in one batch of the store. The adapter chooses a
	// size between 1 and MaxBatch by the duration of handlers. If the process dies, the records of
	// one batch are handled one by one after the restart, to find a record that kills the process.
	// 0 = DefaultMaxBatch; at most MaxBatchLimit.
	MaxBatch int
	// BatchTime is the time that the handlers of one batch should take together, so that partitions
	// can be revoked quickly. With Route.Concurrency, it is the time from the start of the first
	// handler to the start of the last. 0 = DefaultBatchTime.
	BatchTime time.Duration
	// MaxBufferedBytes bounds the memory of fetched records that are not handled yet, of all
	// partitions together, after decompression, with the copies of those in progress that dead letters
	// and further attempts are made from. Brokers are asked for as much as fits, by the compression
	// observed so far. The partitions that have records share the memory, at least a batch of the log
	// each; one that has used its share is paused. While all of it is used, nothing is fetched.
	// Handlers that hang keep their records: if they keep all of the memory, no other partition is
	// read. Up to one batch of the log for each broker can exceed the bound. kgo.FetchMaxBytes and
	// kgo.FetchMaxPartitionBytes in Options.Client lower what is fetched at a time.
	//
	// A batch of the log that alone needs more memory, with its records, is not decompressed
	// (ErrLargeBatch, Route.LargeBatch). 0 = DefaultMaxBufferedBytes.
	MaxBufferedBytes int64
}

// Backoff bounds the pauses before a record or a stopped partition is retried. The pause doubles
// with each attempt and is jittered.
type Backoff struct {
	// Min and Max are the shortest and the longest pause. 0 = DefaultMinBackoff, DefaultMaxBackoff.
	Min, Max time.Duration
}

// Timeouts bound the end of assignments and of Run, and the pauses of a partition.
type Timeouts struct {
	// Drain is the time that a revoked partition waits for its running handler. After that, the
	// handler's context ends, and nothing of its batch commits. Keep it below the client's
	// RebalanceTimeout. 0 = DefaultDrainTimeout.
	Drain time.Duration
	// Shutdown is the same for the end of Run. 0 = DefaultShutdownTimeout.
	Shutdown time.Duration
	// Silence is how long a partition that has something to do may stay at its offset before it is
	// reported with what it waits for (ErrNoProgress): the broker, a handler, or the store. A reason
	// for which the consumer is not ready is logged after half of it. 0 = DefaultSilenceTimeout.
	Silence time.Duration
	// Backoff bounds the pauses before a record or a stopped partition is retried.
	Backoff Backoff
}

// Hooks are functions of the application that the consumer calls. They must return quickly, because
// rebalances wait for those about assignments.
type Hooks struct {
	// OnAssigned is called with the partitions that are added to the assignment, by topic, before a
	// record of them is handled. It is called with none after a rebalance that adds none.
	OnAssigned func(partitions map[string][]int32)
	// OnRevoked is called with revoked partitions after their handlers have ended or were cut off
	// (Timeouts.Drain); nothing of them commits after that. When Run ends, it is called for all
	// partitions.
	OnRevoked func(partitions map[string][]int32)
	// OnLost is OnRevoked for partitions that already belong to another member.
	OnLost func(partitions map[string][]int32)
	// OnStop is called when a partition stops, from the partition's goroutine, which waits for it, and
	// when a partition makes no progress (Timeouts.Silence), from a goroutine of its own. Calls for
	// an assignment come one at a time: of the reports of no progress that come during a call, the
	// last is made after it. A call that does not return stops at most its own partition, and Run
	// does not wait for it longer than Timeouts.Shutdown.
	OnStop func(*StopError)
}

func defaulted[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (o *Options) complete() {
	o.Routes, o.Recovery = slices.Clone(o.Routes), maps.Clone(o.Recovery)
	for i := range o.Routes {
		o.Routes[i] = o.Routes[i].clone()
		defaulted(&o.Routes[i].Scope, o.Group)
		o.Routes[i].complete()
		defaulted(&o.Routes[i].AllowedLateness, DefaultAllowedLateness)
	}
	defaulted(&o.Membership.CommitInterval, DefaultCommitInterval)
	defaulted(&o.Batching.MaxBatch, DefaultMaxBatch)
	defaulted(&o.Batching.MaxBufferedBytes, DefaultMaxBufferedBytes)
	defaulted(&o.Batching.BatchTime, DefaultBatchTime)
	defaulted(&o.Timeouts.Backoff.Min, DefaultMinBackoff)
	defaulted(&o.Timeouts.Backoff.Max, DefaultMaxBackoff)
	defaulted(&o.Timeouts.Drain, DefaultDrainTimeout)
	defaulted(&o.Timeouts.Shutdown, DefaultShutdownTimeout)
	defaulted(&o.lagInterval, lagInterval)
	defaulted(&o.Timeouts.Silence, DefaultSilenceTimeout)
}

// check returns an error for invalid options. Defaults must be set before.
func (o *Options) check() error {
	switch {
	case o.Group == "":
		return fmt.Errorf("%w: Options.Group is empty: name the consumer group", ErrOption)
	case len(o.Group) > limits.TopicBytes:
		return fmt.Errorf("%w: Options.Group has %d bytes: use at most %d", ErrOption, len(o.Group), limits.TopicBytes)
	case o.Batching.MaxBatch < 1 || o.Batching.MaxBatch > MaxBatchLimit:
		return fmt.Errorf("%w: Options.Batching.MaxBatch is %d: give 1 to %d", ErrOption, o.Batching.MaxBatch, MaxBatchLimit)
	case o.Batching.MaxBufferedBytes < 1<<20:
		return fmt.Errorf("%w: Options.Batching.MaxBufferedBytes is %d: give at least 1 MiB", ErrOption, o.Batching.MaxBufferedBytes)
	case o.Timeouts.Backoff.Min > o.Timeouts.Backoff.Max:
		return fmt.Errorf("%w: Options.Timeouts.Backoff.Min %v is longer than Max %v: raise Max or lower Min", ErrOption, o.Timeouts.Backoff.Min, o.Timeouts.Backoff.Max)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"Membership.CommitInterval", o.Membership.CommitInterval}, {"Batching.BatchTime", o.Batching.BatchTime},
		{"Timeouts.Backoff.Min", o.Timeouts.Backoff.Min}, {"Timeouts.Drain", o.Timeouts.Drain}, {"Timeouts.Shutdown", o.Timeouts.Shutdown},
		{"Timeouts.Silence", o.Timeouts.Silence},
	} {
		if d.value < 0 {
			return fmt.Errorf("%w: Options.%s is %v: give 0 or more", ErrOption, d.name, d.value)
		}
	}
	var err error
	if o.Telemetry, err = o.Telemetry.Complete(); err != nil {
		return fmt.Errorf("%w: Options.Telemetry.%w", ErrOption, err)
	}
	if err := o.Membership.checkPinned(); err != nil {
		return err
	}
	if err := o.Recovery.check(); err != nil {
		return err
	}
	if err := checkRoutes(o.Routes); err != nil {
		return err
	}
	for i := range o.Routes {
		if o.ReopenStore != nil && o.Routes[i].transactional() {
			return fmt.Errorf("%w: Options.ReopenStore is set, but Options.Routes[%d].Mode is Transactional, whose handlers need the store: use AtMostOnce, or a separate consumer without ReopenStore", ErrOption, i)
		}
	}
	return nil
}

func (m *Membership) isPinned() bool { return m.Pinned.Count != 0 }

// label names the consumer among those of its group in metrics.
func (m *Membership) label() string {
	if m.isPinned() {
		return strconv.Itoa(m.Pinned.Index)
	}
	return m.InstanceID
}

// dependsOnShape reports whether a change of the number of partitions moves events between stores.
func (m *Membership) dependsOnShape() bool { return m.Pinned.Count > 1 }

func (m *Membership) checkPinned() error {
	switch s := m.Pinned; {
	case s == Pinned{}:
		return nil
	case s.Count < 1 || s.Index < 0 || s.Index >= s.Count:
		return fmt.Errorf("%w: Options.Membership.Pinned is %d of %d: give an Index from 0 to Count-1", ErrOption, s.Index, s.Count)
	case m.InstanceID != "" || m.ServerSideAssignment:
		return fmt.Errorf("%w: Options.Membership.Pinned is set with InstanceID or ServerSideAssignment, which are for members of a group: leave them out", ErrOption)
	}
	return nil
}
