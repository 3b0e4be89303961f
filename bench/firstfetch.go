package bench

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A firstFetch is a hook of the client that records when the first records arrived.
type firstFetch struct {
	once sync.Once
	at   time.Time
}

// OnFetchBatchRead is part of kgo.HookFetchBatchRead.
func (f *firstFetch) OnFetchBatchRead(kgo.BrokerMetadata, string, int32, kgo.FetchBatchMetrics) {
	f.once.Do(func() { f.at = time.Now() })
}

// since returns the time in seconds since the first records. It is called after records were
// polled.
func (f *firstFetch) since() float64 {
	f.once.Do(func() { f.at = time.Now() })
	return time.Since(f.at).Seconds()
}
