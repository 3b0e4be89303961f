package bench

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

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
