package kafkaadapter

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// A RecoveryPolicy determines where to read if the store and Kafka disagree on a partition's
// offset. The zero value stops the partition with a *PositionError.
type RecoveryPolicy uint8

// The recovery policies.
const (
	Stop       = RecoveryPolicy(resume.Stop)       // do not read the partition; report a PositionError
	TrustStore = RecoveryPolicy(resume.TrustStore) // read from the store's offset
	TrustKafka = RecoveryPolicy(resume.TrustKafka) // read from the offset that is committed in Kafka
	StartOver  = RecoveryPolicy(resume.StartOver)  // read from the log's start
)

func (w RecoveryPolicy) String() string {
	switch w {
	case Stop:
		return "stop"
	case TrustStore:
		return "trust_store"
	case TrustKafka:
		return "trust_kafka"
	case StartOver:
		return "start_over"
	}
	return "RecoveryPolicy(" + strconv.Itoa(int(w)) + ")"
}

// Recovery chooses the policy for kinds of disagreement, by their errors:
//
//	kafkaadapter.Recovery{kafkaadapter.ErrBelowLog: kafkaadapter.StartOver}
//
// A kind without a policy stops the partition, so nil stops it at each kind. No policy removes
// claims: a claimed event is still a duplicate. The valid policies of each kind:
//
//	ErrBelowLog           StartOver
//	ErrAboveLog           StartOver, TrustKafka
//	ErrRecreated          StartOver, TrustKafka
//	ErrForeignStore       TrustStore, TrustKafka, StartOver
//	ErrEmptyStore         TrustKafka, StartOver
//	ErrKafkaAhead         TrustStore, TrustKafka
//	ErrOffsetReset        TrustStore, TrustKafka
//	ErrLogDiverged        TrustStore, StartOver
//	ErrModeChanged        TrustStore
//	ErrPartitionsChanged  TrustStore
type Recovery map[error]RecoveryPolicy

// TrustStoreAlways returns a new Recovery with TrustStore for each kind for which it is valid;
// policies for other kinds can be added. A partition whose store and Kafka have different offsets
// is then read from the store's offset, which neither repeats nor loses work if the store is the
// one that the group has used.
func TrustStoreAlways() Recovery {
	r := make(Recovery)
	for _, d := range disagreements {
		if slices.Contains(d.ways, TrustStore) {
			r[d.kind] = TrustStore
		}
	}
	return r
}

// A disagreement has the policies that apply to a kind.
type disagreement struct {
	kind error
	name string
	ways []RecoveryPolicy
}

var disagreements = []disagreement{
	{ErrBelowLog, "BelowLog", []RecoveryPolicy{StartOver}},
	{ErrAboveLog, "AboveLog", []RecoveryPolicy{StartOver, TrustKafka}},
	{ErrRecreated, "Recreated", []RecoveryPolicy{StartOver, TrustKafka}},
	{ErrForeignStore, "ForeignStore", []RecoveryPolicy{TrustStore, TrustKafka, StartOver}},
	{ErrEmptyStore, "EmptyStore", []RecoveryPolicy{TrustKafka, StartOver}},
	{ErrKafkaAhead, "KafkaAhead", []RecoveryPolicy{TrustStore, TrustKafka}},
	{ErrOffsetReset, "OffsetReset", []RecoveryPolicy{TrustStore, TrustKafka}},
	{ErrLogDiverged, "LogDiverged", []RecoveryPolicy{TrustStore, StartOver}},
	{ErrModeChanged, "ModeChanged", []RecoveryPolicy{TrustStore}},
	{ErrPartitionsChanged, "PartitionsChanged", []RecoveryPolicy{TrustStore}},
}

func disagreementOf(kind error) disagreement {
	for _, d := range disagreements {
		if errors.Is(kind, d.kind) {
			return d
		}
	}
	panic("hapax: no such disagreement: " + kind.Error())
}

// waysOf returns the key of Recovery and the policies for a kind, for the text of an error.
func waysOf(kind error) string {
	d := disagreementOf(kind)
	names := make([]string, len(d.ways))
	for i, w := range d.ways {
		names[i] = w.String()
	}
	return "Recovery[Err" + d.name + "] = " + strings.Join(names, ", ")
}

// fits reports whether the policy applies to the disagreement.
func fits(kind error, policy RecoveryPolicy) bool {
	return slices.Contains(disagreementOf(kind).ways, policy)
}

func (r Recovery) check() error {
	kinds := make([]error, len(disagreements))
	for i, d := range disagreements {
		kinds[i] = d.kind
	}
	for kind := range r {
		if !slices.Contains(kinds, kind) { // a wrapped one would never apply
			return fmt.Errorf("%w: Recovery has a policy for the error %q, which is no kind of disagreement: use the errors in the documentation of Recovery", ErrOption, fmt.Sprint(kind))
		}
	}
	for _, d := range disagreements { // in this order
		if way := r[d.kind]; way != Stop && !fits(d.kind, way) {
			return fmt.Errorf("%w: Recovery[Err%s] cannot be %v: use %s, or no policy to stop the partition", ErrOption, d.name, way, waysOf(d.kind))
		}
	}
	return nil
}

// ErrNotStopped is returned by AdoptOffset for a partition that is not assigned or not stopped
// by a PositionError.
var ErrNotStopped = errors.New("hapax: the partition is not stopped by a PositionError")

// errAdoptAgain is the outcome of an adoption whose assignment ended before it was applied.
var errAdoptAgain = fmt.Errorf("%w: the assignment ended before the policy was applied: call AdoptOffset again if the partition stops again", ErrFenced)

// An Adoption is the stored record of an AdoptOffset that took effect, or of records that were
// handled without claims while the store was unavailable (Options.ReopenStore).
type Adoption struct {
	Topic     string         `json:"topic"`
	Partition int32          `json:"partition"`
	Time      time.Time      `json:"time"`
	Kind      string         `json:"kind"`      // the field of Recovery for the disagreement, such as ForeignStore; RanOpen with Options.ReopenStore
	Policy    RecoveryPolicy `json:"policy"`    // the policy that was applied
	Store     int64          `json:"store"`     // the store's previous offset, -1 if there was none
	Committed int64          `json:"committed"` // the group's previous commit, -1 if there was none
	Metadata  string         `json:"metadata"`  // metadata of that commit: the identity of the store that made it
	Offset    int64          `json:"offset"`    // where reading continued
	Reason    string         `json:"reason"`    // as given to AdoptOffset
}

// An adoption is a request to apply a policy once.
type adoption struct {
	kind   error
	policy RecoveryPolicy
	reason string
	done   chan error // receives the outcome, once
}

func (a *adoption) finish(err error) {
	if a != nil {
		a.done <- err
	}
}
