package engine

import "sync/atomic"

// counters start at 0 when the engine is opened.
type counters struct {
	verdicts   verdictCounters // verdicts that hold
	attempts   verdictCounters // all verdicts
	withdrawn  atomic.Uint64   // claims that driver.Unclaim has withdrawn
	cacheHits  atomic.Uint64
	storeReads atomic.Uint64

	filterNegatives atomic.Uint64 // events that the filter alone showed to be new
	falsePositives  atomic.Uint64 // events that the filter might contain and the store did not
}

// verdictCounts has a count for each verdict.
type verdictCounts [len(Verdicts) + 1]uint64

type verdictCounters [len(Verdicts) + 1]atomic.Uint64

func (c *verdictCounters) add(n *verdictCounts) {
	for v, k := range n {
		if k > 0 {
			c[v].Add(k)
		}
	}
}

func (c *verdictCounters) load() map[Verdict]uint64 {
	m := make(map[Verdict]uint64, len(Verdicts))
	for _, v := range Verdicts {
		m[v] = c[v].Load()
	}
	return m
}

// countOwn counts the verdicts of at-most-once claims; all of them hold.
func (c *counters) countOwn(results []Result) {
	var n verdictCounts
	for i := range results {
		n[results[i].Verdict]++
	}
	c.attempts.add(&n)
	c.verdicts.add(&n)
}
