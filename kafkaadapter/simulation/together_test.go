package simulation

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// together are the members of one process. They share its engine.
func together(uint64) form { return form{pace: virtualTime, together: true, serverSide: true} }

// classic are such members with the classic protocol, whose clients assign the partitions.
func classic(seed uint64) form {
	return form{pace: classicTime, together: true, static: seed%2 == 0}
}

// Members of one process join, leave, lose their network and exchange partitions; a power failure
// affects all of them.
func TestMembersThatExchangePartitionsThroughPowerFailures(t *testing.T) {
	s := scaled().members
	more := func(began time.Time) func(cuts, faults int) bool {
		if *duration > 0 {
			return func(int, int) bool { return time.Since(began) < *duration }
		}
		return func(cuts, _ int) bool { return cuts < s }
	}
	old := &campaign{next: *from, form: classic}
	var wg sync.WaitGroup
	defer wg.Wait()
	if classicTime == realTime { // they wait most of the time
		old.lives = 4
		limit := more(time.Now())
		for range 6 {
			wg.Go(func() {
				old.run(t, func(cuts, faults int) bool {
					return *duration > 0 && limit(cuts, faults) || len(old.all)+old.running < 6
				})
			})
		}
	} else {
		old.report(t, more(time.Now()))
	}
	(&campaign{next: *from, form: together}).report(t, more(time.Now()))
	wg.Wait()
	if classicTime == realTime {
		t.Logf("classic protocol, in real time: %v", old)
	}
}

// Processes with a store and a part of the partitions each lose their power independently.
func TestPinnedProcessesThroughPowerFailures(t *testing.T) {
	began := time.Now()
	c := &campaign{next: *from, form: func(seed uint64) form { return form{pace: virtualTime, of: 2 + int(seed%2)} }}
	c.report(t, func(cuts, _ int) bool {
		if *duration > 0 {
			return time.Since(began) < *duration
		}
		return cuts < scaled().pinned
	})
}

// report runs the campaign on all processors and logs its totals.
func (c *campaign) report(t *testing.T, more func(cuts, faults int) bool) {
	began := time.Now()
	t.Run("seeds", func(t *testing.T) {
		for i := range processors() {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				c.run(t, more)
			})
		}
	})
	t.Logf("%v in %v", c, time.Since(began).Round(time.Millisecond))
}
