package kafkaadapter

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/propagation"

	"github.com/hapax-dev/hapax/engine"
)

// What the zero values of Options stand for, and caps.
const (
	DefaultMaxBatch        = 512
	LimitBatch             = 16 << 10
	DefaultDrainTimeout    = 10 * time.Second
	DefaultShutdownTimeout = 10 * time.Second
	DefaultCommitInterval  = time.Second
	DefaultAllowedLateness = 7 * 24 * time.Hour
	DefaultFirstBackoff    = 100 * time.Millisecond
	DefaultLongestBackoff  = 30 * time.Second
)

// A Policy says what becomes of a record that the engine neither claims nor calls a duplicate.
type Policy uint8

// The policies.
const (
	Reject     Policy = iota // acknowledge it unhandled; counted and logged
	Process                  // handle it without a claim: it may be handled more than once; counted
	DeadLetter               // send it to the dead-letter topic
)

// A FailedPolicy says what becomes of a record that the engine could not judge although the store works, such as one
// that would pass a stated cap. If the store itself fails, the consumer always stops.
type FailedPolicy uint8

// The policies for records that could not be judged.
const (
	FailClosed FailedPolicy = iota // try again after the back-off; with the work, the limit of attempts applies
	FailOpen                       // handle it without a claim: it may be handled more than once; counted
)

// Start says where a partition is read from that neither the store nor the group knows.
type Start uint8

// The starts.
const (
	Earliest Start = iota // the oldest record that the broker has
	Latest                // only what comes after the assignment
)

// Options configure a Consumer. Group, Topics and Client's seed brokers are needed; the zero value of everything else is
// stated field by field.
type Options struct {
	// Group is the consumer group.
	Group string
	// Topics are the topics to consume.
	Topics []string
	// Client configures the Kafka client: seed brokers, TLS, SASL, timeouts, hooks (kprom, kotel), a logger (kslog). The
	// options that the adapter sets itself (group, topics, offsets, isolation, callbacks) are refused by New.
	Client []kgo.Opt
	// InstanceID makes the consumer a static member: it keeps its partitions through a restart that is shorter than the
	// session timeout. Empty: a dynamic member.
	InstanceID string
	// ServerSideAssignment uses the group protocol of KIP-848, for brokers that have it. Otherwise cooperative-sticky.
	ServerSideAssignment bool

	// Scope is the scope of the claims. Empty: the group's name. All topics of the consumer share it: ids that are
	// unique only within their topic need Identify.PerTopic.
	Scope string
	// SharedScope allows another group to claim in the same scope: each event is then handled by one of them.
	SharedScope bool
	// Identify says how a record's id and time are found.
	Identify Identify

	// Start is where to begin where neither store nor group knows the partition.
	Start Start
	// Positions chooses ways on where store and Kafka disagree. The zero value stops such a partition.
	Positions Positions

	// TooOld, TooNew and Failed are the policies for these verdicts.
	TooOld, TooNew Policy
	Failed         FailedPolicy

	// MaxBatch is the most records that one batch of the store carries; the adapter chooses between 1 and it by how long
	// the handlers take. 1: each record alone. After a process died, as many records as its batches held are handled one
	// by one, so that one that kills the process is found. 0 = DefaultMaxBatch; at most LimitBatch.
	MaxBatch int
	// BatchTime is what the handlers of one batch are aimed to take together, so that partitions can be given away soon.
	// 0 = 100 ms.
	BatchTime time.Duration

	// FirstBackoff and LongestBackoff bound the pause of a partition before a record is tried again: it doubles with
	// each attempt and is jittered. 0 = DefaultFirstBackoff, DefaultLongestBackoff.
	FirstBackoff, LongestBackoff time.Duration

	// DrainTimeout is how long a partition that is to be given away waits for the handler that runs. After it the work is
	// dropped: nothing of it commits, and its context ends. Keep it below the client's RebalanceTimeout.
	// 0 = DefaultDrainTimeout.
	DrainTimeout time.Duration
	// ShutdownTimeout is the same for the end of Run. 0 = DefaultShutdownTimeout.
	ShutdownTimeout time.Duration

	// CommitInterval is how often the store's offsets are committed to Kafka, for lag tools; nothing rests on it.
	// 0 = DefaultCommitInterval.
	CommitInterval time.Duration

	// AllowedLateness is how far behind the last handled events their repeats and neighbours may still come: no week is
	// dropped that is later than the partition's low mark less this. 0 = DefaultAllowedLateness.
	AllowedLateness time.Duration

	// Logger is told of duplicates, dead letters, stops and whatever is not a matter of course. nil = slog.Default().
	Logger *slog.Logger
	// DuplicateLevel is the level at which duplicates are logged. nil = slog.LevelDebug.
	DuplicateLevel slog.Leveler
	// Registerer registers the metrics of the package documentation. nil = none are registered.
	Registerer prometheus.Registerer
	// Propagator reads the trace context from a record's headers for its handler. nil = W3C trace context and baggage.
	Propagator propagation.TextMapPropagator
	// OnStop is called when a partition stops, from the goroutine that stops it; it returns soon. nil = nobody.
	OnStop func(*StopError)
}

func defaulted[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (o *Options) complete() {
	defaulted(&o.Scope, o.Group)
	defaulted(&o.MaxBatch, DefaultMaxBatch)
	defaulted(&o.BatchTime, 100*time.Millisecond)
	defaulted(&o.FirstBackoff, DefaultFirstBackoff)
	defaulted(&o.LongestBackoff, DefaultLongestBackoff)
	defaulted(&o.DrainTimeout, DefaultDrainTimeout)
	defaulted(&o.ShutdownTimeout, DefaultShutdownTimeout)
	defaulted(&o.CommitInterval, DefaultCommitInterval)
	defaulted(&o.AllowedLateness, DefaultAllowedLateness)
	defaulted(&o.Logger, slog.Default())
	if o.DuplicateLevel == nil {
		o.DuplicateLevel = slog.LevelDebug
	}
}

// check refuses what cannot work. It is called on completed options.
func (o *Options) check() error {
	switch {
	case o.Group == "":
		return fmt.Errorf("%w: Options.Group is empty", ErrOption)
	case len(o.Group) > engine.MaxTopicBytes:
		return fmt.Errorf("%w: Options.Group has %d bytes, the cap is %d", ErrOption, len(o.Group), engine.MaxTopicBytes)
	case strings.TrimSpace(o.Scope) == "" || len(o.Scope) > engine.MaxScopeBytes:
		return fmt.Errorf("%w: Options.Scope %q is blank or has more than %d bytes: no event could be claimed", ErrOption, o.Scope, engine.MaxScopeBytes)
	case len(o.Topics) == 0:
		return fmt.Errorf("%w: Options.Topics is empty", ErrOption)
	case o.MaxBatch < 1 || o.MaxBatch > LimitBatch:
		return fmt.Errorf("%w: Options.MaxBatch is %d: give 1 to %d", ErrOption, o.MaxBatch, LimitBatch)
	case o.FirstBackoff > o.LongestBackoff:
		return fmt.Errorf("%w: Options.FirstBackoff %v is longer than LongestBackoff %v", ErrOption, o.FirstBackoff, o.LongestBackoff)
	case o.TooOld > DeadLetter || o.TooNew > DeadLetter || o.Failed > FailOpen || o.Start > Latest:
		return fmt.Errorf("%w: a policy or Start has no such value", ErrOption)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"BatchTime", o.BatchTime}, {"FirstBackoff", o.FirstBackoff}, {"DrainTimeout", o.DrainTimeout},
		{"ShutdownTimeout", o.ShutdownTimeout}, {"CommitInterval", o.CommitInterval}, {"AllowedLateness", o.AllowedLateness},
	} {
		if d.value < 0 {
			return fmt.Errorf("%w: Options.%s is %v", ErrOption, d.name, d.value)
		}
	}
	if err := o.Positions.check(); err != nil {
		return err
	}
	return o.Identify.validate()
}
