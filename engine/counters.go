package engine

import "sync/atomic"

// counters count since the engine was opened.
type counters struct {
	verdicts   verdictCounters // those that are final
	attempts   verdictCounters // all that were given
	withdrawn  atomic.Uint64   // claims, by driver.Unclaim
	cacheHits  atomic.Uint64
	storeReads atomic.Uint64

	filterNegatives atomic.Uint64 // claims that the filter alone found new
	falsePositives  atomic.Uint64 // claims that the filter considered possible and that the store did not have
}

// verdictCounts is a number for each verdict.
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

// countOwn counts the verdicts of at-most-once claims, which hold.
func (c *counters) countOwn(results []Result) {
	var n verdictCounts
	for i := range results {
		n[results[i].Verdict]++
	}
	c.attempts.add(&n)
	c.verdicts.add(&n)
}
