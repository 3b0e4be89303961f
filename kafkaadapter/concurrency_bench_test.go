package kafkaadapter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
)

// BenchmarkConcurrency handles records of 1,000 keys of one partition with a handler that takes 50
// ms. Compare handlers=1, where handlers run one after the other, with handlers=16.
func BenchmarkConcurrency(b *testing.B) {
	for _, handlers := range []int{1, 16} {
		b.Run(fmt.Sprintf("handlers=%d", handlers), func(b *testing.B) {
			r := newRig(b, 1)
			recs := make([]*kgo.Record, b.N)
			for i := range recs {
				recs[i] = r.event(0, fmt.Sprint(i))
				recs[i].Key = fmt.Append(nil, rand.IntN(1000))
			}
			r.Produce(b, recs...)
			first := sync.OnceValue(time.Now) // joining the group does not count
			mode := Transactional{MaxAttempts: 1, Handle: func(_ context.Context, tx *engine.Tx, rec *Record) error {
				first()
				time.Sleep(50 * time.Millisecond)
				return count(tx, string(rec.Event.ID))
			}}
			r.start(b, mode, func(o *Options) { o.Routes[0].Concurrency.handlers = handlers })
			r.untilStored(b, 0, int64(b.N))
			b.ReportMetric(float64(b.N)/time.Since(first()).Seconds(), "records/s")
		})
	}
}
