package kafkaadapter

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Case is a reason why a record cannot be handled once like the others.
type Case uint8

// The cases, and the policies that are valid for each. The first one is the default, except that
// DeadLetter is a default only for routes with DeadLetters.
const (
	_ Case = iota
	// TooOld and TooNew are events outside the weeks that the engine can judge: DeadLetter, Reject or
	// Process. A route without DeadLetters requires a choice.
	TooOld
	TooNew
	// Mismatch is a record whose id was claimed with another Route.Fingerprint: DeadLetter, StopBefore,
	// Reject or Process. The partition stops with ErrMismatch.
	Mismatch
	// Undecodable is a record without a usable id or time: DeadLetter or Reject. A route without
	// DeadLetters requires Reject.
	Undecodable
	// LargeBatch is a batch of the log that decompresses to more than Options.MaxBufferedBytes
	// (ErrLargeBatch): StopBefore, until the assignment ends, or Reject. Reject treats the batch as one
	// Undecodable record: if that is a dead letter, the letter has the position of the batch's first
	// record and, in its error, that of the last, but neither key nor value.
	LargeBatch
	// LargeLetter is a dead letter that the broker refuses because of its size (max.message.bytes of
	// its topic, after compression), or that is larger than a transaction of the store (31 MiB before
	// compression): DeadLetter or StopBefore. DeadLetter publishes it without its value. The header
	// hapax_dlt_omitted_from then has the position at which the log still has the value, as long as the
	// topic retains it; hapax_dlt_omitted and hapax_dlt_omitted_bytes say what is missing. Such a letter
	// cannot be replayed before the value is restored: see deadletter.ErrIncomplete. If the key or the
	// headers are too large, they are left out as well.
	LargeLetter
	// Failed is an event for which the engine returned an error although the store works, for example
	// because a limit was exceeded or the claim may be in damaged data: StopBefore or Process.
	// StopBefore tries again after the backoff; with Transactional, the limit of attempts applies. For a
	// failure of the store, see Options.ReopenStore.
	Failed
)

// A Policy decides about the records of a Case. The zero value is the default of the case.
type Policy uint8

// The policies.
const (
	_          Policy = iota
	Reject            // acknowledge without handling; counted (dedup_kafka_skipped_total) and logged
	Process           // handle without a claim: it may be handled more than once; counted
	DeadLetter        // send it to the dead-letter topic
	StopBefore        // stop the partition before the record
)

func (p Policy) String() string {
	if names := [...]string{"no policy", "Reject", "Process", "DeadLetter", "StopBefore"}; int(p) < len(names) {
		return names[p]
	}
	return fmt.Sprintf("Policy(%d)", p)
}

// Policies choose the policy for each case.
type Policies map[Case]Policy

// RejectUnclaimable returns new Policies that reject all records whose events cannot be claimed:
// those of TooOld, TooNew and Undecodable. Other policies can be added.
func RejectUnclaimable() Policies {
	return Policies{TooOld: Reject, TooNew: Reject, Undecodable: Reject}
}

// cases has the names of the cases and their valid policies, the default first.
var cases = [...]struct {
	name string
	ways []Policy
}{
	TooOld:      {"TooOld", []Policy{DeadLetter, Reject, Process}},
	TooNew:      {"TooNew", []Policy{DeadLetter, Reject, Process}},
	Mismatch:    {"Mismatch", []Policy{DeadLetter, StopBefore, Reject, Process}},
	Undecodable: {"Undecodable", []Policy{DeadLetter, Reject}},
	LargeBatch:  {"LargeBatch", []Policy{StopBefore, Reject}},
	LargeLetter: {"LargeLetter", []Policy{DeadLetter, StopBefore}},
	Failed:      {"Failed", []Policy{StopBefore, Process}},
}

// completed returns the policies of a route with defaults. TooOld, TooNew and Undecodable have none
// without dead letters.
func (p Policies) completed(letters bool) Policies {
	all := maps.Clone(p)
	if all == nil {
		all = make(Policies)
	}
	for c := TooOld; int(c) < len(cases); c++ {
		i := 0
		if cases[c].ways[i] == DeadLetter && !letters {
			i = slices.Index(cases[c].ways, StopBefore)
		}
		if all[c] == 0 && i >= 0 {
			all[c] = cases[c].ways[i]
		}
	}
	return all
}

// check rejects completed policies that are invalid, or that need dead letters if there are none. name
// is the name of the route's field.
func (p Policies) check(name string, letters bool) error {
	for c := range p {
		if c == 0 || int(c) >= len(cases) {
			return fmt.Errorf("%w: %s.Policies has Case(%d), which does not exist", ErrOption, name, c)
		}
	}
	for c := TooOld; int(c) < len(cases); c++ {
		names := make([]string, len(cases[c].ways))
		for i, way := range cases[c].ways {
			names[i] = way.String()
		}
		choices := strings.Join(names, ", ")
		switch {
		case p[c] == 0:
			return fmt.Errorf("%w: %s.Policies[%s] is not set, and without DeadLetters there is no default that loses nothing: choose one of %s (DeadLetter requires DeadLetters)",
				ErrOption, name, cases[c].name, choices)
		case !slices.Contains(cases[c].ways, p[c]):
			return fmt.Errorf("%w: %s.Policies[%s] cannot be %v: use one of %s", ErrOption, name, cases[c].name, p[c], choices)
		case p[c] == DeadLetter && !letters:
			return fmt.Errorf("%w: %s.Policies[%s] is DeadLetter: set %s.DeadLetters or choose another policy", ErrOption, name, cases[c].name, name)
		}
	}
	return nil
}
