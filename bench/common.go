package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/hapax-dev/hapax/bench/internal/runner"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
)

var (
	// ErrUsage means that the options of a run are invalid.
	ErrUsage = errors.New("usage")

	// ErrNotHeld means that a run was completed and its checks failed: keep its directory and
	// report it.
	ErrNotHeld = errors.New("a promise was broken")
)

// keepAndReport is the remedy for a run whose store contains an error.
const keepAndReport = "run again with --dir to keep the store, and report it"

// A fault breaks a rule of a process on purpose, so that a test sees that the ledger notices it.
type fault string

// The faults of Kill, Kafka and Layers, and what they show in the report.
const (
	ackEarly   fault = "ack before the verdict"
	claimTwice fault = "forget and claim again"
	claimApart fault = "claim outside the transaction"

	// a loop commits the offset of the polled records, and then claims and works in one
	// transaction: lost
	commitFirst fault = "commit the offset first"

	forgetKeys  fault = "requests without idempotency keys"        // executed_twice
	forgetIDs   fault = "records claimed by position"              // handled_twice
	arrivalWins fault = "the last change wins, not the newest"     // wrong_version
	noOutbox    fault = "messages that are sent to Kafka directly" // outbox_lost, outbox_doubled_downstream
)

// Outcome is the part of every report that says how the run ended.
type Outcome struct {
	// Error says why the figures are incomplete, or which check failed; empty if all is well.
	Error string `json:"error,omitempty"`
}

// end records the error with which a run ended, and adds the remedy.
func (o *Outcome) end(err *error) {
	*err = runner.WithHint(*err)
	if *err != nil && o.Error == "" {
		o.Error = (*err).Error()
	}
}

// less is a-b, 0 if that is negative.
func less(a, b uint64) uint64 { return a - min(a, b) }

// apart returns the difference of a and b.
func apart(a, b uint64) uint64 { return less(a, b) + less(b, a) }

func sum(offsets []int64) (all uint64) {
	for _, o := range offsets {
		all += uint64(o)
	}
	return all
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// stopwatch starts a clock; the returned func sets seconds to the time since then.
func stopwatch(seconds *float64) func() {
	start := time.Now()
	return func() { *seconds = time.Since(start).Seconds() }
}

// thousands writes a number with a comma in each thousand.
func thousands(n uint64) string {
	if n < 1000 {
		return strconv.FormatUint(n, 10)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// A timing is a rate that is measured once in each round, because other load on a machine varies.
type timing struct {
	// take returns events per second. Its directory is new and is removed afterwards.
	take func(dir string) (perS float64, err error)
	perS []float64 // of the rounds
}

// inRounds measures all timings in each round, in rotating order, so that no timing always follows
// the same one.
func inRounds(rounds int, dir string, timings ...*timing) error {
	for i := range rounds {
		for j := range timings {
			t := timings[(i+j)%len(timings)]
			dir := filepath.Join(dir, "round-"+strconv.Itoa(i+1))
			perS, err := t.take(dir)
			if err == nil {
				err = os.RemoveAll(dir)
			}
			if err != nil {
				return err
			}
			t.perS = append(t.perS, perS)
			runtime.GC()
		}
	}
	return nil
}

func (t *timing) median() *float64 { return median(t.perS) }

func median(values []float64) *float64 {
	slices.Sort(values)
	return &values[len(values)/2]
}

func over(a, b *float64) *float64 {
	ratio := *a / *b
	return &ratio
}

// newSource is traffic.NewSource for the options of a run.
func newSource(kind traffic.IDKind, scopes, weeks int) (traffic.Source, error) {
	src, err := traffic.NewSource(1, kind, scopes, weeks)
	if errors.Is(err, traffic.ErrTooMany) {
		err = fmt.Errorf("%w: %w", ErrUsage, err)
	}
	return src, err
}
