package engine

import "fmt"

// A Verdict says whether the caller may handle an event. Its zero value has no meaning and is never
// returned without an error.
type Verdict uint8

const (
	_ Verdict = iota

	// Claimed means that the caller's claim is now the valid one: there was no claim before, or the
	// earlier claim was withdrawn, released or reopened, or its window or lease had ended. After
	// TryClaim the claim is durable; after Tx.TryClaim it becomes durable with the transaction, or
	// never. The caller must process the event.
	Claimed

	// Duplicate means that a durable claim exists, or that the same batch or transaction claimed
	// the event before. The caller should skip and acknowledge it. Result.Record is the record of
	// that claim.
	Duplicate

	// InFlight means that another open transaction holds the event, and its outcome is unknown. The
	// caller must retry later, and neither skip nor process the event.
	InFlight

	// TooOld means that the event's week is before the oldest retained week, so the engine cannot
	// know whether it was claimed.
	TooOld

	// TooNew means that the event's time is further ahead of the clock than Options.AllowedSkew.
	TooNew

	// Failed means that the engine could not decide; Result.Err says why. The caller must not
	// acknowledge the event.
	Failed

	// Pending means that another caller, or an earlier event of the same batch, holds the event
	// under a lease (Event.Lease) and has not finished it. The caller must retry later, at the
	// latest when the lease ends (Result.Record.LeaseEnd), and neither skip nor process the event.
	Pending

	// Mismatch means that a claim on the event exists with another Event.Fingerprint: the
	// identifier was used for something else. The caller should reject the event. Result.Record is
	// the record of that claim.
	Mismatch
)

// Verdicts lists all verdicts in the order of their values, for labels and counters.
var Verdicts = [...]Verdict{Claimed, Duplicate, InFlight, TooOld, TooNew, Failed, Pending, Mismatch}

// String returns the verdict's name in snake case, as used in metrics, spans and reports.
func (v Verdict) String() string {
	switch v {
	case Claimed:
		return "claimed"
	case Duplicate:
		return "duplicate"
	case InFlight:
		return "in_flight"
	case TooOld:
		return "too_old"
	case TooNew:
		return "too_new"
	case Failed:
		return "error"
	case Pending:
		return "pending"
	case Mismatch:
		return "mismatch"
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}

// A Result is the engine's answer for one event.
type Result struct {
	Verdict Verdict

	// Record is the record of the claim on which the verdict depends: the new claim for Claimed,
	// the existing one for Duplicate, Pending and Mismatch. It is zero for other verdicts.
	Record ClaimRecord

	// Lease is the right to finish the claim. It is set if the verdict is Claimed and the event has
	// a Lease, otherwise nil.
	Lease *Lease

	// Err is set if and only if Verdict is Failed. It is an *EventError if the event is invalid.
	Err error
}

// IsClaimed reports whether the caller must handle the event. False has several meanings: check the
// verdict before acknowledging the event.
func (r Result) IsClaimed() bool { return r.Verdict == Claimed }
