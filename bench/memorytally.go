package bench

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A memoryTally notes in memory which events a plain loop has read.
type memoryTally []bool

func newMemoryTally(limit uint64) memoryTally { return make(memoryTally, limit) }

func (t memoryTally) add(number uint64) { t[number] = true }

// handled counts the events that were read.
func (t memoryTally) handled() (n uint64) {
	for _, read := range t {
		if read {
			n++
		}
	}
	return n
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
