package kafkaadapter

import (
	"context"
	"fmt"
	"maps"
	"slices"
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
	DefaultDrainTimeout     = 10 * time.Second
	DefaultSilenceTimeout   = 30 * time.Second
	DefaultMaxBackoff       = 30 * time.Second
)

// Fixed values, which no application has had to set.
const (
	batchTime       = 100 * time.Millisecond // intended time of a batch's handlers: short, so that partitions can be revoked quickly
	commitInterval  = time.Second            // time between commits of the store's offsets to Kafka, which are for lag tools
	lagInterval     = 10 * time.Second       // time between look-ups of topics and of the ends of logs
	minBackoff      = 100 * time.Millisecond // the first pause
	allowedLateness = 7 * 24 * time.Hour     // maximum age of copies relative to the last handled events
)

// Options configure a Consumer. Group, Routes and the seed brokers in Client are required; the zero
// value of every other field is the stated default.
type Options struct {
	// Group is the consumer group.
	Group string
	// Routes are the consumed topics and how they are handled. Each topic belongs to one route.
	Routes []Route
	// Client configures the Kafka client: seed brokers, TLS, SASL, timeouts, hooks (kprom, kotel),
	// a logger (kslog). New returns an error for options that the adapter sets itself (group,
	// topics, offsets, balancers, isolation, callbacks, linger and buffer of the producer) if they
	// differ from kgo's defaults, for kgo.Rack, because fetching from followers is not supported, and
	// for kgo.WithPools, because handlers get copies of records. The adapter replaces
	// kgo.ProducerBatchMaxBytes, because only the brokers limit the size of dead letters. Several
	// consumers and relays may have the same hooks: OnNewClient is called for one client at a time.
	Client []kgo.Opt

	// Membership is how the consumer takes part in the group: by default as a dynamic member; see
	// Static, Pinned and Membership.ServerSide.
	Membership Membership

	// MaxBatch is the largest number of records in one batch of the store. The adapter chooses a
	// size between 1 and MaxBatch such that the handlers of a batch take about 100 ms together, and their
	// partition can be revoked quickly. If the process dies, the records of
	// one batch are handled one by one after the restart, to find a record that kills the process.
	// 0 = DefaultMaxBatch; at most MaxBatchLimit.
	MaxBatch int
	// MaxBufferedBytes bounds the memory of fetched, unhandled records of all partitions together,
	// after decompression, including the copies of records in progress for dead letters and further
	// attempts. Brokers are asked for as much as fits, according to the compression observed so
	// far. The partitions that have records share the memory, with at least one batch of the log
	// for each; a partition that has used its share is paused. While all of the memory is used,
	// nothing is fetched. Handlers that hang keep their records: if they keep all of the memory, no
	// other partition is read. Up to one batch of the log for each broker can exceed the bound.
	// kgo.FetchMaxBytes and kgo.FetchMaxPartitionBytes in Options.Client reduce how much is fetched
	// at a time.
	//
	// A single batch of the log that needs more memory is not decompressed (ErrLargeBatch,
	// LargeBatch). 0 = DefaultMaxBufferedBytes.
	MaxBufferedBytes int64

	// DrainTimeout is how long a running handler may continue after its partition is revoked or the
	// context of Run ends. After that, the handler's context ends, and nothing of its batch
	// commits. Keep it below the client's RebalanceTimeout. 0 = DefaultDrainTimeout.
	DrainTimeout time.Duration
	// SilenceTimeout is how long a partition with work may stay at its offset before it is reported
	// with what it waits for (ErrNoProgress): the broker, a handler, or the store. The reason why
	// the consumer is not ready is logged after half of this time. 0 = DefaultSilenceTimeout.
	SilenceTimeout time.Duration
	// MaxBackoff is the longest pause before a record or a stopped partition is retried. The pause
	// starts at 100 ms, doubles with each attempt, and is jittered. 0 = DefaultMaxBackoff.
	MaxBackoff time.Duration

	// Recovery chooses policies for kinds of disagreement between the store and Kafka. If it is
	// nil, the partition stops at each of them.
	Recovery Recovery
	// Changelog gives each partition a store of its own that other members can take over. Then New gets
	// no engine. nil: all partitions have the store of the engine.
	Changelog *Changelog
	// ReopenStore lets the consumer continue without claims when its store fails. Without it, Run ends
	// with the error. Events may then be handled more than once, and are counted
	// (dedup_kafka_unprotected_total). The function opens the store again and returns its engine;
	// after an error it is retried with MaxBackoff. docs/failures.md describes the
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

	// OnRebalance is called with the partitions that a rebalance changes, by topic. It must return
	// quickly, because the rebalance waits for it.
	OnRebalance func(change Change, partitions map[string][]int32)
	// OnStop is called when a partition stops, in the partition's goroutine, which waits for it;
	// and when a partition makes no progress (SilenceTimeout), in a separate goroutine. There is
	// one call at a time for each assignment: of the reports of no progress during a call, only the
	// last one is made after it. A call that does not return blocks only its own partition, and Run
	// does not wait for it longer than DrainTimeout.
	OnStop func(*StopError)

	// Set by tests.
	backoff                                                 pauseBounds
	batchTime, commitInterval, lagInterval, shutdownTimeout time.Duration
}

// A Change says what happens to partitions in a rebalance.
type Change uint8

// The changes.
const (
	// Assigned partitions are added to the assignment. Their records are handled after the call.
	// There may be no partitions.
	Assigned Change = iota
	// Revoked partitions are no longer assigned: their handlers have ended or were cut off
	// (DrainTimeout), and nothing of them commits. When Run ends, all partitions are revoked.
	Revoked
	// Lost partitions are Revoked ones that already belong to another member.
	Lost
)

// pauseBounds has the shortest and the longest pause before a record or a stopped partition is
// retried.
type pauseBounds struct{ Min, Max time.Duration }

func defaulted[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (o *Options) complete() {
	o.Routes, o.Recovery, o.Changelog = slices.Clone(o.Routes), maps.Clone(o.Recovery), o.Changelog.clone()
	for i := range o.Routes {
		o.Routes[i] = o.Routes[i].clone()
		defaulted(&o.Routes[i].Scope, o.Group)
		o.Routes[i].Policies = o.Routes[i].Policies.completed(o.Routes[i].DeadLetters != nil)
		defaulted(&o.Routes[i].allowedLateness, allowedLateness)
	}
	defaulted(&o.MaxBatch, DefaultMaxBatch)
	defaulted(&o.MaxBufferedBytes, DefaultMaxBufferedBytes)
	defaulted(&o.DrainTimeout, DefaultDrainTimeout)
	defaulted(&o.SilenceTimeout, DefaultSilenceTimeout)
	defaulted(&o.MaxBackoff, DefaultMaxBackoff)
	defaulted(&o.backoff.Max, o.MaxBackoff)
	defaulted(&o.backoff.Min, min(minBackoff, o.backoff.Max))
	defaulted(&o.batchTime, batchTime)
	defaulted(&o.commitInterval, commitInterval)
	defaulted(&o.lagInterval, lagInterval)
	defaulted(&o.shutdownTimeout, o.DrainTimeout)
}

// check returns an error for invalid options. Defaults must be set before.
func (o *Options) check() error {
	switch {
	case o.Group == "":
		return fmt.Errorf("%w: Options.Group is empty: name the consumer group", ErrOption)
	case len(o.Group) > limits.TopicBytes:
		return fmt.Errorf("%w: Options.Group has %d bytes: use at most %d", ErrOption, len(o.Group), limits.TopicBytes)
	case o.MaxBatch < 1 || o.MaxBatch > MaxBatchLimit:
		return fmt.Errorf("%w: Options.MaxBatch is %d: give 1 to %d", ErrOption, o.MaxBatch, MaxBatchLimit)
	case o.MaxBufferedBytes < 1<<20:
		return fmt.Errorf("%w: Options.MaxBufferedBytes is %d: give at least 1 MiB", ErrOption, o.MaxBufferedBytes)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"DrainTimeout", o.DrainTimeout}, {"SilenceTimeout", o.SilenceTimeout}, {"MaxBackoff", o.MaxBackoff},
	} {
		if d.value < 0 {
			return fmt.Errorf("%w: Options.%s is %v: give 0 or more", ErrOption, d.name, d.value)
		}
	}
	var err error
	if o.Telemetry, err = o.Telemetry.Complete(); err != nil {
		return fmt.Errorf("%w: Options.Telemetry.%w", ErrOption, err)
	}
	if err := o.Membership.check(); err != nil {
		return err
	}
	if err := o.Recovery.check(); err != nil {
		return err
	}
	if err := checkRoutes(o.Routes); err != nil {
		return err
	}
	if err := o.Changelog.check(o); err != nil {
		return err
	}
	for i := range o.Routes {
		if o.ReopenStore != nil && o.Routes[i].transactional() {
			return fmt.Errorf("%w: Options.ReopenStore is set, but Options.Routes[%d].Mode is Transactional, whose handlers need the store: use AtMostOnce, or a separate consumer without ReopenStore", ErrOption, i)
		}
	}
	return nil
}

// dependsOnShape reports whether a change of the number of partitions moves events between stores.
func (o *Options) dependsOnShape() bool { return o.Changelog != nil || o.Membership.pinned.count > 1 }
