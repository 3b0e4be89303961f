package kafkaadapter

import (
	"sync/atomic"
	"time"
)

// logEnds are the ends of a partition's log, as last reported by the broker.
type logEnds struct {
	end      atomic.Int64 // the high watermark
	stable   atomic.Int64 // the last stable offset, up to which consumers read
	stableAt atomic.Int64 // when stable was reported, Unix nanoseconds; 0 if never
}

// tell stores the ends; -1 means unknown.
func (e *logEnds) tell(end, stable int64) {
	if end >= 0 {
		e.end.Store(end)
	}
	if stable >= 0 {
		e.stable.Store(stable)
		e.stableAt.Store(time.Now().UnixNano())
	}
}

// freshFor is how long a reported end of the log is valid. A partition that could not be fetched
// for weeks must not be considered caught up.
const freshFor = time.Minute

// caughtUp reports whether next is the last stable offset, according to a recent report of the
// broker.
func (e *logEnds) caughtUp(next int64) bool {
	return time.Since(time.Unix(0, e.stableAt.Load())) < freshFor && next >= e.stable.Load()
}
