package kafkaadapter

import (
	"errors"
	"fmt"
	"time"
)

// ErrNoPositionError is returned by AdoptOffset for a partition that is not assigned or not stopped
// by a PositionError.
var ErrNoPositionError = errors.New("hapax: the partition is not stopped by a PositionError")

// errAdoptAgain is the outcome of an adoption whose assignment has ended before.
var errAdoptAgain = fmt.Errorf("%w: the assignment ended before the policy was applied: call AdoptOffset again if the partition stops again", ErrFenced)

// An Adoption is the stored record of an AdoptOffset that took effect, or of records that were
// handled without claims while the store was unavailable (Options.ReopenStore).
type Adoption struct {
	Topic     string         `json:"topic"`
	Partition int32          `json:"partition"`
	Time      time.Time      `json:"time"`
	Kind      string         `json:"kind"`      // the field of Recovery for the disagreement, such as ForeignStore; RanOpen with Options.ReopenStore
	Policy    RecoveryPolicy `json:"policy"`    // the policy that was applied
	Store     int64          `json:"store"`     // the store's offset before, -1 for none
	Committed int64          `json:"committed"` // the group's commit before, -1 for none
	Metadata  string         `json:"metadata"`  // of that commit: the identity of the store that made it
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
