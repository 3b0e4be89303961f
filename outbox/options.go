package outbox

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/telemetry"
)

// Options configure a Relay. Client must be set, unless the relay is disabled.
type Options struct {
	// Client configures the Kafka clients: seed brokers, TLS, SASL, hooks (kprom, kotel) and other
	// producer options. The relay itself sets the partitioner, the acks and the size of the buffer.
	// It makes several clients, one after the other if it connects again. OnNewClient of a hook is
	// called once, for the first client, and OnClientClosed at the end of Run.
	Client []kgo.Opt

	// ExactlyOnce publishes in Kafka transactions: see the package documentation. nil: at least
	// once.
	ExactlyOnce *ExactlyOnce

	// Interval is the longest time between two checks of the outbox. Commits with messages, due
	// times and the ends of backoffs wake the relay at once. 0 = DefaultInterval.
	Interval time.Duration

	Batch Batch
	Lease Lease
	Retry Retry

	// Telemetry says where the log, with the ids of messages, and the metrics go.
	Telemetry telemetry.Options

	// Clock is the source of time for leases, polling and backoff; timestamps of records are those of
	// the machine. nil = the clock of the machine.
	Clock Clock

	// Disabled disables the relay: Run publishes nothing and returns when its context ends.
	// Messages are kept.
	Disabled bool
}

// ExactlyOnce configures the relay that publishes in Kafka transactions.
type ExactlyOnce struct {
	// ProgressTopic is an existing topic with cleanup.policy=compact. The relay uses its partition
	// 0 only. Relays of several stores may share it.
	ProgressTopic string
}

// Batch bounds the messages that are published before the store is updated. After a crash, at most
// one batch is published twice.
type Batch struct {
	// Entries is the maximum number of messages of a batch. 0 = DefaultBatchEntries; at most
	// MaxBatchEntries.
	Entries int
	// Bytes is the maximum size of a batch; a single message always fits. 0 = DefaultBatchBytes; at
	// most MaxBatchBytes.
	Bytes int
	// Time is how long a batch waits for the broker; messages that are not acknowledged by then
	// have failed. 0 = DefaultBatchTime. At most Lease.TTL - Lease.Margin. The exactly-once relay
	// asks the broker for transactions of three times that, at least a minute: a setting above a
	// third of the broker's transaction.max.timeout.ms (15 minutes) is an error at each attempt.
	Time time.Duration
}

// Lease configures the lease that lets one relay at a time publish from a store.
type Lease struct {
	// TTL is how long a lease lasts unless it is renewed. 0 = DefaultLeaseTTL.
	TTL time.Duration
	// Margin is how long before its end a lease is renewed. 0 = a third of TTL.
	Margin time.Duration
}

// Retry configures the retries of messages that could not be published.
type Retry struct {
	// Min and Max bound the backoff, which grows exponentially and is jittered. 0 =
	// DefaultMinBackoff, DefaultMaxBackoff.
	Min, Max time.Duration
	// Attempts is the number of rejections by the broker or the client after which a message is
	// parked. An attempt that fails because the broker cannot be reached does not count. 0 =
	// DefaultAttempts.
	Attempts int
}

// The defaults of Options, and limits.
const (
	DefaultInterval     = 5 * time.Second
	DefaultBatchEntries = 1000
	DefaultBatchBytes   = 8 << 20
	DefaultBatchTime    = 10 * time.Second
	DefaultLeaseTTL     = 30 * time.Second
	DefaultMinBackoff   = time.Second
	DefaultMaxBackoff   = 5 * time.Minute
	DefaultAttempts     = 10

	MaxBatchEntries = 10_000
	MaxBatchBytes   = 12 << 20
)

func (o Options) withDefaults() (Options, error) {
	defaulted(&o.Interval, DefaultInterval)
	defaulted(&o.Batch.Entries, DefaultBatchEntries)
	defaulted(&o.Batch.Bytes, DefaultBatchBytes)
	defaulted(&o.Lease.TTL, DefaultLeaseTTL)
	defaulted(&o.Lease.Margin, o.Lease.TTL/3)
	defaulted(&o.Batch.Time, min(DefaultBatchTime, (o.Lease.TTL-o.Lease.Margin)/2))
	defaulted(&o.Retry.Min, DefaultMinBackoff)
	defaulted(&o.Retry.Max, max(DefaultMaxBackoff, o.Retry.Min))
	defaulted(&o.Retry.Attempts, DefaultAttempts)
	var err error
	if o.Telemetry, err = o.Telemetry.Complete(); err != nil {
		return o, fmt.Errorf("hapax: outbox: Options.Telemetry.%w", err)
	}
	if o.Clock == nil {
		o.Clock = machineClock{}
	}
	o.Client = slices.Clone(o.Client)
	if o.ExactlyOnce != nil {
		once := *o.ExactlyOnce
		o.ExactlyOnce = &once
	}
	return o, o.check()
}

func defaulted[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (o *Options) check() error {
	refuse := func(field, why string, args ...any) error {
		return fmt.Errorf("hapax: outbox: Options.%s %s", field, fmt.Sprintf(why, args...))
	}
	switch {
	case len(o.Client) == 0 && !o.Disabled:
		return refuse("Client", "is empty: set at least kgo.SeedBrokers, or set Disabled")
	case o.ExactlyOnce != nil && o.ExactlyOnce.ProgressTopic == "":
		return refuse("ExactlyOnce.ProgressTopic", "is empty: name a topic with cleanup.policy=compact")
	case o.Interval < 0:
		return refuse("Interval", "is %v: give a positive time", o.Interval)
	case o.Batch.Entries < 0 || o.Batch.Entries > MaxBatchEntries:
		return refuse("Batch.Entries", "is %d: give 1 to %d", o.Batch.Entries, MaxBatchEntries)
	case o.Batch.Bytes < 0 || o.Batch.Bytes > MaxBatchBytes:
		return refuse("Batch.Bytes", "is %d: give 1 to %d", o.Batch.Bytes, MaxBatchBytes)
	case o.Lease.TTL < 0 || o.Lease.Margin < 0 || o.Lease.Margin >= o.Lease.TTL:
		return refuse("Lease", "has a TTL of %v and a margin of %v: give a positive margin that is shorter than TTL", o.Lease.TTL, o.Lease.Margin)
	case o.Batch.Time < 0 || o.Batch.Time > o.Lease.TTL-o.Lease.Margin:
		return refuse("Batch.Time", "is %v: give at most Lease.TTL - Lease.Margin, %v", o.Batch.Time, o.Lease.TTL-o.Lease.Margin)
	case o.Retry.Min < 0 || o.Retry.Max < o.Retry.Min:
		return refuse("Retry", "has a Min of %v and a Max of %v: give a Min of 0 or more and a Max of at least Min", o.Retry.Min, o.Retry.Max)
	case o.Retry.Attempts < 0:
		return refuse("Retry.Attempts", "is negative: give 0 or more")
	}
	return nil
}

// Errors that a caller can act on. They are wrapped: test them with errors.Is.
var (
	// ErrNotParked means that no parked message has the given id.
	ErrNotParked = errors.New("hapax: outbox: no parked message has this id: see Relay.Parked")

	// ErrProgressTopic means that the progress topic of the exactly-once relay cannot be used.
	ErrProgressTopic = errors.New("hapax: outbox: the progress topic cannot be used: create it with cleanup.policy=compact")

	// ErrHangingTransaction means that a Kafka transaction stays open in the progress topic, so that
	// the committed records after it cannot be read. The relay logs it and tries again. The broker
	// aborts the transactions of relays in time (see Batch.Time), unless it has lost one: see
	// docs/failures.md.
	ErrHangingTransaction = errors.New("hapax: outbox: a transaction stays open in the progress topic: find its producer with kafka-transactions.sh find-hanging")

	// ErrAlreadyRan is returned by a second call of Run.
	ErrAlreadyRan = errors.New("hapax: outbox: Run was called before: make a new Relay for each run")

	errLeaseLost = errors.New("hapax: outbox: the lease was lost")
)
