package bench

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A memoryTally counts in memory how often each event was handled, for runs that nothing kills: one atomic addition for
// each call, so that the handler of a measured run does next to nothing.
type memoryTally struct{ counts []atomic.Uint32 }

func newMemoryTally(limit uint64) memoryTally { return memoryTally{make([]atomic.Uint32, limit)} }

func (t *memoryTally) add(number uint64) { t.counts[number].Add(1) }

// handled counts the events that were handled, and those that were handled more than once.
func (t *memoryTally) handled() (once, twice uint64) {
	for i := range t.counts {
		switch t.counts[i].Load() {
		case 0:
		case 1:
			once++
		default:
			once++
			twice++
		}
	}
	return once, twice
}

// A firstFetch is a hook of the client that takes the time at which the first records were there.
type firstFetch struct {
	once sync.Once
	at   time.Time
}

// OnFetchBatchRead is part of kgo.HookFetchBatchRead.
func (f *firstFetch) OnFetchBatchRead(kgo.BrokerMetadata, string, int32, kgo.FetchBatchMetrics) {
	f.once.Do(func() { f.at = time.Now() })
}

// since is the time in seconds from the first records on. It is called after records were polled.
func (f *firstFetch) since() float64 {
	f.once.Do(func() { f.at = time.Now() })
	return time.Since(f.at).Seconds()
}
