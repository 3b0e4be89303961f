package kafkaadapter

import (
	"sync/atomic"
	"time"
)

// logEnds are the ends of a partition's log as the broker reported them last.
type logEnds struct {
	end      atomic.Int64 // the high watermark
	stable   atomic.Int64 // the last stable offset: consumers read up to it
	stableAt atomic.Int64 // when stable was reported, Unix nanoseconds; 0 if never
}

// tell stores ends. -1 is not known.
func (e *logEnds) tell(end, stable int64) {
	if end >= 0 {
		e.end.Store(end)
	}
	if stable >= 0 {
		e.stable.Store(stable)
		e.stableAt.Store(time.Now().UnixNano())
	}
}

// freshFor is how long the broker's word on the end of the log counts. A partition that could not
// be fetched for weeks must not be taken for one that is caught up.
const freshFor = time.Minute

// caughtUp reports whether next is the last stable offset, as the broker reported not long ago.
func (e *logEnds) caughtUp(next int64) bool {
	return time.Since(time.Unix(0, e.stableAt.Load())) < freshFor && next >= e.stable.Load()
}
