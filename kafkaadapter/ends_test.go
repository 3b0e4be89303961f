package kafkaadapter

import (
	"testing"
	"time"
)

// Reports of the ends of a log arrive in any order: an old one must not make a partition caught up
// that has more records.
func TestOutdatedEndsAreIgnored(t *testing.T) {
	var e logEnds
	before := time.Now()
	e.report(before, 5, 5)
	e.report(time.Time{}, 9, 9) // fetched meanwhile
	e.report(before, 5, 5)      // asked for before that
	if e.end.Load() != 9 || e.caughtUp(5) || !e.caughtUp(9) {
		t.Errorf("an answer to an older request: %d, %d", e.end.Load(), e.stable.Load())
	}
	e.report(time.Time{}, 7, 7) // fetched earlier, and polled now
	if e.end.Load() != 9 || e.caughtUp(7) {
		t.Errorf("an older fetch: %d, %d", e.end.Load(), e.stable.Load())
	}
	e.report(time.Now(), 4, 4) // the log was cut
	if e.end.Load() != 4 || !e.caughtUp(4) {
		t.Errorf("a log that is shorter: %d, %d", e.end.Load(), e.stable.Load())
	}
}
