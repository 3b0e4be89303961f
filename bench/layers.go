package bench

import "fmt"

// LayersControl breaks a rule of a process on purpose, so that the ledger is seen to detect it.
type LayersControl string

// The controls of Layers.
const (
	ForgetKeys LayersControl = "forget-keys" // requests run without their idempotency keys: executed_twice
	ForgetIDs  LayersControl = "forget-ids"  // records are claimed by position, not by id: handled_twice
	// the last change wins, not the newest version: wrong_version
	ArrivalWins LayersControl = "arrival-wins"
	// messages are sent to Kafka directly: outbox_lost, outbox_doubled_downstream
	WithoutOutbox LayersControl = "without-outbox"
)

// LayersOptions configure Layers.
type LayersOptions struct {
	Common
	Brokers []string      `help:"${brokers}" type:"brokers" placeholder:"HOST:PORT,..." env:"DEDUPBENCH_BROKERS"`
	N       int           `help:"Distinct requests, events and rows, each." default:"50000"`
	Kills   int           `help:"How often the process is killed." default:"5"`
	Control LayersControl `help:"Break a rule, to see that it is noticed: forget-keys runs requests without their idempotency keys, forget-ids claims events by position, arrival-wins takes the change that came last, without-outbox publishes messages directly." enum:",forget-keys,forget-ids,arrival-wins,without-outbox" default:""`
	Seed    uint64        `help:"Seed of the events." default:"1"`
}

// A LayersReport says the outcome of requests, events, rows and messages. The expected values are
// the clients' answers, the sent data, and the messages that their consumer has handled; they are
// compared with the store of the killed processes.
type LayersReport struct {
	// Requests have a key each; Retries are sends of a key after its first answer.
	// ReplayedIdentical retries got the bytes of that answer, as a replay.
	Requests          uint64 `json:"requests"`
	Retries           uint64 `json:"retries"`
	Executed          uint64 `json:"executed"`
	ExecutedTwice     uint64 `json:"executed_twice"`
	ReplayedIdentical uint64 `json:"replayed_identical"`
	// Events were handled at least once; Records are all of their produced deliveries.
	Events       uint64 `json:"events"`
	Records      uint64 `json:"records"`
	HandledTwice uint64 `json:"handled_twice"`
	// Rows have a version; WrongVersion rows do not have the newest of the published Changes, or
	// have another payload.
	Rows         uint64 `json:"rows"`
	Changes      uint64 `json:"changes"`
	WrongVersion uint64 `json:"wrong_version"`
	// OutboxSent messages were handled by their consumer, which detects repetitions by the id;
	// OutboxRecords are those in the topic, repetitions included. OutboxLost executions and handled
	// events have no message, and OutboxDoubled messages were handled without one.
	OutboxSent    uint64 `json:"outbox_sent"`
	OutboxRecords uint64 `json:"outbox_records"`
	OutboxLost    uint64 `json:"outbox_lost"`
	OutboxDoubled uint64 `json:"outbox_doubled_downstream"`

	Kills   int     `json:"kills"`
	Seconds float64 `json:"seconds"`
	Outcome
}

// broken returns the violations.
func (r *LayersReport) broken(o *LayersOptions) error {
	wrong := r.ExecutedTwice + r.HandledTwice + r.WrongVersion + r.OutboxLost + r.OutboxDoubled
	n := uint64(o.N)
	if wrong == 0 && r.Retries == r.ReplayedIdentical && r.Executed == n && r.Events == n && r.Rows == n {
		return nil
	}
	again := keepAndReport
	if o.Control != "" {
		again = "the control " + string(o.Control) + " breaks the rule on purpose"
	}
	return fmt.Errorf("%w: of %d each %d requests executed, %d twice, %d of %d retries replayed, %d events handled, %d twice, %d rows, "+
		"%d with a wrong version, %d messages lost, %d doubled: %s", ErrNotHeld, n, r.Executed, r.ExecutedTwice, r.ReplayedIdentical, r.Retries,
		r.Events, r.HandledTwice, r.Rows, r.WrongVersion, r.OutboxLost, r.OutboxDoubled, again)
}

// maxRequests bounds the answers that a run keeps in memory.
const maxRequests = 10_000_000

func (o *LayersOptions) complete() error {
	if o.Kills < 1 || o.Kills > o.N/leastPerKill || o.N > maxRequests {
		return fmt.Errorf("%w: %d requests, %d kills: give a kill or more, %d requests for each, and up to %d requests",
			ErrUsage, o.N, o.Kills, leastPerKill, maxRequests)
	}
	return nil
}
