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
	used time.Duration // processor time of the process until then
}

// OnFetchBatchRead is part of kgo.HookFetchBatchRead.
func (f *firstFetch) OnFetchBatchRead(kgo.BrokerMetadata, string, int32, kgo.FetchBatchMetrics) {
	f.once.Do(f.begin)
}

func (f *firstFetch) begin() { f.at, f.used = time.Now(), processTime() }

// since returns the time since the first records, and the processor time that the process has used
// in it. It is called after records were polled.
func (f *firstFetch) since() measurement {
	f.once.Do(f.begin)
	return measurement{Seconds: time.Since(f.at).Seconds(), CPUSeconds: (processTime() - f.used).Seconds()}
}
