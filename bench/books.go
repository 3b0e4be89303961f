package bench

import (
	"fmt"
	"strconv"
	"strings"
)

// books are what the parent of a kill run has written down. They rest on nothing but what the
// processes had said by the time they were dead, and on the log.
type books struct {
	log   *killLog
	parts []killPart

	claims     map[uint64]int  // how often each acknowledged event was told claimed
	lost       map[uint64]bool // acknowledged and absent later
	mismatches int
	firstWrong string
}

func newBooks(log *killLog) *books {
	return &books{log: log, parts: make([]killPart, log.Parts), claims: make(map[uint64]int), lost: make(map[uint64]bool)}
}

// take enters a line of a process (see killOrder).
func (b *books) take(word, rest string) error {
	f := strings.SplitN(rest, " ", 3)
	if word == "ready" {
		return nil
	}
	if len(f) < 2 {
		return fmt.Errorf("a process said %q %q", word, rest)
	}
	p, err := strconv.Atoi(f[0])
	if err != nil || p < 0 || p >= len(b.parts) {
		return fmt.Errorf("a process said %q %q", word, rest)
	}
	at, err := strconv.ParseUint(f[1], 10, 64)
	if err != nil {
		return fmt.Errorf("a process said %q %q", word, rest)
	}
	switch word {
	case "ack":
		return b.acknowledged(p, at, f[len(f)-1])
	case "offset":
		b.parts[p].Told = max(b.parts[p].Told, at)
	case "checked":
		b.parts[p].Checked = max(b.parts[p].Checked, at)
	case "lost":
		b.lost[b.log.number(p, at)] = true
		b.wrong("lost: event %d of partition %d", at, p)
	case "mismatch":
		b.mismatches++
		b.wrong("state mismatch: event %d of partition %d: %s", at, p, f[len(f)-1])
	default:
		return fmt.Errorf("a process said %q %q", word, rest)
	}
	return nil
}

// acknowledged enters verdicts of the events from a position on.
func (b *books) acknowledged(p int, at uint64, verdicts string) error {
	part := &b.parts[p]
	if at > part.Told {
		return fmt.Errorf("partition %d was acknowledged from %d on, up to %d nothing was", p, at, part.Told)
	}
	for i := range len(verdicts) {
		n := b.log.number(p, at+uint64(i))
		switch verdicts[i] {
		case 'c':
			if b.claims[n]++; b.claims[n] > 1 {
				b.wrong("claimed twice: event %d of partition %d", at+uint64(i), p)
			}
		case 'd':
			b.claims[n] += 0
		default:
			return fmt.Errorf("verdicts %q of partition %d", verdicts, p)
		}
	}
	part.Told = max(part.Told, at+uint64(len(verdicts)))
	return nil
}

func (b *books) wrong(format string, args ...any) {
	if b.firstWrong == "" {
		b.firstWrong = fmt.Sprintf(format, args...)
	}
}

// acked is the number of distinct events that were acknowledged.
func (b *books) acked() uint64 { return uint64(len(b.claims)) }

func (b *books) claimedTwice() (twice uint64) {
	for _, n := range b.claims {
		if n > 1 {
			twice++
		}
	}
	return twice
}
