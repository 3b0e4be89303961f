package kafkaadapter

import (
	"sync"
	"sync/atomic"
	"time"
)

// logEnds are the ends of a partition's log, as last reported by the broker.
type logEnds struct {
	mu       sync.Mutex   // held by report
	reported time.Time    // when report was last called
	end      atomic.Int64 // the high watermark
	stable   atomic.Int64 // the last stable offset, up to which consumers read
	stableAt atomic.Int64 // when stable was reported, Unix nanoseconds; 0 if never
}

// report stores the ends that the broker had at asOf or later; -1 means unknown. A lower end is
// outdated if another report came since asOf. asOf is zero for records that were fetched some time
// ago.
func (e *logEnds) report(asOf time.Time, end, stable int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	newest := !asOf.Before(e.reported)
	e.reported = time.Now()
	if end >= 0 && (newest || end > e.end.Load()) {
		e.end.Store(end)
	}
	if stable >= 0 && (newest || stable >= e.stable.Load()) {
		e.stable.Store(stable)
		e.stableAt.Store(e.reported.UnixNano())
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
